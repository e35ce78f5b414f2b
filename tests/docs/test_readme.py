"""The README's examples, run as they stand there."""

from __future__ import annotations

import http.server
import json
import re
import threading

import pytest

from tests.support.processes import ROOT, run_python

BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def example(word: str) -> str:
    """The one Python block that has that word."""
    (found,) = [block for block in BLOCKS if word in block]
    return found


@pytest.fixture
def carrier():
    """A server that answers with the statuses of `answers`, in order, and 200 afterwards; gives its URL, which tells them."""
    answers = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status = answers.pop(0) if answers else 200
            body = json.dumps({"status": status}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers = answers
    server.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def run(block: str, driver: str, *args: str) -> list[str]:
    return run_python(f"{block}\n\nimport sys\n{driver}", *args).stdout.splitlines()


def test_every_python_example_is_tested_here():
    assert len(BLOCKS) == 3


def test_block_around_requests_counts_a_503(carrier):
    carrier.answers += [503] * 10
    driver = """
from pyresil import CircuitOpenError
for _ in range(10):
    print(track(sys.argv[1])["status"])
try:
    track(sys.argv[1])
except CircuitOpenError as error:
    print("open", error.retry_after > 0)
"""
    lines = run(example("carrier.execute() as ctx"), driver, carrier.url)
    assert lines == ["503"] * 10 + ["open True"]


def test_loop_and_decorator_retry(carrier):
    carrier.answers += [503, 503]
    block = example("for attempt in carrier.execute()")
    lines = run(block, 'print(track(sys.argv[1])["status"])\nprint(label(sys.argv[1]))', carrier.url)
    assert lines == ["200", """b'{"status": 200}'"""]
    assert not carrier.answers


def test_flask_view_answers_503_while_it_runs():
    driver = """
import threading
entered, leave = threading.Event(), threading.Event()

@app.get("/slow")
@bulkhead(max_concurrent=1)
def slow():
    entered.set()
    leave.wait(10)
    return "done"

print(app.test_client().get("/export").status_code)
answers = []
first = threading.Thread(target=lambda: answers.append(app.test_client().get("/slow").status_code))
first.start()
entered.wait(10)
second = app.test_client().get("/slow")
print(second.status_code, second.get_json(force=True)["code"])
leave.set()
first.join()
print(answers)
"""
    assert run(example("@bulkhead"), driver) == ["200", "503 BULKHEAD_FULL", "[200]"]
