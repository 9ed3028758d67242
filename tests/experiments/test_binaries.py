"""The binaries end to end on real digits: killed and resumed bit for bit, and the errors users meet."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

# One worker for all of them: they share two trained workdirs.
pytestmark = pytest.mark.xdist_group("binaries")
ROOT = pathlib.Path(__file__).parents[2]
SMALL = (
    "--config=digits",
    "--set",
    "training.steps=60",
    "--set",
    "training.warmup_steps=5",
    "--set",
    "training.log_every=5",
    "--set",
    "training.steps_per_call=5",
    "--set",
    "training.evaluate_every=20",
    "--set",
    "training.checkpoint_every=10",
    "--set",
    "search.evaluations=24",
    "--set",
    "search.population=8",
    "--set",
    "search.parents=3",
    "--set",
    "search.mutations=4",
    "--set",
    "search.crossovers=3",
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def command(binary: str, workdir, data_dir, *more: str) -> list[str]:
    paths = (f"--workdir={workdir}", f"--data_dir={data_dir}")
    return [sys.executable, "-m", f"experiments.{binary}", *SMALL, *paths, *more]


def start(binary: str, workdir, data_dir, *more: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(binary, workdir, data_dir, *more),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def kill_when(process: subprocess.Popen, ready) -> None:
    """SIGKILL as soon as a condition on the workdir holds; fails if the run ends before."""
    deadline = time.monotonic() + 600
    while not ready():
        assert process.poll() is None, f"ended before it could be killed: {process.stdout.read()}"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_dir):
    """A workdir trained in one go, and one killed twice and resumed."""
    smooth, killed = (tmp_path_factory.mktemp(name) for name in ("smooth", "killed"))
    finish(start("train_supernet", smooth, data_dir))
    kill_when(start("train_supernet", killed, data_dir), lambda: (killed / "checkpoints" / "10").exists())

    def lines() -> int:
        return (killed / "metrics.jsonl").read_bytes().count(b'"step": 35')

    kill_when(start("train_supernet", killed, data_dir), lambda: lines() > 0)
    finish(start("train_supernet", killed, data_dir))
    return smooth, killed


@pytest.fixture(scope="module")
def searched(trained, data_dir):
    smooth, killed = trained
    output = finish(start("search", smooth, data_dir))
    history = killed / "search" / "history.jsonl"
    kill_when(
        start("search", killed, data_dir),
        lambda: history.exists() and history.read_bytes().count(b"\n") >= 8,
    )
    finish(start("search", killed, data_dir))
    return smooth, killed, output


def arrays(workdir) -> dict[str, bytes]:
    """All the bytes of the last checkpoint's arrays, by leaf, as orbax reads them back."""
    import orbax.checkpoint as ocp

    last = workdir / "checkpoints" / "60"
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        tree = checkpointer.restore(last / "state")
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    read = {}
    for path, leaf in leaves:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        read[jax.tree_util.keystr(path)] = np.asarray(leaf).tobytes()
    return read


def test_killed_training_ends_with_the_same_weights_and_metrics(trained):
    smooth, killed = trained
    expected, actual = arrays(smooth), arrays(killed)
    assert expected.keys() == actual.keys() and len(expected) > 50
    assert [name for name in expected if expected[name] != actual[name]] == []
    assert (smooth / "metrics.jsonl").read_bytes() == (killed / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "file", ["search/history.jsonl", "result.json", "report.html", "subnet/model.safetensors"]
)
def test_killed_search_ends_with_the_same_files(searched, file):
    smooth, killed, _ = searched
    assert (smooth / file).read_bytes() == (killed / file).read_bytes()


def test_the_result_says_what_was_found(searched):
    smooth, _, output = searched
    result = json.loads((smooth / "result.json").read_text())
    best, largest = result["best"], result["largest"]
    assert best["params"] <= 0.6 * largest["params"]
    assert best["extraction_error"] <= 1e-5
    assert result["random_search"]["evaluations"] == result["search"]["evaluations"] == 24
    history = [json.loads(line) for line in (smooth / "search/history.jsonl").read_text().splitlines()]
    scores = [line["score"] for line in history if line["strategy"] == "evolution"]
    assert best["search_accuracy"] == pytest.approx(max(scores), abs=1e-6)
    evolution = [json.dumps(x["architecture"]) for x in history if x["strategy"] == "evolution"]
    assert len(set(evolution)) == 24
    assert "report.html" in output.strip().splitlines()[-1]


def test_evaluate_gives_the_accuracy_that_the_result_promises(searched, data_dir):
    smooth, _, _ = searched
    best = json.loads((smooth / "result.json").read_text())["best"]
    shown = json.loads("{" + finish(start("evaluate", smooth, data_dir)).split("{", 1)[1])
    assert shown["accuracy"] == pytest.approx(best["test_accuracy"], abs=1e-6)
    assert shown["params"] == best["params"] and shown["macs"] == best["macs"]
    assert shown["split"] == "test" and shown["images"] == 600


@pytest.mark.parametrize(
    ("binary", "more", "message"),
    [
        ("train_supernet", ("--set", "training.step=3"), "training.steps"),
        ("train_supernet", ("--set", "training.steps=many"), "int"),
        ("train_supernet", ("--set", "seed=1"), "seed: 0 (checkpoint) / 1 (now)"),
        ("search", ("--set", "search.max_params=10"), "reaches from 15,082 to 171,210"),
        ("search", ("--set", "training.learning_rate=0.5"), "training.learning_rate"),
        ("evaluate", ("--architecture=best",), "'smallest', 'largest' or JSON"),
    ],
)
def test_mistakes_are_explained(trained, data_dir, binary, more, message):
    smooth, _ = trained
    before = sorted(p.name for p in (smooth / "checkpoints").iterdir())
    process = start(binary, smooth, data_dir, *more)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert message in output and "Traceback" not in output
    assert sorted(p.name for p in (smooth / "checkpoints").iterdir()) == before


def test_search_asks_for_training_first(tmp_path, data_dir):
    process = start("search", tmp_path, data_dir)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0 and "First run experiments.train_supernet" in output


@pytest.mark.parametrize("binary", ["train_supernet", "search", "evaluate"])
def test_help_shows_how_it_is_used(binary):
    process = subprocess.run(
        [sys.executable, "-m", f"experiments.{binary}", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert f"python -m experiments.{binary} --config=digits" in process.stdout
    assert "--workdir" in process.stdout and "--data_dir" in process.stdout
