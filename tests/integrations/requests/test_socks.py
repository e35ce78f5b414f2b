"""SOCKS proxies, where PySocks is installed."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest
import requests

from pyresil import CancelledError, CancelToken, Policy
from tests.support.misbehaving import relay
from tests.support.processes import wait_until

pytest.importorskip("socks", reason="PySocks is not installed")


@pytest.fixture
def proxy():
    """A SOCKS5 proxy; `proxy.silent = True` makes it say nothing."""

    class Proxy:
        silent = False
        over = threading.Event()

    found = Proxy()
    found.over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client):
        with contextlib.suppress(OSError), client:
            if found.silent:
                found.over.wait(20)
                return
            client.recv(256)
            client.sendall(b"\x05\x00")
            request = client.recv(256)
            host = socket.inet_ntoa(request[4:8])
            (port,) = struct.unpack("!H", request[8:10])
            with socket.create_connection((host, port)) as server:
                client.sendall(b"\x05\x00\x00\x01" + b"\x00" * 6)
                relay(client, server)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), name="socks", daemon=True).start()

    thread = threading.Thread(target=accept, name="socks")
    thread.start()
    found.url = f"socks5://127.0.0.1:{listener.getsockname()[1]}"
    yield found
    found.over.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "socks"], 10)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_calls_through_a_socks_proxy_are_bounded(session, proxy, upstream, watch, scheme):
    session.proxies = {"http": proxy.url, "https": proxy.url}
    assert session.get(upstream.url(scheme, "/ok"), timeout=5).text == "ok"
    with watch() as timer, pytest.raises(requests.Timeout):
        session.get(upstream.url(scheme, "/drip-length"), timeout=0.2)
    assert timer.took < 6
    token = CancelToken()
    threading.Timer(0.2, token.cancel).start()
    with watch() as timer, pytest.raises(CancelledError):
        Policy().options(cancel=token).call(session.get, upstream.url(scheme, "/hang"))
    assert timer.took < 6
    proxy.silent = True
    session.close()
    with watch() as timer, pytest.raises(requests.Timeout, match="while connecting"):
        session.get(upstream.url(scheme, "/ok"), timeout=0.2)
    assert timer.took < 6
