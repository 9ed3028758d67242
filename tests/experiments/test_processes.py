"""Runs of several processes: the same weights, history and result as one process, killed and resumed."""

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import in_process
import jax
import numpy as np
import ports
import pytest
import refusals
import tiers
from jax.experimental import multihost_utils
from small_nets import difference

from jaxnas import files, processes
from jaxnas.experiments import session
from jaxnas.experiments.configs import CONFIGS
from jaxnas.training.store import Store
from jaxnas.training.workdir import open_workdir
from tools.drill.contents import arrays

ROOT = pathlib.Path(__file__).parents[2]
SLOWER = ("--set", "training.checkpoint_every=4")
CONFIG = """
import sklearn.datasets
from small_tasks import Perceptron

from jaxnas.experiments import Config
from jaxnas import Choice, Space, data, runs, search, tasks, training

images, labels = sklearn.datasets.load_digits(return_X_y=True)
space = Space(hidden=Choice(8, 16, 32).repeat(3))
CONFIG = Config(
    name="small",
    task=tasks.Images(data=data.from_arrays(images.reshape(-1, 8, 8) / 16, labels)),
    network=Perceptron(space, classes=10),
    training=training.Training(steps=40, batch_size=32, learning_rate=1e-2, log_every=5, checkpoint_every=10),
    search=runs.Search(runs.ByStrategy(search.Evolution(space, evaluations=8, population=4, parents=2,
                                                        mutations=2, crossovers=2)), most_share=0.8),
)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "small.py"
    path.write_text(CONFIG)
    return path


def start(binary, config, workdir, number, *more, devices=4, last=()):
    """Starts the processes of a run, which have `devices` devices together; the last one gets `last` too."""
    command = [sys.executable, "-m", f"experiments.{binary}", f"--config={config}", f"--workdir={workdir}"]
    flags = ["--xla_backend_optimization_level=0"]
    flags.append(f"--xla_force_host_platform_device_count={devices // number}")
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    environment = os.environ | {"XLA_FLAGS": " ".join(flags), "PYTHONPATH": str(ROOT / "tests")}
    together = [f"--coordinator={ports.free()}", f"--processes={number}"] if number > 1 else []
    started = []
    for index in range(number):
        own = [*together, f"--process={index}"] if together else []
        own += last if index == number - 1 else ()
        started.append(subprocess.Popen([*command, *more, *own], cwd=ROOT, env=environment, **pipes))
    return started


def finish(started, codes=0):
    outputs = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [codes] * len(started), "\n---\n".join(outputs)
    return outputs


@pytest.fixture(scope="module")
def alone(config, tmp_path_factory):
    """A run of this process with one device."""
    workdir = tmp_path_factory.mktemp("alone")
    for binary in ("train_supernet", "search"):
        in_process.main(binary, f"--config={config}", f"--workdir={workdir}")
    return workdir


def weights(workdir):
    """The parameters of the last checkpoint, by name."""
    steps = [int(step.name) for step in (workdir / "checkpoints").iterdir() if step.name.isdigit()]
    return arrays(workdir / "checkpoints" / str(max(steps)))["variables"]["params"]


def check_same(workdir, alone):
    """Equal but for the order of sums, which differs between CPUs.

    Adam makes more of it in the weights, for it divides gradients by their size: losses that differ by one
    part in ten million were seen beside weights that differ by 1.4 parts in 100,000.
    """
    worst = difference(weights(workdir), weights(alone))
    assert worst <= 1e-4, worst
    for name, tolerance in (("metrics.jsonl", dict(rtol=1e-5)), ("search/history.jsonl", dict(atol=1e-6))):
        lines = [files.read_lines(path / name) for path in (workdir, alone)]
        numbers = [[line.get("loss", line.get("score", 0.0)) for line in one] for one in lines]
        np.testing.assert_allclose(*numbers, **tolerance)
        archs = [[line.get("architecture") for line in one] for one in lines]
        assert archs[0] == archs[1]
    found = [files.read_json(path / "result.json")["found"]["architecture"] for path in (workdir, alone)]
    assert found[0] == found[1]
    assert (workdir / "report.html").is_file() and (workdir / "subnet").is_dir()


@pytest.mark.parametrize(
    "number, more",
    [
        (2, ("--set", "training.model_devices=2")),
        *tiers.nightly((2, ()), (4, ("--set", "training.model_devices=4"))),
    ],
)
def test_several_processes_are_one(config, alone, tmp_path, number, more):
    for binary in ("train_supernet", "search"):
        first, *others = finish(start(binary, config, tmp_path, number, *more))
        assert "Time:" in first and not any("Time:" in one for one in others)
    check_same(tmp_path, alone)


def wait_for(path, started):
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline and all(process.poll() is None for process in started)
        time.sleep(0.02)


def lose(index, config, workdir):
    """Kills one of two processes, and checks how the other one ends."""
    started = start("train_supernet", config, workdir, 2, *SLOWER)
    wait_for(workdir / "checkpoints" / "8", started)
    started[index].kill()
    started[index].communicate()
    output, _ = started[1 - index].communicate(timeout=90)
    # A collective fails at once, or JAX notices that there is no sign of the process, and ends the other one.
    assert started[1 - index].returncode == 1, output
    assert re.search("error: .*another process of this run is gone.*tart all again", output), output


@pytest.mark.nightly
def test_the_process_that_the_others_go_by_may_be_lost_too(config, alone, tmp_path):
    lose(0, config, tmp_path)
    for binary in ("train_supernet", "search"):
        finish(start(binary, config, tmp_path, 1))
    check_same(tmp_path, alone)


@pytest.mark.nightly
def test_a_run_goes_on_with_another_number_of_processes(config, alone, tmp_path):
    """One process is killed, and the others end; then one is asked to stop, and all stop and save."""
    lose(1, config, tmp_path)
    started = start("train_supernet", config, tmp_path, 4, *SLOWER)
    wait_for(tmp_path / "checkpoints" / "20", started)
    started[2].send_signal(signal.SIGTERM)
    assert "stopped and saved" in finish(started, 143)[0]
    finish(start("train_supernet", config, tmp_path, 1, *SLOWER))
    finish(start("search", config, tmp_path, 2))
    check_same(tmp_path, alone)


@pytest.mark.nightly
def test_processes_of_other_configs_or_workdirs_are_refused_before_they_train(config, tmp_path):
    for number, (last, message) in enumerate(
        (
            (("--set", "training.steps=41"), "process 1: training.steps: 40 (process 0) / 41 (process 1)"),
            ((f"--workdir={tmp_path / 'own'}",), "1 of 2 do not see"),
        )
    ):
        workdir = tmp_path / str(number)
        for output in finish(start("train_supernet", config, workdir, 2, last=last), 2):
            assert message in output
        assert not any((workdir / name).exists() for name in ("config.json", "checkpoints"))


def test_what_another_process_has_or_sees_differently_is_named_where_runs_begin(tmp_path, monkeypatch):
    """As the second of two processes says that it does not see a folder, or trains for other steps."""

    def both(here):
        here = np.asarray(here)
        if here.dtype == bool:
            return np.stack([here, np.bool_(False)])
        other = here.tobytes().replace(b'"steps": 1200', b'"steps": 1201')
        return np.stack([here, np.frombuffer(other, here.dtype).reshape(here.shape)])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    told = dict(broadcast_one_to_all=lambda x: x, sync_global_devices=lambda name: None)
    for name, function in told.items() | {("process_allgather", both)}:
        monkeypatch.setattr(multihost_utils, name, function)

    def opened(door, *more):
        return lambda: door(tmp_path, *more).__enter__(), FileNotFoundError, "1 of 2", str(tmp_path)

    named = "process 1: training.steps: 1200 (process 0) / 1201 (process 1)"
    begun = lambda: session.make_session(CONFIGS["autoformer_digits"], None)  # noqa: E731
    refusals.check(opened(open_workdir), opened(Store, {}, ()), (begun, processes.ProcessesDisagree, named))


JOINED = """
import os, signal, sys, time
from absl import flags
from jaxnas.experiments import binary
from jaxnas import processes
binary.define_flags({})
flags.FLAGS(sys.argv)
for trains in (True, False):
    try:
        binary.read_config({}, trains=trains)
    except ValueError as error:
        assert "--workdir is missing" in str(error)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    print("goes on", flush=True)
    processes.start = lambda *_: None  # a process joins a run once
