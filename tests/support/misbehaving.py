"""An HTTP server, and proxies, that do what a client must survive; in a process of their own.

`MisbehavingServer` starts it. The paths of both schemes:

- `/ok`, `/big` (20 MB), `/echo` (the body back), `/status/503?after=1` (with Retry-After), `/redirect?to=URL`, `/headers`;
- `/hang`: reads the request and says nothing; `/drip-headers`, `/drip-length`, `/drip-chunked`, `/drip-close`: a byte every
  20 ms; `/endless`: 10^12 bytes as fast as they are taken; `/upload`: reads the head of the request and no byte of its body;
- `/flaky?key=K&fail=N&status=S`: status S for the first N requests of a key, then 200;
- `/quotes`, `/orders`, `/export`: the service of the documentation's examples;
- `/seen`: what it saw as JSON: requests by path, connections closed by the client while they were served.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import select
import socket
import ssl
import sys
import threading
import time
from urllib.parse import parse_qs, urlsplit

from tests.support.processes import Server, environment

BIG = b"0123456789abcdef" * 65536 * 20  # 20 MiB


class MisbehavingServer(Server):
    """The process; its ports are known once it has started."""

    name = "misbehaving"

    def __init__(self, folder):
        super().__init__(folder)
        self.ports = {}

    def prepare(self) -> None:
        import trustme

        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(self.folder / "server.pem"))

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def popen_options(self) -> dict:
        return {"env": environment()}

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.support.misbehaving", str(self.folder)]

    def ready(self) -> bool:
        path = self.folder / "ports.json"
        if path.exists():
            self.ports = json.loads(path.read_text(encoding="utf-8"))
        return bool(self.ports)

    def url(self, scheme: str, path: str = "", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.ports[scheme]}{path}"


class _Seen:
    def __init__(self):
        self.lock = threading.Lock()
        self.requests = collections.Counter()
        self.closed = collections.Counter()
        self.tries = collections.Counter()
        self.keys = collections.defaultdict(list)


SEEN = _Seen()


class Gone(Exception):
    """The client closed the connection."""


def write(conn, data):
    try:
        conn.sendall(data)
    except OSError:
        raise Gone from None


def drip(conn, data):
    for position in range(len(data)):
        write(conn, data[position : position + 1])
        time.sleep(0.02)


def wait_for_close(conn):
    """Blocks until the client goes away (at most 30 s)."""
    conn.settimeout(30)
    with contextlib.suppress(OSError):
        while conn.recv(65536):
            pass
    raise Gone


class Exchange:
    """One request on one connection."""

    def __init__(self, conn, head, file):
        self.conn = conn
        self.file = file
        lines = head.decode("latin-1").split("\r\n")
        self.method, target, _ = lines[0].split(" ", 2)
        parts = urlsplit(target)
        self.path = parts.path
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }

    def body(self):
        if self.headers.get("transfer-encoding") == "chunked":
            found = b""
            while size := int(self.file.readline().split(b";")[0] or b"0", 16):
                found += self.file.read(size)
                self.file.readline()
            self.file.readline()
            return found
        return self.file.read(int(self.headers.get("content-length", 0)))

    def reply(self, status=200, body=b"ok", **headers):
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        write(self.conn, head if self.method == "HEAD" else head + body)

    def serve(self):
        name = self.path.strip("/").replace("-", "_").split("/")[0]
        with SEEN.lock:
            SEEN.requests[self.path] += 1
            if "key" in self.query:
                SEEN.keys[self.query["key"]].append(self.headers.get("idempotency-key"))
        if name != "upload":
            self.sent = self.body()
        getattr(self, f"do_{name}", self.do_missing)()

    def do_missing(self):
        self.reply(404, b"missing")

    def do_ok(self):
        self.reply()

    def do_tag(self):
        """The query's `n`, many times over: a reader sees at once whether it is the answer to somebody else."""
        self.reply(200, (self.query["n"] + ",").encode() * 2000)

    def do_slow(self):
        time.sleep(float(self.query["for"]))
        self.reply()

    def do_big(self):
        self.reply(200, BIG)

    def do_echo(self):
        self.reply(200, self.sent)

    def do_headers(self):
        self.reply(200, json.dumps(self.headers).encode(), Content_Type="application/json")

    def do_quotes(self):
        self.reply(200, b"[1, 2]", Content_Type="application/json")

    def do_orders(self):
        self.reply(200, b"[]" if self.method == "GET" else self.sent, Content_Type="application/json")

    def do_export(self):
        self.reply(200, BIG)

    def do_status(self):
        after = {"Retry_After": self.query["after"]} if "after" in self.query else {}
        self.reply(int(self.path.rpartition("/")[2]), b"status", **after)

    def do_redirect(self):
        self.reply(int(self.query.get("status", 302)), b"", Location=self.query["to"])

    def do_flaky(self):
        with SEEN.lock:
            SEEN.tries[self.query["key"]] += 1
            tries = SEEN.tries[self.query["key"]]
        if tries > int(self.query["fail"]):
            self.reply(200, self.sent or b"ok")
            return
        status = self.query["status"]
        if status == "cut":
            write(self.conn, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            raise Gone
        more = {"Retry_After": self.query["after"]} if "after" in self.query else {}
        body = b"try again"
        if "code" in self.query:
            more["Content_Type"] = "application/problem+json"
            body = json.dumps({"code": self.query["code"]}).encode()
        self.reply(int(status), body, **more)

    def do_keyed(self):
        """The first request of the query's `key` is at work for a while after another one was refused, as its key is in use."""
        with SEEN.lock:
            SEEN.tries[self.query["key"]] += 1
            tries = SEEN.tries[self.query["key"]]
        if tries > 1:
            body = json.dumps({"code": "IDEMPOTENCY_KEY_IN_USE"}).encode()
            self.reply(409, body, Content_Type="application/problem+json")
            return
        end = time.monotonic() + 5
        while SEEN.tries[self.query["key"]] == 1 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        self.reply(200, b"done")

    def do_hang(self):
        wait_for_close(self.conn)

    def do_upload(self):
        # Not a byte of the body is read: the client's sending blocks when the buffers are full.
        end = time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.05)
            self.conn.setblocking(False)
            with contextlib.suppress(OSError, ValueError):
                self.conn.getpeername()
        raise Gone

    def do_drip_headers(self):
        drip(self.conn, b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000)

    def do_drip_length(self):
        write(self.conn, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        drip(self.conn, b"y" * 1000)

    def do_drip_chunked(self):
        write(self.conn, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(1000):
            write(self.conn, b"1\r\nz\r\n")
            time.sleep(0.02)

    def do_drip_close(self):
        write(self.conn, b"HTTP/1.1 200 OK\r\n\r\n")
        drip(self.conn, b"w" * 1000)

    def do_endless(self):
        write(self.conn, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        block = b"e" * 1048576
        while True:
            write(self.conn, block)

    def do_seen(self):
        with SEEN.lock:
            seen = {"requests": SEEN.requests, "closed": SEEN.closed, "keys": SEEN.keys}
            self.reply(200, json.dumps(seen).encode(), Content_Type="application/json")


def serve(conn, context=None):
    """All requests of one connection."""
    with contextlib.suppress(OSError, Gone, ValueError, AttributeError), conn:
        conn.settimeout(60)
        if context is not None:
            conn = context.wrap_socket(conn, server_side=True)
        file = conn.makefile("rb")
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = file.readline()
                if not line:
                    return
                head += line
            exchange = Exchange(conn, head, file)
            try:
                exchange.serve()
            except Gone:
                with SEEN.lock:
                    SEEN.closed[exchange.path] += 1
                with contextlib.suppress(OSError):
                    conn.shutdown(socket.SHUT_RDWR)
                return


def relay(client, server):
    """Passes bytes both ways until one side ends; in one thread, since a TLS socket is not for two."""
    sides = {client: server, server: client}
    while True:
        buffered = [side for side in sides if isinstance(side, ssl.SSLSocket) and side.pending()]
        readable = buffered or select.select(list(sides), [], [], 60)[0]
        for side in readable:
            data = side.recv(65536)
            if not data:
                return
            sides[side].sendall(data)


def serve_proxy(conn, how):
    """A forwarding and tunnelling proxy; `how` is "good", "hang" or "drip" (the answer to CONNECT)."""
    with contextlib.suppress(OSError, Gone, ValueError), conn:
        conn.settimeout(60)
        head = b""
        while b"\r\n\r\n" not in head:
            data = conn.recv(65536)
            if not data:
                return
            head += data
        if how == "hang":
            wait_for_close(conn)
        method, target, rest = head.split(b" ", 2)
        if method == b"CONNECT":
            if how == "drip":
                drip(conn, b"HTTP/1.1 200 " + b"x" * 1000)
            host, _, port = target.decode().rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                write(conn, b"HTTP/1.1 200 Connection established\r\n\r\n")
                relay(conn, server)
            return
        parts = urlsplit(target.decode())
        with socket.create_connection((parts.hostname, parts.port)) as server:
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            server.sendall(b" ".join((method, path.encode(), rest)))
            relay(conn, server)


def serve_tls_proxy(conn, context):
    """A good proxy that is spoken to by TLS."""
    with contextlib.suppress(OSError), conn:
        serve_proxy(context.wrap_socket(conn, server_side=True), "good")


def listen(handler, *args, backlog=128):
    listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)

    def accept():
        while True:
            conn, _ = listener.accept()
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=handler, args=(conn, *args), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def full_backlog():
    """A port that accepts nothing and whose queue is full: the handshake of a further connection is not answered."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    clients = []
    for _ in range(4):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        clients.append(client)
    return listener.getsockname()[1], [listener, *clients]


def main(folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    backlog, kept = full_backlog()
    ports = {
        "http": listen(serve),
        "https": listen(serve, context),
        "silent": listen(wait_for_close_quietly),
        "backlog": backlog,
        "proxy-tls": listen(serve_tls_proxy, context),
        **{f"proxy-{how}": listen(serve_proxy, how) for how in ("good", "hang", "drip")},
    }
    partial = folder / "ports.part"
    partial.write_text(json.dumps(ports), encoding="utf-8")
    partial.rename(folder / "ports.json")
    threading.Event().wait()
    del kept


def wait_for_close_quietly(conn):
    with contextlib.suppress(Gone), conn:
        wait_for_close(conn)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
