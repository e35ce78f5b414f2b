"""What the command refuses: one line on standard error that says what to do, the documented status, nothing run."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time

import pytest

from tests.support.command import COMMAND
from tests.support.processes import ROOT, run_python

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount or become another user")


def refused(lock, done, status, *words):
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("pyresil-lock: ")
    for word in words:
        assert word in done.stderr
    assert not (lock.folder / "ran").exists()


RAN = ("--", "touch", "ran")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name a command"),
        (("nonsense",), "'nonsense'"),
        (("run",), "--"),
        (("run", "--key", "k"), "put -- before the command"),
        (("run", "--key", "k", "touch", "ran"), "put -- before the command"),
        (("run", "--key", "k", "--"), "name the command to run after --"),
        (("run", "--key", "k", "--", ""), "name the command to run after --"),
        (("run", *RAN), "--key is missing"),
        (("run", "--key", "", *RAN), "--key must be a string of 1 to 500"),
        (("run", "--key", "k" * 501, *RAN), "--key must be a string of 1 to 500"),
        (("run", "--key", b"\xff", *RAN), "surrogates"),
        (("run", "--key", "k", "--tt", "3s", *RAN), "--tt"),
        (("run", "--key", "k", "--wait", "soon", *RAN), "--wait must be a duration"),
        (("run", "--key", "k", "--wait", "1e9d", *RAN), "'1e9d'"),
        (("run", "--key", "k", "--wait=-1s", *RAN), "'-1s'"),
        (("run", "--key", "k", "--timeout", "0", *RAN), "--timeout must be above 0"),
        (("run", "--key", "k", "--max-hold", "0s", *RAN), "--max-hold must be above 0"),
        (("run", "--key", "k", "--busy-exit", "256", *RAN), "--busy-exit must be an exit status"),
        (("run", "--key", "k", "--lost-exit", "-1", *RAN), "--lost-exit"),
        (("run", "--key", "k", "--busy-exit", "1", "--busy-ok", *RAN), "exclude each other"),
        (("run", "--key", "k", "--quiet", "--verbose", *RAN), "exclude each other"),
        (("run", "--key", "k", "--log-format", "xml", *RAN), "'xml'"),
        (("run", "--key", "k", "--store", "ftp://host/x", *RAN), "'ftp'"),
        (("run", "--key", "k", "--store", "nonsense", *RAN), "scheme"),
        (("run", "--key", "k", "--store", "", *RAN), "scheme"),
        (("run", "--key", "k", "--store", "memory:", *RAN), "exclude nobody"),
        (("run", "--key", "k", "--store", "sqlite://", *RAN), "sqlite"),
        (("run", "--key", "k", "--store", "postgresql://h:70000/db", *RAN), "port must be"),
        (("run", "--key", "k", "--store", "postgresql://h/db?sslmode=of", *RAN), "sslmode must be"),
        (("status",), "KEY"),
        (("status", ""), "KEY must be"),
        (("status", "k" * 501), "KEY must be"),
        (("list", "k" * 501), "PREFIX must be"),
        (("list", "--format", "xml"), "'xml'"),
        (("release", "k"), "--force"),
        (("release", "--force"), "KEY"),
    ],
)
def test_a_wrong_command_line_is_2_and_says_what_to_do(lock, words, says):
    done = subprocess.run(
        [*COMMAND, *words],
        env=lock.env(),
        cwd=lock.folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    refused(lock, done, 2, says)


def test_all_faults_stand_in_one_line(lock):
    done = lock("run", "--ttl", "abc", "--wait", "x", "--busy-exit", "y", "--", "touch", "ran")
    refused(lock, done, 2, "--ttl", "'abc'", "--wait", "'x'", "--busy-exit", "'y'", "--key is missing")


def test_what_a_terminal_would_obey_is_escaped(lock):
    done = lock("run", "--key", "k", "--ttl", "\x1b[31m\n", "--", "touch", "ran")
    refused(lock, done, 2, "--ttl")
    assert "\x1b" not in done.stderr


def test_a_database_that_is_a_folder(lock):
    lock.file.mkdir()
    refused(lock, lock.run(*RAN), 69, "is a folder")


def test_a_corrupt_database(lock):
    lock.file.write_bytes(b"not a database, " * 100)
    refused(lock, lock.run(*RAN), 69, "no SQLite database")
    assert lock.file.read_bytes() == b"not a database, " * 100


def test_another_applications_database(lock):
    with sqlite3.connect(lock.file) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    refused(lock, lock.run(*RAN), 69, "another application's")


def test_another_versions_table(lock):
    assert lock.run("--", "true").returncode == 0
    with sqlite3.connect(lock.file) as db:
        db.execute("ALTER TABLE pyresil_locks ADD COLUMN more TEXT")
    db.close()
    refused(lock, lock.run(*RAN), 69, "another version's")


def test_a_folder_that_cannot_be_made(lock):
    (lock.folder / "file").write_text("x", encoding="utf-8")
    done = lock.run("--store", f"sqlite:///{lock.folder}/file/locks.db", *RAN)
    refused(lock, done, 69)


@pytest.mark.slow
def test_a_database_whose_write_lock_is_never_free(lock):
    assert lock.run("--", "true").returncode == 0
    db = sqlite3.connect(lock.file, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    refused(lock, lock.run(*RAN), 69, "busy")
    assert time.monotonic() - began < 12
    db.close()


@needs_root
def test_a_full_disk(lock):
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    script = (
        "mount -t tmpfs -o size=16k none full && head -c 16384 /dev/zero > full/fill; "
        f"exec {' '.join(COMMAND)} run --key k --store sqlite:///{lock.folder}/full/locks.db -- touch ran"
    )
    (lock.folder / "full").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script + " 2> err"],
        env=lock.env(), cwd=lock.folder, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if not (lock.folder / "err").exists():
        pytest.skip(f"no mount here: {done.stderr}")
    done.stderr = (lock.folder / "err").read_text(encoding="utf-8")
    refused(lock, done, 69)


@needs_root
def test_a_read_only_folder(lock):
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    script = (
        "mount -t tmpfs -o size=1m none ro && mount -o remount,ro ro; "
        f"exec {' '.join(COMMAND)} run --key k --store sqlite:///{lock.folder}/ro/locks.db -- touch ran 2> err"
    )
    (lock.folder / "ro").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=lock.env(), cwd=lock.folder, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if not (lock.folder / "err").exists():
        pytest.skip(f"no mount here: {done.stderr}")
    done.stderr = (lock.folder / "err").read_text(encoding="utf-8")
    refused(lock, done, 69, "cannot be created")


URLS = [
    "redis://user:se%63ret@127.0.0.1:{port}/0",
    "redis+sentinel://user:se%63ret@127.0.0.1:{port}/main/0",
    "redis+cluster://user:se%63ret@127.0.0.1:{port}",
    "postgresql://user:se%63ret@127.0.0.1:{port}/none",
    "postgresql://127.0.0.1:{port}/none?user=user&password=se%63ret",
]


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True], ids=["refuses", "hangs"])
def test_a_server_that_is_not_there_or_never_answers(lock, answers):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if answers:
            listener.listen(20)
        port = listener.getsockname()[1]
        began = time.monotonic()
        jobs = [lock.start("--store", url.format(port=port), *RAN) for url in URLS]
        for url, job in zip(URLS, jobs, strict=True):
            _, errors = job.communicate(timeout=40)
            refused(lock, subprocess.CompletedProcess(url, job.returncode, "", errors), 69)
            assert "secret" not in errors
            assert "se%63ret" not in errors
        assert time.monotonic() - began < 30


def test_closed_standard_streams_do_not_end_up_as_the_database(lock):
    script = 'exec "$@" <&- >&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "run", "--key", "k", "--", "sh", "-c", "echo x; echo y >&2; echo ran > ran"],
        env=lock.env(), cwd=lock.folder, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert (lock.folder / "ran").read_text(encoding="utf-8") == "ran\n"
    assert lock.run("--", "true").returncode == 0


def test_an_empty_environment_uses_the_users_own_file(lock):
    home = lock.folder / "home"
    home.mkdir()
    env = {"HOME": str(home), "PYTHONPATH": lock.env()["PYTHONPATH"], "XDG_STATE_HOME": str(home / "state")}
    done = subprocess.run(
        [*COMMAND, "run", "--key", "k", "--", "/bin/echo", "ran"],
        env=env,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    file = home / "state" / "pyresil" / "locks.db"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_working_folder_that_was_deleted(lock):
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "run", "--key", "k", "--", "/bin/echo", "ran"],
        env=lock.env(), cwd=lock.folder, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


@pytest.fixture
def nobody(lock, tmp_path_factory):
    """Runs the command as nobody, on a copy of the source that everybody can read."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pyresil-nobody-"))
    folder.chmod(0o755)
    shutil.copytree(ROOT / "pyresil", folder / "pyresil", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "home").mkdir()
    os.chown(folder / "home", 65534, 65534)
    check = "import sys, sqlite3; sys.exit(sys.version_info < (3, 11))"

    def usable(python):
        try:
            return (
                subprocess.run([python, "-c", check], user=65534, group=65534, extra_groups=[], cwd="/", check=False)
                .returncode == 0
            )  # fmt: skip
        except OSError:
            return False

    pythons = [python for python in (sys.executable, "/usr/bin/python3") if usable(python)]
    if not pythons:
        pytest.skip("no Python that nobody may run")

    def run(*words, env=None, **options):
        return subprocess.run(
            [pythons[0], "-m", "pyresil.cli", *words],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HOME": str(folder / "home"),
                 "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
            user=65534, group=65534, extra_groups=[], cwd=options.pop("cwd", folder / "home"),
            capture_output=True, text=True, timeout=30, check=False, **options,
        )  # fmt: skip

    run.folder = folder
    yield run
    shutil.rmtree(folder)


