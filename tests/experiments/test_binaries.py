"""The binaries end to end on real data: killed and resumed bit for bit, and the errors that users meet."""

import functools
import html
import json
import os
import pathlib
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import in_process
import jax
import pytest
import tiers

from jaxnas import files, tabular
from jaxnas.experiments import config as config_lib
from jaxnas.experiments import strategies
from jaxnas.experiments.configs import CONFIGS

ROOT = pathlib.Path(__file__).parents[2]
DIGITS, TEXT, S3 = "autoformer_digits", "text", "s3_digits"
EVERY = ("training.log_every=5", "training.evaluate_every=20", "training.checkpoint_every=10")
SHORT = (*EVERY, "training.steps=80", "training.warmup_steps=5")
EVOLUTION = tuple(
    f"search.method.strategy.{name}={number}"
    for name, number in dict(evaluations=24, population=8, parents=3, mutations=4, crossovers=3).items()
)
FLOWS = {
    DIGITS: (
        *SHORT,
        *EVOLUTION,
        "network.space=vit((8,16),(1,2),(1,2),(1.0,2.0))",
        *("network.form=masked", "network.max_relative_position=0"),
        "training.batch_size=32",
        "training.steps_per_call=5",
    ),
    TEXT: ("training.log_every=5", "search.limit=4"),
    "s3_digits": (
        *SHORT,
        *EVOLUTION,
        "network.space=swin(((1,2),(1,),(1,)),((8,16),(16,),(16,)),((2,4),(2,),(2,)),((1,2),(2,),(2,)),"
        "((1.0,2.0),(1.0,),(1.0,)),((8,16),(16,),(16,)))",
        *(f"evolution.{name}" for name in ("turns=1", "sample=40", "top=5", "steps=20")),
        *(f"search.{name}" for name in ("most_share=0.99", "ranked=2", "ranked_steps=3")),
    ),
}
# What a flow leaves that must be the same after kills (the page has the times of retrainings, which differ).
SAME = ["metrics.jsonl", "spaces.json", "search/history.jsonl", "result.json", "subnet/model.safetensors"]


# Configs in files of a user's own: a search by trials, with a network to compare with.
FILES = {
    TEXT: """
from small_tasks import net_of, task_of
from jaxnas.experiments import Config
from jaxnas import runs
from jaxnas.recipes import Relaxed
from jaxnas.training import Training
CONFIG = Config(name="text", task=task_of("text"), network=net_of("text"), recipe=Relaxed(start=5),
                training=Training(steps=20, batch_size=8), architectures={"widest": dict(embed=8, hidden=16)},
                search=runs.Search(runs.Trials(samples=4, explore=0.5, eta=2, steps=(2, 4))))
""",
}


def given(config, workdir, data_dir):
    name = data_dir / f"{config}.py" if config in FILES else config
    common = [f"--config={name}", f"--workdir={workdir}", f"--data_dir={data_dir}"]
    return common + [f"--set={assignment}" for assignment in FLOWS[config]]


