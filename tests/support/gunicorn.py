"""A Flask (or any WSGI) application under a real gunicorn."""

from __future__ import annotations

import pathlib
import sys
import textwrap

from tests.support.processes import Server, environment

# Read by gunicorn from its working folder. "Booting worker" would come too early: the application may still fail to load.
CONFIG = """
def post_worker_init(worker):
    worker.log.info("Worker serves with pid: %s", worker.pid)
"""


class Gunicorn(Server):
    """gunicorn on a free port, serving `app` of the given source text.

    Args:
        folder: Folder for the application's file, the log and the server's files.
        source: Python source that defines `app`; its common indentation is removed.
        worker_class: `sync`, `gthread` or `gevent`.
        workers: Number of worker processes.
        threads: Threads of a gthread worker.
        options: Further gunicorn flags, such as `--preload` or `--timeout 2`.
        env: Variables on top of the inherited ones.
    """

    name = "gunicorn"

    def __init__(self, folder, source, *, worker_class="gthread", workers=1, threads=8, options=(), env=None):
        super().__init__(folder)
        self.source = textwrap.dedent(source)
        self.worker_class = worker_class
        self.workers = workers
        self.threads = threads
        self.options = list(options)
        self.env = env

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        (self.folder / "wsgi_app.py").write_text(self.source, encoding="utf-8")
        (self.folder / "gunicorn.conf.py").write_text(CONFIG, encoding="utf-8")

    def popen_options(self) -> dict:
        # gunicorn puts a control socket below HOME, and the default lock file of pyresil is there too
        return {"env": environment({"HOME": str(self.folder), **(self.env or {})})}

    def command(self) -> list[str]:
        threads = ["--threads", str(self.threads)] if self.worker_class == "gthread" else []
        return [
            sys.executable, "-m", "gunicorn", "wsgi_app:app", "--bind", f"127.0.0.1:{self.port}",
            "--worker-class", self.worker_class, "--workers", str(self.workers), *threads,
            "--graceful-timeout", "3", *self.options,
        ]  # fmt: skip

    def output(self) -> str:
        return pathlib.Path(self.log).read_text(encoding="utf-8", errors="replace")

    def worker_pids(self) -> list[int]:
        """Ids of the workers that came to serve, oldest first, also of those that are gone."""
        lines = [line for line in self.output().splitlines() if "Worker serves with pid" in line]
        return [int(line.rpartition(":")[2]) for line in lines]

    def ready(self) -> bool:
        return super().ready() and len(self.worker_pids()) >= self.workers
