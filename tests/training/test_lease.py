"""A lock in an object store is held by one process, which has to be alive to keep it."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxnas.training import WorkdirError, lease, open_workdir

ROOT = pathlib.Path(__file__).parents[2]
RUN, LOCK = "gs://bucket/run", "gs://bucket/run/.lock"

HOLD = """
import time
from jaxnas.training import lease
lease.RENEW = 0.1
with lease.hold("gs://bucket/run/.lock", "pid 7 on there"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lease, "RENEW", 0.1)
    monkeypatch.setattr(lease, "LEASE", 4)
    # The process of the tests must not end if its renewing thread has to wait for that long.
    monkeypatch.setattr(lease.os, "_exit", pytest.fail)


def said(bucket):
    return json.loads(bucket["bucket/run/.lock"][0])


def test_a_lock_lies_where_its_name_says(bucket):
    for name in ("run#1", "run%201", "run?1"):
        with lease.hold(f"gs://bucket/{name}/.lock", "pid 1 on here"):
            assert f"bucket/{name}/.lock" in bucket


def test_a_workdir_in_a_bucket_is_held_by_one_run_and_given_back(bucket, caplog):
    with open_workdir(RUN) as root:
        first = bucket["bucket/run/.lock"]
        assert str(root) == RUN and said(bucket)["held"]
        refused = rf"gs://bucket/run is in use by another run \(pid {os.getpid()} on .*, which took it \d "
        with pytest.raises(WorkdirError, match=refused + "seconds ago and renewed it"), open_workdir(RUN):
            pass
        assert bucket["bucket/run/.lock"][1] > first[1]  # It was renewed.
        caplog.clear()
    assert not said(bucket)["held"] and f"pid {os.getpid()} on " in said(bucket)["holder"]
    with pytest.raises(ZeroDivisionError), open_workdir(RUN):
        raise ZeroDivisionError
    assert not said(bucket)["held"] and not caplog.text  # Nobody had to wait.


@pytest.mark.parametrize(
    "left", [None, {"held": False}, {"held": True, "holder": "pid 1 on lost"}, "pid 1 on old", "[1]"]
)
def test_of_many_that_want_a_lock_one_gets_it(bucket, store, left):
    """Where there is none, one that was given back, one of a killed run, or a file of something else."""
    if left is not None:
        store.put("bucket/run/.lock", (json.dumps(left) if isinstance(left, dict) else left).encode())
    held, refused, done = [], [], threading.Event()

    def want(number):
        try:
            with lease.hold(LOCK, f"number {number}"):
                held.append(number)
                done.wait(30)
        except BlockingIOError as error:
            refused.append(str(error))
        if len(refused) == 5:
            done.set()

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        list(threads.map(want, range(6)))
    assert len(held) == 1 and len(refused) == 5
    assert all(message.startswith(f"number {held[0]}, which took it") for message in refused)


def test_one_that_was_killed_is_followed_and_one_that_comes_back_is_ended(bucket, store, caplog):
    """To others a suspended process is a killed one; when it goes on, it must not write any more."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLD]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, env=environment, **pipes) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(BlockingIOError, match="pid 7 on there"), lease.hold(LOCK, "me"):
                pass
            holder.send_signal(signal.SIGSTOP)
            started = time.monotonic()
            with lease.hold(LOCK, "me"):
                assert time.monotonic() - started >= lease.LEASE
                assert "is held by pid 7 on there" in caplog.text and "remove this file" in caplog.text
                assert said(bucket)["holder"] == "me"
                holder.send_signal(signal.SIGCONT)
                assert holder.wait(30) == 1
                assert b"was taken over by another run or removed" in holder.stderr.read()
                assert said(bucket)["holder"] == "me"
        finally:
            holder.kill()


def test_a_lock_that_is_removed_is_free_and_its_holder_ends(bucket, monkeypatch, capsys):
    ended = threading.Event()
    monkeypatch.setattr(lease.os, "_exit", lambda status: ended.set())
    with lease.hold(LOCK, "first"):
        del bucket["bucket/run/.lock"]
        with lease.hold(LOCK, "second"):
            assert ended.wait(10) and "This one ends here" in capsys.readouterr().err
            assert said(bucket)["holder"] == "second"
    assert said(bucket)["holder"] == "second" and not said(bucket)["held"]


def test_an_answer_that_was_lost_is_no_other_holder(bucket, monkeypatch):
    """The store has written the lock, and the holder was told that it failed."""
    lock = lease._Lock(LOCK, "me")
    lock.take()
    before = lock.generation
    assert lock.write()
    lock.generation = before
    assert lock.write() and lock.write(held=False) and not said(bucket)["held"]


def test_a_store_that_fails_is_said_and_a_renewal_is_tried_again(bucket, store, monkeypatch, caplog):
    with pytest.raises(WorkdirError, match="bucket/run"):
        with monkeypatch.context() as patch:
            patch.setattr(store, "put", lambda *_: 1 / 0)
            patch.setattr(lease, "ANSWER", 0.5)
            with open_workdir(RUN):
                pass
    with lease.hold(LOCK, "me"):
        with monkeypatch.context() as patch:
            patch.setattr(lease, "ANSWER", 0.0)
            until(lambda: "This is tried again" in caplog.text)
        _, generation = bucket["bucket/run/.lock"]
        until(lambda: bucket["bucket/run/.lock"][1] > generation)


def until(condition):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 30
        time.sleep(0.05)
