"""The how-to pages: what they show is run, or checked by the tool that it is for."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.support.command import COMMAND
from tests.support.processes import ROOT, children_of, state_of, wait_until

PAGES = ROOT / "docs" / "how-to"


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    text = (PAGES / page).read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no {language}"
    return found


def crontab_lines():
    for block in blocks("crontab.md", "crontab"):
        settings = {}
        for line in block.splitlines():
            if re.match(r"^\w+=", line):
                name, _, value = line.partition("=")
                settings[name] = value
            else:
                yield settings, line


@pytest.mark.parametrize(("settings", "line"), list(crontab_lines()), ids=lambda value: str(value)[-30:])
def test_crontab_lines_run_as_cron_runs_them(lock, valkey, settings, line):
    fields = line.split(None, 5)
    assert all(re.fullmatch(r"[\d*/,-]+", field) for field in fields[:5])
    assert "%" not in fields[5], "cron makes a line end of it"
    for name in re.findall(r"\./(\w+\.sh)", line):
        script = lock.folder / name
        script.write_text("#!/bin/sh\necho ran >> ran\n", encoding="utf-8")
        script.chmod(0o755)
    env = {"HOME": str(lock.folder), "PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(lock.folder)}
    env |= {**settings, "PYTHONPATH": str(ROOT)}
    if "PYRESIL_STORE" in settings:
        assert settings["PYRESIL_STORE"].startswith("redis://")
        env["PYRESIL_STORE"] = valkey.url
    command = fields[5].replace("/srv/app/bin/pyresil-lock", " ".join(COMMAND))
    key = re.search(r"--key (\w+)", command)[1]
    command = command.replace(f"--key {key}", f"--key {key}-{lock.mark}")
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=env, cwd=lock.folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (lock.folder / "ran").read_text(encoding="utf-8") == "ran\n"


def units():
    found = {}
    for block in blocks("systemd-timer.md", "ini"):
        first, _, rest = block.partition("\n")
        found[first.rpartition("/")[2]] = rest
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path):
    (tmp_path / "program").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "program").chmod(0o755)
    names = []
    for name, text in units().items():
        # The programs of the page are not here.
        text = re.sub(r"/srv/app/[\w./-]+", str(tmp_path / "program"), text)
        (tmp_path / name).write_text(text, encoding="utf-8")
        names.append(str(tmp_path / name))
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
    ours = [
        line
        for line in done.stderr.splitlines()
        if str(tmp_path) in line or re.search(r"export|scheduler", line)
    ]
    assert ours == []


def test_systemd_units_start_what_we_understand():
    for name, text in units().items():
        for line in re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE):
            understood(line.split(), name)


def understood(words, where):
    """Reads a command line as the command would."""
    from pyresil.cli import _text
    from pyresil.cli._options import read_settings

    command = {"run": _text.RUN, "lead": _text.LEAD}[words[1]]
    assert words[0].endswith("pyresil-lock"), where
    return read_settings(command, words[2:])


def test_the_kubernetes_manifest_starts_what_we_understand():
    (manifest,) = blocks("kubernetes-cronjob.md", "yaml")
    listed = re.search(r"command:\n((?: +- \S+\n)+)", manifest)[1]
    settings = understood(re.findall(r"- (\S+)\n", listed), "manifest")
    assert settings.command == ["./export.sh"]
    assert settings.grace < int(re.search(r"terminationGracePeriodSeconds: (\d+)", manifest)[1])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kubectl_reads_the_kubernetes_manifest(tmp_path):
    (manifest,) = blocks("kubernetes-cronjob.md", "yaml")
    (tmp_path / "cronjob.yaml").write_text(manifest, encoding="utf-8")
    (tmp_path / "kustomization.yaml").write_text("resources: [cronjob.yaml]\n", encoding="utf-8")
    done = subprocess.run(
        ["kubectl", "kustomize", tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "kind: CronJob" in done.stdout


def test_the_dockerfile_has_the_exec_form_and_starts_what_we_understand():
    (text,) = blocks("docker.md", "dockerfile")
    words = []
    for instruction in ("ENTRYPOINT", "CMD"):
        words += json.loads(re.search(rf"^{instruction} (.*)$", text, re.MULTILINE)[1])
    assert understood(words, "Dockerfile").command == ["/srv/export.sh"]


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker")
def test_docker_accepts_the_dockerfile(tmp_path):
    (text,) = blocks("docker.md", "dockerfile")
    if subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("no Docker daemon answers")
    (tmp_path / "Dockerfile").write_text(text, encoding="utf-8")
    (tmp_path / "export.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    done = subprocess.run(
        ["docker", "build", "--check", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_as_the_first_process_of_a_container_it_obeys_term_and_leaves_nothing(lock):
    script = "setsid sleep 60 & (sleep 0.1 &) ; echo yes > ready; sleep 60"
    job = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *COMMAND, "run", "--key", "k", "--", "sh", "-c", script],
        env=lock.env(), cwd=lock.folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lock.started.append(job)
    try:
        lock.file_written("ready", timeout=5)
    except AssertionError:
        pytest.skip("no process namespaces here")
    (first,) = [pid for pid in lock.processes() if _is_first(pid)]
    # Somebody else's process in the container (`docker exec`) leaves an orphan.
    subprocess.run(
        ["nsenter", f"--target={first}", "--pid", "sh", "-c", "(sleep 0.1 &)"], check=True, timeout=10
    )
    time.sleep(0.5)
    wait_until(lambda: not any(state_of(pid) == "Z" for pid in children_of(first)), 10, "the reaping")
    os.kill(first, signal.SIGTERM)
    assert job.wait(10) == 143
    lock.wait_gone()
    assert lock.token() is None


def _is_first(pid):
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:  # it ended meanwhile
        return False
    ids = re.search(r"^NSpid:\s+(.*)$", status, re.MULTILINE)[1].split()
    return len(ids) > 1 and ids[-1] == "1"
