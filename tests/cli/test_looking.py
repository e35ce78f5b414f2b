"""`status`, `list`, `release` and `doctor`."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import psycopg
import pytest

from tests.support.processes import wait_until


@pytest.fixture
def holder(lock):
    job = lock.start("--", "sh", "-c", "echo yes > ready; sleep 60", key="jobs/export")
    lock.file_written("ready")
    return job


def test_status_says_free_or_held(lock, holder):
    assert lock("status", "other").stdout == "other: free\n"
    held = lock("status", "jobs/export")
    assert held.returncode == 0
    assert f"pid={holder.pid}" in held.stdout
    assert str(lock.token("jobs/export")) in held.stdout
    record = json.loads(lock("status", "jobs/export", "--format", "json").stdout)
    assert record["held"] is True
    assert record["token"] == lock.token("jobs/export")
    assert 0 < record["remaining"] <= 30
    assert json.loads(lock("status", "other", "--format", "json").stdout) == {"key": "other", "held": False}


def test_status_of_a_key_in_its_minimum_hold(lock):
    lock.run("--min-hold", "60s", "--", "true")
    assert "released" in lock("status", "k").stdout
    assert json.loads(lock("status", "k", "--format", "json").stdout)["held"] is False


def test_list_as_table_and_as_json(lock, holder):
    lock.run("--min-hold", "60s", "--", "true", key="zeta\x1b[31m")
    table = lock("list").stdout.splitlines()
    assert table[0].split() == ["KEY", "TOKEN", "LEFT", "HOLDER"]
    assert table[1].startswith("jobs/export ")
    assert "\x1b" not in table[2]
    assert len(lock("list", "jobs/").stdout.splitlines()) == 2
    records = json.loads(lock("list", "--format", "json").stdout)
    assert [record["key"] for record in records] == ["jobs/export", "zeta\x1b[31m"]
    assert json.loads(lock("list", "none", "--format", "json").stdout) == []


def test_list_watch_goes_on_until_it_is_interrupted(lock, holder):
    watch = lock.spawn("list", "--watch", "--format", "json")
    first = json.loads(watch.stdout.readline())
    second = json.loads(watch.stdout.readline())
    assert [record["key"] for record in first + second] == ["jobs/export"] * 2
    watch.send_signal(signal.SIGINT)
    assert watch.wait(5) == 130


def test_list_watch_ends_when_nobody_reads(lock):
    watch = lock.spawn("list", "--watch", stdout=subprocess.PIPE)
    watch.stdout.readline()
    watch.stdout.close()
    assert watch.wait(10) == 0


def test_release_by_force_ends_the_holder(lock, holder):
    assert lock("release", "jobs/export").returncode == 2
    assert lock("release", "jobs/export", "--force").stdout == "jobs/export: released\n"
    assert lock("release", "jobs/export", "--force").stdout == "jobs/export: was free\n"
    assert lock.run("--", "true", key="jobs/export").returncode == 0
    assert holder.poll() is None or holder.returncode == 76


def test_a_holder_whose_key_was_released_by_force_is_told(lock):
    job = lock.start("--ttl", "1s", "--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    lock("release", "k", "--force")
    assert job.wait(10) == 76


@pytest.mark.parametrize("words", [("status", "k"), ("list",), ("release", "k", "--force"), ("doctor",)])
def test_a_store_that_cannot_be_used_is_69(lock, words):
    lock.file.mkdir()
    done = lock(*words)
    assert done.returncode == 69
    assert "is a folder" in done.stderr + done.stdout


def test_doctor_finds_a_working_store_and_system(lock):
    done = lock("doctor")
    assert done.returncode == 0, done.stdout
    levels = {line.split()[1].rstrip(":"): line.split()[0] for line in done.stdout.splitlines()}
    assert levels["lease"] == "ok"
    assert levels["file"] == "ok"
    assert "error" not in levels.values()
    assert lock("list").stdout.count("\n") == 1, "it left nothing behind"


def test_doctor_warns_of_a_file_that_everybody_may_write(lock):
    lock.run("--", "true")
    lock.file.chmod(0o666)
    findings = json.loads(lock("doctor", "--format", "json").stdout)
    assert [finding["level"] for finding in findings if finding["subject"] == "file"] == ["warning"]


def test_doctor_warns_of_a_redis_that_evicts_or_forgets(lock, new_valkey):
    server = new_valkey(options=["--maxmemory-policy", "allkeys-lru"])
    server.send("CONFIG", "SET", "requirepass", "opensesame")
    url = f"redis://:opensesame@127.0.0.1:{server.port}/0"
    done = lock("doctor", "--store", url, "--format", "json")
    levels = {finding["subject"]: (finding["level"], finding["text"]) for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert levels["lease"][0] == "ok"
    assert levels["eviction"][0] == "warning"
    assert "noeviction" in levels["eviction"][1]
    assert levels["persistence"][0] == "warning"
    assert "opensesame" not in done.stdout + done.stderr


def test_doctor_is_content_with_a_redis_set_up_for_leases(lock, new_valkey):
    server = new_valkey(durable=True, options=["--maxmemory-policy", "noeviction"])
    done = lock("doctor", "--store", server.url, "--format", "json")
    assert {
        finding["level"] for finding in json.loads(done.stdout) if finding["subject"] != "round trip"
    } == {"ok"}


def test_run_and_status_on_redis(lock, valkey, prefix):
    key = f"{prefix}job"
    job = lock.start(
        "--store", valkey.url, "--ttl", "3s", "--", "sh", "-c", "echo yes > ready; sleep 60", key=key
    )
    lock.file_written("ready")
    time.sleep(3.5)
    assert lock.run("--store", valkey.url, "--", "true", key=key).returncode == 75
    assert f"pid={job.pid}" in lock("status", key, "--store", valkey.url).stdout
    waiter = lock.start("--store", valkey.url, "--wait", "20s", "--", "echo", "second", key=key)
    time.sleep(3.0)  # it waits by then
    job.terminate()
    assert job.wait(10) == 143
    ended = time.monotonic()
    out, _ = waiter.communicate(timeout=10)
    assert (waiter.returncode, out) == (0, "second\n")
    assert time.monotonic() - ended < 3.0, "it was woken by the release"


def test_a_redis_that_goes_away_is_borne_until_the_leases_end(lock, new_valkey):
    server = new_valkey()
    job = lock.start("--store", server.url, "--ttl", "3s", "--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    server.pause()
    paused = time.monotonic()
    assert job.wait(20) == 76
    assert 1.0 < time.monotonic() - paused < 15.0
    lock.wait_gone()
    server.resume()
    wait_until(lambda: lock.run("--store", server.url, "--", "true").returncode == 0, 10, "the key")


def test_postgresql_needs_its_table_and_doctor_shows_how_to_make_it(lock, postgres, postgres_url):
    refused = lock.run("--store", postgres_url, "--", "true")
    assert refused.returncode == 69
    assert "doctor" in refused.stderr
    done = lock("doctor", "--store", postgres_url, "--format", "json")
    assert done.returncode == 69
    (table,) = [finding["text"] for finding in json.loads(done.stdout) if finding["subject"] == "table"]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(table.partition(": ")[2])
    content = lock("doctor", "--store", postgres_url, "--format", "json")
    assert content.returncode == 0, content.stdout
    assert {"server", "durability"} <= {finding["subject"] for finding in json.loads(content.stdout)}
    job = lock.start("--store", postgres_url, "--ttl", "3s", "--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    time.sleep(3.5)
    assert lock.run("--store", postgres_url, "--", "true").returncode == 75
    job.terminate()
    assert job.wait(10) == 143
    assert lock.run("--store", postgres_url, "--wait", "5s", "--", "env").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_run_on_redis_with_sentinel_and_in_a_cluster(lock, request, kind):
    if kind == "sentinel":
        server = request.getfixturevalue("new_sentinel")()
    else:
        server = request.getfixturevalue("valkey_cluster")
    key = f"{lock.mark} {{x}}"
    job = lock.start("--store", server.url, "--", "sh", "-c", "echo yes > ready; sleep 60", key=key)
    lock.file_written("ready", timeout=20)
    assert lock.run("--store", server.url, "--", "true", key=key).returncode == 75
    assert lock("list", lock.mark, "--store", server.url, "--format", "json").stdout.count(lock.mark) == 1
    job.terminate()
    assert job.wait(10) == 143
    assert lock.run("--store", server.url, "--", "true", key=key).returncode == 0
