"""A workdir is held by one run; its JSON lines resume exactly."""

import concurrent.futures
import io
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check

from jaxnas import files
from jaxnas.training import preemption, progress, workdir
from jaxnas.training.store import JsonlWriter

ROOT = pathlib.Path(__file__).parents[2]

HOLD = """
import sys, time
from jaxnas.training import workdir
with workdir.open_workdir(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    path = tmp_path / "a" / "b"
    command, environment = [sys.executable, "-c", HOLD, str(path)], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            said = f"in use by another run (pid {holder.pid} on {os.uname().nodename})"
            check((lambda: workdir.open_workdir(path).__enter__(), workdir.WorkdirError, said))
        finally:
            holder.send_signal(signal.SIGKILL)
    for _ in range(2):
        with workdir.open_workdir(path) as held:
            assert held == path


def test_a_workdir_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    # A test may run as root, which may write anywhere: so the refusal is made here.
    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    def opened(path):
        return lambda: workdir.open_workdir(path).__enter__(), workdir.WorkdirError

    (tmp_path / "file").write_text("")
    check((*opened(tmp_path / "file" / "run"), "cannot write to the workdir"))
    monkeypatch.setattr(workdir.os, "open", refuse)
    check((*opened(tmp_path), "Permission denied"))


_record = st.tuples(st.integers(0, 2), st.floats(), st.text(max_size=5))


@settings(deadline=None, max_examples=50)
@given(records=st.lists(_record, max_size=12), resume=st.integers(0, 24), cut=st.integers(0, 200))
def test_a_resumed_file_equals_the_uninterrupted_one(records, resume, cut):
    steps = itertools.accumulate(more for more, *_ in records)
    records = [
        {"step": step, "loss": loss, "note": note}
        for step, (_, loss, note) in zip(steps, records, strict=True)
    ]

    def write(path, wanted, **options):
        writer = JsonlWriter(path, **options)
        for record in wanted:
            writer.write(record)

    with tempfile.TemporaryDirectory() as folder:
        whole, broken = pathlib.Path(folder, "whole.jsonl"), pathlib.Path(folder, "broken.jsonl")
        write(whole, records)
        content = whole.read_bytes() if records else b""
        # A run that was killed at any byte after the lines of step `resume` were written.
        sure = sum(len(line) for line in content.splitlines(True) if json.loads(line)["step"] <= resume)
        broken.write_bytes(content[: max(sure, len(content) - cut)])
        write(broken, [record for record in records if record["step"] > resume], resume=resume)
        assert broken.read_bytes() == content
        assert [r["step"] for r in files.read_lines(whole)] == [r["step"] for r in records]


def test_metrics_are_valid_json_whose_steps_never_decrease_and_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    writer = JsonlWriter(path)  # a file that starts empty
    check((lambda: writer.write({"index": 3}), ValueError, "'step'"))
    writer.write({"step": 3, "loss": jnp.float32(jnp.nan), "rate": np.inf})
    again = JsonlWriter(path, resume=3)
    check((lambda: again.write({"step": 2}), ValueError, "'step'"))
    assert path.read_text() == '{"step": 3, "loss": null, "rate": null}\n'
    for line in ("not json", "[1]", '{"loss": 1}', '{"step": null}', "3"):
        path.write_text(before := f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
        check((lambda: JsonlWriter(path, resume=5), ValueError, path.name))
        assert path.read_text() == before  # nothing is cut


def test_progress_is_plain_lines_now_and_then_and_on_a_terminal_one_line_that_is_written_again():
    def run(stream, **options):
        clock = iter(range(0, 1000, 4))
        with progress.Progress(6, stream=stream, clock=lambda: next(clock), **options) as shown:
            for step in range(1, 7):
                shown.update(step, {"loss": 1 / step})
        return stream.getvalue()

    lines = ["step 1/6  loss 1", "step 4/6  0.25/s  0:08 left  loss 0.25"]
    lines += ["step 6/6  0.25/s  0:00 left  loss 0.1667"]
    assert run(io.StringIO()).splitlines() == lines
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    text = run(terminal, label="train")
    assert text.count("\n") == 1 and text.endswith("\n")
    assert text.count("\r") == 6 and "\rtrain 6/6  0.25/s  0:00 left" in text
    # Steps without metrics have the last ones beside them.
    stream = io.StringIO()
    with progress.Progress(3, stream=stream, every=0) as shown:
        shown.update(1, {"loss": 2.0})
        shown.update(2)
    assert stream.getvalue().splitlines()[-1].endswith("loss 2")
    # Until the first step it says what is waited for.
    stream = io.StringIO()
    with progress.Progress(6, stream=stream, every=0.01) as shown:
        deadline = time.monotonic() + 60
        while stream.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        shown.update(1)
    first, *_, last = stream.getvalue().splitlines()
    assert first == "step 0/6  compiling, 0:00 so far" and last == "step 1/6"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop_and_a_second_one_acts_as_before(number):
    seen = []
    before = signal.signal(number, lambda *_: seen.append(True))
    try:
        with preemption.stop_on_signals() as stop:
            assert not stop.requested
            signal.raise_signal(number)
            assert stop.requested and not seen
            signal.raise_signal(number)
            assert seen == [True]
        signal.raise_signal(number)
        assert len(seen) == 2
    finally:
        signal.signal(number, before)


def test_a_workdir_in_a_bucket_is_held_by_one_run(bucket, store, monkeypatch):
    """Created and removed as an object of its name; one of a killed run is named, with what to remove."""
    for run in ("gs://bucket/run", "gs://bucket/run#1", "gs://bucket/run%201"):
        lock = f"{run.removeprefix('gs://')}/.lock"

        def enter(run=run):
            return workdir.open_workdir(run).__enter__()

        with workdir.open_workdir(run) as held:
            assert str(held) == run and f"pid {os.getpid()} on " in bucket[lock][0].decode()
            check((enter, workdir.WorkdirError, run, str(os.getpid()), f"remove {run}/.lock"))
        assert lock not in bucket
        store.put(lock, b"pid 7 on lost")
        check((enter, workdir.WorkdirError, "pid 7 on lost", f"remove {run}/.lock"))
        store.put(lock, f"pid 2000000000 on {os.uname().nodename}".encode())
        with workdir.open_workdir(run):  # of a killed process of this machine
            assert f"pid {os.getpid()} on " in bucket[lock][0].decode()
    monkeypatch.setattr(store, "put", lambda *_: 1 / 0)
    monkeypatch.setattr(workdir, "ANSWER", 0.5)
    check((lambda: workdir.open_workdir("gs://bucket/run").__enter__(), workdir.WorkdirError, "bucket/run"))


def test_of_many_that_want_a_bucket_one_gets_it(bucket):
    outcomes, done = [], threading.Event()

    def want(_):
        try:
            with workdir.open_workdir("gs://bucket/run"):
                outcomes.append("held")
                done.wait(30)
        except workdir.WorkdirError:
            outcomes.append("refused")
        if outcomes.count("refused") == 5:
            done.set()

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        list(threads.map(want, range(6)))
    assert sorted(outcomes) == ["held", *["refused"] * 5]