def wait_for(ready, check=lambda: None):
    deadline = time.monotonic() + 900
    while not ready():
        check()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill_when(ready, binary, *flags):
    """Runs a binary in a process of its own, which is killed as soon as a condition holds."""
    command = [sys.executable, "-m", f"experiments.{binary}", *flags]
    threads = {
        **os.environ,
        "NPROC": "8",
    }  # as in this process, which has eight devices: rounding is the same
    process = subprocess.Popen(
        command, cwd=ROOT, env=threads, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def check():
        assert process.poll() is None, f"ended before it could be killed: {process.stdout.read()}"

    wait_for(ready, check)
    process.kill()
    process.communicate()


def terminate_when(ready, binary, *flags):
    """Runs a binary in this process, which gets SIGTERM as soon as a condition holds."""

    def terminate():
        wait_for(ready)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # where it comes too late
    thread = threading.Thread(target=terminate, daemon=True)
    try:
        thread.start()
        assert "the same command resumes" in in_process.main(binary, *flags, code=143)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Where configs of a user's own are, and data that are prepared."""
    folder = tmp_path_factory.mktemp("data")
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@functools.cache
def smooth(config, workdir, data_dir):
    """A flow in one go: its config, workdir and outputs."""
    flags = given(config, workdir, data_dir)
    binaries = ("train_supernet", "search", "retrain")
    return config, workdir, [in_process.main(binary, *flags) for binary in binaries]


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    return tmp_path_factory.mktemp("smooth")


@pytest.fixture(params=[DIGITS, TEXT, *tiers.nightly(S3)])
def flow(request, flows, data_dir):
    return smooth(request.param, flows / request.param, data_dir)


@pytest.mark.parametrize("flow", [DIGITS, *tiers.nightly(S3)], indirect=True)
def test_a_flow_whose_binaries_are_killed_or_stopped_ends_with_the_same_files(flow, tmp_path, data_dir):
    config, workdir, _ = flow
    flags, history = given(config, tmp_path, data_dir), tmp_path / "search" / "history.jsonl"
    alone = tmp_path / "retrained" / "found-scratch-0"

    def follows():  # whether a browser reloads the page, as it does while a run goes on
        return '<meta http-equiv="refresh"' in (tmp_path / "report.html").read_text()

    kill_when((tmp_path / "checkpoints" / "10").exists, "train_supernet", *flags)
    assert follows()
    terminate_when((tmp_path / "checkpoints" / "30").exists, "train_supernet", *flags)
    in_process.main("train_supernet", *flags)
    assert not follows()
    kill_when(lambda: history.exists() and history.read_bytes().count(b"\n") >= 4, "search", *flags)
    in_process.main("search", *flags)
    terminate_when((alone / "checkpoints" / "10").exists, "retrain", *flags)
    in_process.main("retrain", *flags)
    for name in [*SAME, *(f"retrained/found-scratch-0/{name}" for name in SAME)]:
        if (workdir / name).exists():
            assert (workdir / name).read_bytes() == (tmp_path / name).read_bytes(), name
    checkpoints = [sorted(p.name for p in (w / "checkpoints").iterdir()) for w in (workdir, tmp_path)]
    assert checkpoints[0] == checkpoints[1]


def test_the_result_says_what_was_found(flow):
    config, workdir, outputs = flow
    result = files.read_json(workdir / "result.json")
    found, networks = result["found"], {network["name"]: network for network in result["networks"]}
    assert found["extraction_error"] <= 1e-5
    history = files.read_lines(workdir / "search/history.jsonl", ("strategy", "architecture"))
    if config == DIGITS:
        assert found["costs"]["params"] <= 0.6 * networks["largest"]["costs"]["params"]
        scores = [line["score"] for line in history if line["strategy"] == "evolution"]
        assert len(scores) == 24
        assert found["metrics"]["search"]["accuracy"] == pytest.approx(max(scores), abs=1e-6)
        assert "random search" in networks
    elif config == "s3_digits":
        assert [space["name"] for space in result["spaces"]] == ["A", "B"]
        assert "random search" in networks and len(result["ranking"]["alone"]) == 2
    else:
        assert "widest" in networks and result["selection"]["method"] == "trials"
        assert [line["fidelity"] for line in history] == [0] * 4 + [1] * 2
    assert "report.html" in outputs[1]
    for text in outputs:  # every run says where its time went
        assert re.search(r"Time: [\d.,]+ s: .*\d % step", text) and "% evaluation" in text
    assert "from scratch" in (workdir / "report.html").read_text()


def test_evaluate_gives_what_the_result_promises(flow, data_dir):
    config, workdir, _ = flow
    # The saved network has the weights of the retraining, as the headline of the page.
    found = files.read_json(workdir / "retrained" / "found-scratch-0" / "result.json")["found"]
    # --config and every --set are those of the training, which the workdir and the page have.
    output = in_process.main("evaluate", f"--workdir={workdir}", f"--data_dir={data_dir}")
    page = html.unescape((workdir / "report.html").read_text())
    assert all(f"--set {shlex.quote(assignment)}" in page for assignment in FLOWS[config])
    shown = json.loads("{" + output.split("{", 1)[1])
    for name, value in found["metrics"]["test"].items():
        assert shown[name] == pytest.approx(value, rel=1e-5)
    assert shown["params"] == found["costs"]["params"] and shown["role"] == "test"
    assert 0 < shown["times"]["evaluation"] <= 1 and shown["times"]["seconds"] > 0
    assert files.read_lines(workdir / "evaluations.jsonl")[-1] == shown


MISTAKES = (
    # A binary, what is added to its command, and what the message names.
    ("train_supernet", "--set=training.step=3", "training.steps"),
    ("train_supernet", "--set=seed=1", "seed: 0 (checkpoint) / 1 (now)"),
    ("search", "--set=search.most_share=0.001", "the space reaches"),
    ("search", "--set=training.learning_rate=0.5", "training.learning_rate"),
    ("search", "--executor=processes", "--executor=processes"),
    ("evaluate", "--architecture=best", "found, smallest"),
    ("evaluate", "--workdir=nowhere", "nowhere"),
    ("evaluate", "--set=task.label_smoothing=0.3", "task.label_smoothing"),
    ("retrain", "--architecture=random:99", "random:99"),
    ("retrain", "--set=task.label_smoothing=0.3", "task.label_smoothing"),
)


@pytest.mark.parametrize("flow", [DIGITS], indirect=True)
def test_mistakes_are_explained_and_change_nothing(flow, data_dir, tmp_path):
    config, workdir, _ = flow
    before = sorted(p.name for p in (workdir / "checkpoints").iterdir())
    for binary, more, message in MISTAKES:
        said = in_process.main(binary, *given(config, workdir, data_dir), more, code=2)
        assert message in said, binary
    assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == before
    assert "jaxnas train_supernet" in in_process.main("search", *given(config, tmp_path, data_dir), code=2)


@pytest.mark.parametrize("binary", ["train_supernet", "search", "retrain", "evaluate", "compare"])
def test_help_ends_with_examples_that_work_as_they_stand(binary, monkeypatch):
    about, shown = in_process.main(binary, "--help").split("\nExamples:\n")
    examples = [shlex.split(one) for one in re.findall(r"\bjaxnas ((?:.*\\\n)*.*)", shown)]
    assert len(examples) >= 2
    monkeypatch.syspath_prepend(ROOT / "examples")
    for name, *options in examples:
        given = [option.removeprefix("--").split("=", 1) for option in options if option.startswith("--")]
        changes = [options[i + 1] for i, option in enumerate(options) if option == "--set"]
        assert name == binary and all(f"  --{flag[0]}:" in about for flag in given)
        values = dict(one for one in given if len(one) == 2)
        assert "workdir" in values
        if "config" in values:
            config_lib.override(config_lib.find(CONFIGS, values["config"]), changes)
        for name in values.get("strategies", "random").split(","):
            assert callable(strategies.find(name))
        table = values.get("benchmark", "nasbench201")
        assert table in tabular.names() or callable(pkgutil.resolve_name(table))


def test_a_platform_that_is_not_there_is_explained(tmp_path, monkeypatch):
    def devices(*_):
        raise AssertionError  # what JAX raises for "cuda" without its plugin

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", devices)
    said = in_process.main("train_supernet", f"--config={DIGITS}", f"--workdir={tmp_path}", code=2)
    assert "error: JAX finds no device for JAX_PLATFORMS='cuda'" in said


def test_later_binaries_have_the_config_and_every_set_of_the_training(tmp_path):
    files.write_json(tmp_path / "config.json", {"--config": DIGITS, "--set": ["training.stpes=3"]})
    for binary in ("search", "retrain", "evaluate"):
        assert "'training.stpes'" in in_process.main(binary, f"--workdir={tmp_path}", code=2)


def test_mistyped_flags_are_explained():
    for binary, given, *names in (
        ("search", "--confg=x", "'confg'", "config"),
        ("train_supernet", "--processes=two", "--processes=two"),
        ("retrain", "--executor=rai", "--executor=rai", "ray"),
        ("evaluate", "--role=train", "--role=train", "validation"),
        ("compare", "--chunk=0", "--chunk=0", "positive"),
        ("benchmarks.recipes", "--passs=3", "'passs'", "passes"),
        ("benchmarks.steps", "--archtectures=3", "'archtectures'", "architectures"),
        ("benchmarks.graphs", "--seeds=2", "--data_dir"),
    ):
        done = in_process.run(binary, given)
        assert done.status == 2 and done.stderr.startswith("error: "), done
        assert all(name in done.stderr for name in (*names, "--help")) and done.stderr.count("\n") == 1, done


@pytest.mark.parametrize("executor", ["processes", *tiers.nightly("ray")])
@pytest.mark.parametrize("flow", [TEXT], indirect=True)
def test_what_is_trained_alone_on_workers_is_that_of_the_loop(
    flow, tmp_path, data_dir, executor, monkeypatch
):
    if executor == "ray":
        pytest.importorskip("ray")
    config, workdir, _ = flow
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}{os.pathsep}{ROOT}")  # for the workers
    flags = [*given(config, tmp_path, data_dir), f"--executor={executor}", "--workers=2"]
    left = shutil.ignore_patterns("search", "result.json", "report.html", "subnet", "retrained")
    shutil.copytree(workdir, tmp_path, ignore=left, dirs_exist_ok=True)
    in_process.main("search", *flags)
    for name in ("search/history.jsonl", "result.json"):
        assert (tmp_path / name).read_bytes() == (workdir / name).read_bytes(), name
    assert "2 seeds" in in_process.main("retrain", *flags, "--seeds=0,1")

    def results(root, seed):
        folder = root / "retrained" / f"found-scratch-{seed}"
        return [(folder / name).read_bytes() for name in ("result.json", "metrics.jsonl")]

    assert results(tmp_path, 0) == results(workdir, 0) != results(tmp_path, 1)
    assert json.loads(results(tmp_path, 1)[0])["found"]["seed"] == 1
    for wrong in ("--seeds=0,0", "--seeds=a", "--worker_gpus=1"):
        assert wrong in in_process.main("retrain", *flags, wrong, code=2)
