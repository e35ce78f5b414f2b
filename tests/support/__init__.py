"""Real servers and processes for the tests: started by the fixtures of conftest.py when a test asks for them."""
