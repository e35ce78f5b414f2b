"""A TCP proxy between a client and a real server, which can lose, delay and cut what passes."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading

from tests.support.processes import free_port


@dataclasses.dataclass
class _Rule:
    left: int
    match: bytes
    cut: bool


class TcpProxy:
    """Forwards a free port of 127.0.0.1 to `target_port`.

    Everything is seen in chunks as they arrive: with request-and-reply protocols and small messages, a chunk is a message.

    - `drop_requests(n, match)`: the next n requests that contain `match` never reach the server.
    - `drop_replies(n, match)`: the next n requests that contain `match` reach the server, and their replies are lost.
      With `cut=True` (the default of both) the client's connection is then reset; else it waits for ever.
    - `stall()` and `resume()`: nothing passes in either direction meanwhile, connections stay.
    - `refuse()` and `accept()`: new connections are refused meanwhile.
    - `cut()`: resets every connection that is open now.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1"):
        self.target = (target_host, target_port)
        self.requests_dropped = 0
        self.replies_dropped = 0
        self.connections_made = 0
        self._lock = threading.Lock()
        self._rules: dict[str, list[_Rule]] = {"request": [], "reply": []}
        self._flowing = threading.Event()
        self._flowing.set()
        self._links: set[_Link] = set()
        self._closed = False
        # Not one of the ports that the system gives to connections: one might take it between `refuse()` and `accept()`.
        self.port = free_port()
        self._listener = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=64)
        threading.Thread(target=self._serve, args=(listener,), name="proxy-accept", daemon=True).start()
        return listener

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target, timeout=5)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            link = _Link(self, client, server)
            with self._lock:
                self.connections_made += 1
                self._links.add(link)
            link.start()

    def drop_requests(self, n: int = 1, match: bytes = b"", *, cut: bool = True) -> None:
        with self._lock:
            self._rules["request"].append(_Rule(n, match, cut))

    def drop_replies(self, n: int = 1, match: bytes = b"", *, cut: bool = True) -> None:
        with self._lock:
            self._rules["reply"].append(_Rule(n, match, cut))

    def forward_all(self) -> None:
        """Forgets rules that did not strike yet."""
        with self._lock:
            self._rules = {"request": [], "reply": []}

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def refuse(self) -> None:
        _close_listener(self._listener)

    def accept(self) -> None:
        self._listener = self._listen(self.port)

    def cut(self) -> None:
        with self._lock:
            links = list(self._links)
        for link in links:
            link.reset()

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        _close_listener(self._listener)
        self.cut()

    def _rule_for(self, kind: str, chunk: bytes) -> _Rule | None:
        with self._lock:
            for rule in self._rules[kind]:
                if rule.left and rule.match in chunk:
                    rule.left -= 1
                    return rule
        return None

    def _forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One client connection and its server connection."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, server: socket.socket):
        self.proxy = proxy
        self.client = client
        self.server = server
        self._lose_reply: _Rule | None = None
        self._mute = False

    def start(self) -> None:
        for target in (self._requests, self._replies):
            threading.Thread(target=self._pump, args=(target,), name="proxy-pump", daemon=True).start()

    def reset(self) -> None:
        self.proxy._forget(self)
        _reset(self.client)
        _reset(self.server)

    def _pump(self, run) -> None:
        try:
            run()
        except OSError:
            pass
        finally:
            self.reset()

    def _requests(self) -> None:
        while chunk := self.client.recv(65536):
            self.proxy._flowing.wait()
            rule = self.proxy._rule_for("request", chunk)
            if rule:
                self.proxy.requests_dropped += 1
                if rule.cut:
                    return
                continue
            self._lose_reply = self._lose_reply or self.proxy._rule_for("reply", chunk)
            self.server.sendall(chunk)

    def _replies(self) -> None:
        while chunk := self.server.recv(65536):
            self.proxy._flowing.wait()
            rule, self._lose_reply = self._lose_reply, None
            if rule or self._mute:
                if rule:
                    self.proxy.replies_dropped += 1
                    if rule.cut:
                        return
                    self._mute = True  # what follows on this connection would answer the wrong request
                continue
            self.client.sendall(chunk)


def _close_listener(listener: socket.socket) -> None:
    # accept() in the other thread only returns when the socket is shut down first.
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _reset(conn: socket.socket) -> None:
    with contextlib.suppress(OSError):
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        conn.shutdown(socket.SHUT_RDWR)
    conn.close()
