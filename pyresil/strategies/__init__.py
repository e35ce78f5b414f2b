"""One module a strategy; each is a thin shell over a pure engine, and none knows another."""