"""


def test_sigterm_leaves_a_training_time_and_ends_at_once_what_has_nothing_to_save():
    """JAX takes SIGTERM in processes that are a run together, and a search would never ask for it."""
    joined = [f"--coordinator={ports.free()}", "--processes=1", "--process=0"]
    done = subprocess.run([sys.executable, "-c", JOINED, *joined], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("goes on\n", -signal.SIGTERM), done.stderr


def test_what_cannot_be_a_run_is_refused():
    refusals.check(
        (lambda: processes.start("localhost:1", 2, None), ValueError, "all three"),
        (lambda: processes.start("localhost:1", 2, 2), ValueError, "process", "2", "0 to 1"),
    )


def gathered(*indices, count):
    """What each process that comes with an index is told: None, or the type of its error."""

    def come(index):
        try:
            return processes.gather(address, count, index)
        except (ValueError, OSError) as error:
            return type(error), str(error)

    address = ports.free()
    with concurrent.futures.ThreadPoolExecutor(len(indices)) as pool:
        return list(pool.map(come, indices))


def test_processes_that_do_not_come_or_come_twice_are_named(monkeypatch, caplog):
    assert gathered(2, 0, 1, count=3) == [None] * 3
    monkeypatch.setattr(processes, "SAID", 0.2)
    monkeypatch.setattr(processes, "GIVEN_UP", 1.2)
    (kind, text), *_ = gathered(0, 2, count=4)
    assert kind is TimeoutError and " 1, 3 did not come" in text and "did not come" in caplog.text
    assert gathered(1, count=2)[0][0] is TimeoutError and "process 0 does not answer" in caplog.text
    told = gathered(0, 1, 1, count=3)
    assert sorted(kind.__name__ for kind, _ in told) == ["TimeoutError", "TimeoutError", "ValueError"]