def test_another_user_has_a_default_file_of_its_own(nobody):
    done = nobody("run", "--key", "k", "--", "id", "-u")
    assert (done.returncode, done.stdout) == (0, "65534\n"), done.stderr
    assert (nobody.folder / "home/.local/state/pyresil/locks.db").exists()


def test_a_home_that_cannot_be_written(lock, nobody):
    (nobody.folder / "home").chmod(0o555)
    os.chown(nobody.folder / "home", 0, 0)
    done = nobody("run", "--key", "k", "--", "touch", str(lock.folder / "ran"))
    refused(lock, done, 69, "cannot be created", "this user")


def test_a_database_of_another_user(lock, nobody):
    theirs = nobody.folder / "theirs"
    theirs.mkdir()
    done = lock.run("--store", f"sqlite:///{theirs}/locks.db", "--", "true")
    assert done.returncode == 0
    done = nobody(
        "run",
        "--key",
        "k",
        "--store",
        f"sqlite:///{theirs}/locks.db",
        "--",
        "touch",
        str(lock.folder / "ran"),
    )
    refused(lock, done, 69)


def test_a_user_without_a_home(lock, nobody):
    done = nobody(
        "run", "--key", "k", "--", "touch", str(lock.folder / "ran"), env={"HOME": "relative"}, cwd="/"
    )
    refused(lock, done, 2, "PYRESIL_STORE", "XDG_STATE_HOME")
    assert nobody("status", "k", env={"HOME": "relative"}).returncode == 2


def test_an_environment_with_a_nameless_variable(lock):
    code = """
        import ctypes, os, sys
        words = [os.fsencode(word) for word in sys.argv[1:]]
        found = [b"=nameless", *(name + b"=" + value for name, value in os.environb.items())]
        array = lambda items: (ctypes.c_char_p * (len(items) + 1))(*items, None)
        ctypes.CDLL(None).execve(words[0], array(words), array(found))
    """
    words = [*COMMAND, "run", "--key", "k", "--", "sh", "-c", "exit 3"]
    done = run_python(code, *words, env=lock.env(), check=False)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("files", [8, 10])
def test_a_process_that_may_open_hardly_a_file(lock, files):
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$0" "$@"', *COMMAND]
    lock.command = tuple(limited)
    refused(lock, lock.run(*RAN), 126, "Too many open files")
