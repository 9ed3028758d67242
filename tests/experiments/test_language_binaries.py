"""PAR Transformer-XL end to end on real text: killed and resumed bit for bit, retrained, reported."""

import dataclasses
import json
import math
import pathlib
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from test_binaries import finish, kill_when

from experiments import config, language_setup, search_par, trials
from experiments.language_configs import CONFIGS
from jaxnas import latency, spaces

pytestmark = pytest.mark.xdist_group("language")
ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
    f"--set={assignment}"
    for assignment in (
        "model.blocks=4",
        "model.width=16",
        "model.num_heads=2",
        "model.head_dim=8",
        "model.hidden=32",
        "model.memory_length=8",
        "training.steps=40",
        "training.batch_size=4",
        "training.length=16",
        "training.warmup_steps=5",
        "training.log_every=5",
        "training.evaluate_every=10",
        "training.checkpoint_every=10",
        "search.start=10",
        "search.segments=4",
        "retraining.steps=30",
        "retraining.batch_size=4",
        "retraining.length=16",
        "retraining.warmup_steps=3",
        "retraining.log_every=5",
        "retraining.evaluate_every=15",
        "retraining.checkpoint_every=10",
    )
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The licence that is in this repository: real text of some ten thousand characters."""
    from jaxnas import data

    folder = tmp_path_factory.mktemp("text")
    text = (ROOT / "LICENSE").read_text() * 3
    (folder / "input.txt").write_text(text)
    prepared = tmp_path_factory.mktemp("data")
    data.load_text("tiny_shakespeare", data_dir=prepared, source_dir=folder)
    return prepared


def start(binary, workdir, data_dir, *more):
    paths = (f"--workdir={workdir}", f"--data_dir={data_dir}", "--config=tiny_shakespeare")
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{binary}", *SMALL, *paths, *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory, data_dir):
    """A search in one go, and one killed and resumed."""
    smooth, killed = (tmp_path_factory.mktemp(name) for name in ("smooth", "killed"))
    finish(start("search_par", smooth, data_dir))
    kill_when(start("search_par", killed, data_dir), lambda: (killed / "checkpoints" / "20").exists())
    return smooth, killed, finish(start("search_par", killed, data_dir))


@pytest.fixture(scope="module")
def retrained(searched, data_dir):
    smooth, killed, _ = searched
    outputs = [finish(start("retrain_language", smooth, data_dir))]
    folder = killed / "retrained" / "found-scratch-0" / "checkpoints" / "10"
    kill_when(start("retrain_language", killed, data_dir), folder.exists)
    outputs.append(finish(start("retrain_language", killed, data_dir)))
    return smooth, killed, outputs


def read(path):
    return json.loads(path.read_text())


def test_a_killed_search_ends_as_one_that_was_not(searched):
    smooth, killed, output = searched
    for name in (
        "metrics.jsonl",
        "result.json",
        "report.html",
        "probabilities.gif",
        "subnet/model.safetensors",
    ):
        assert (smooth / name).read_bytes() == (killed / name).read_bytes(), name
    assert "Found after 40 steps" in output


def test_the_result_says_what_was_found(searched):
    result = read(searched[0] / "result.json")
    found = result["found"]
    assert result["steps"] == 40 and len(found["architecture"]["block"]) == 4
    assert sum(found["counts"].values()) == 4
    assert found["extraction_error"] < 1e-5
    np.testing.assert_allclose(np.sum(result["probabilities"], 1), 1, rtol=1e-5)
    assert result["data"]["search"] > 0.15 * result["data"]["train"]
    steps = [json.loads(line) for line in (searched[0] / "metrics.jsonl").read_text().splitlines()]
    probabilities = [line["probabilities"] for line in steps if line["split"] == "architecture"]
    assert len(probabilities) == 4 and probabilities[0] != probabilities[-1]
    losses = [line["loss"] for line in steps if line["split"] == "train"]
    assert losses[-1] < losses[0]


def test_a_killed_retraining_ends_as_one_that_was_not(retrained):
    smooth, killed, outputs = retrained
    for name in ("metrics.jsonl", "result.json", "subnet/model.safetensors"):
        paths = [workdir / "retrained" / "found-scratch-0" / name for workdir in (smooth, killed)]
        assert paths[0].read_bytes() == paths[1].read_bytes(), name
    assert all("test: perplexity" in output for output in outputs)


def test_the_page_holds_the_search_and_the_networks(retrained, data_dir):
    smooth, _, _ = retrained
    interleaved = finish(
        start("retrain_language", smooth, data_dir, "--architecture=interleaved", "--set=seed=1")
    )
    assert "attention feed_forward attention feed_forward" in interleaved
    page = (smooth / "report.html").read_text()
    result = read(smooth / "retrained" / "interleaved-scratch-1" / "result.json")
    for text in (
        f"{result['test']['perplexity']:.2f}",
        "found, scratch, seed 0",
        "interleaved, scratch, seed 1",
        "data:image/gif;base64",
    ):
        assert text in page
    assert result["tokens"] == 30 * 4 * 16
    assert result["test"]["perplexity"] == pytest.approx(np.exp(result["test"]["nats"]))
    evaluated = finish(
        start(
            "evaluate_language",
            smooth,
            data_dir,
            "--split=test",
            "--network=retrained/interleaved-scratch-1/subnet",
        )
    )
    evaluated = json.loads(evaluated[evaluated.index("{") :])
    assert evaluated["perplexity"] == pytest.approx(result["test"]["perplexity"])
    assert evaluated["params"] == result["params"]
    # Bytes: bits for one are bits for the other, but that the first is not predicted.
    assert result["test"]["bits_per_byte"] == pytest.approx(result["test"]["nats"] / np.log(2), rel=0.01)


def test_inherited_weights_start_below_new_ones(retrained, data_dir):
    smooth, _, _ = retrained
    finish(start("retrain_language", smooth, data_dir, "--weights=inherited"))
    inherited, scratch = (
        json.loads(
            (smooth / "retrained" / f"found-{weights}-0" / "metrics.jsonl").read_text().splitlines()[0]
        )["loss"]
        for weights in ("inherited", "scratch")
    )
    assert inherited < scratch - 0.3


def test_selection_by_perturbation_of_a_supernet_with_even_weights(data_dir, tmp_path):
    more = [
        "--set=search.selection=perturbation",
        "--set=search.order=joint",
        "--set=search.relaxation=average",
        "--set=training.steps=10",
        "--set=search.start=2",
    ]
    finish(start("search_par", tmp_path, data_dir, *more))
    result = read(tmp_path / "result.json")
    assert len(result["selection"]["decisions"]) == 4
    np.testing.assert_allclose(result["probabilities"], 1 / 3, rtol=1e-5)
    kept = {one["block"]: one["kept"] for one in result["selection"]["decisions"]}
    assert [kept[i] for i in range(4)] == result["found"]["architecture"]["block"]


def test_the_same_supernet_can_be_selected_from_in_another_way(retrained, data_dir):
    _, killed, _ = retrained
    before = (killed / "metrics.jsonl").read_bytes()
    finish(start("search_par", killed, data_dir, "--set=search.selection=sampling", "--set=search.samples=3"))
    selection = read(killed / "result.json")["selection"]
    assert selection["method"] == "sampling" and len(selection["candidates"]) == 3
    assert (killed / "metrics.jsonl").read_bytes() == before
    # The page doesn't take the network that was trained before for the one that is found now.
    page = (killed / "report.html").read_text()
    assert "the best on the search text of 3 that were drawn" in page
    stacks = [read(path)["architecture"] for path in killed.glob("retrained/*/result.json")]
    now = read(killed / "result.json")["found"]["architecture"]
    assert ("found before, scratch" in page) == (stacks[0] != now)


def test_trials_train_candidates_alone_once_and_the_best_for_longer(searched, data_dir, tmp_path):
    smooth, *_ = searched
    workdir = tmp_path / "run"
    shutil.copytree(smooth, workdir)
    settings = ("selection=trials", "samples=4", "explore=0.5", "trial_steps=10,20", "eta=2")
    more = [f"--set=search.{how}" for how in settings]
    finish(start("search_par", workdir, data_dir, *more))
    result, stored = read(workdir / "result.json"), read(workdir / "trials.json")["nats"]
    candidates = result["selection"]["candidates"]
    assert [one["explored"] for one in candidates] == [False, False, True, True]
    nats = [[one["supernet_nats"] for one in candidates]]
    nats += [[one["trial_nats"][0] for one in candidates]]
    assert result["selection"]["kendall_tau"] == pytest.approx(scipy.stats.kendalltau(*nats).statistic)
    short, long = stored["10"], stored["20"]
    assert len(short) == 4 and set(long) == set(sorted(short, key=short.get)[:2])
    assert max(long.values()) < 5.5  # 256 bytes: 5.55 to begin with

    def found():
        blocks = read(workdir / "result.json")["found"]["architecture"]["block"]
        return language_setup.letters(blocks)

    best = min(long, key=long.get)
    assert found() == best
    assert "Kendall's tau" in (workdir / "report.html").read_text()
    # Trials that are done, and losses that are no numbers, are read again.
    stored = read(workdir / "trials.json")
    (other,) = set(long) - {best}
    stored["nats"]["20"][other] = 0.5
    worst = max(short, key=short.get)
    stored["nats"]["10"][worst] = None
    (workdir / "trials.json").write_text(json.dumps(stored))
    finish(start("search_par", workdir, data_dir, *more))
    assert found() == other and read(workdir / "trials.json") == stored
    page = (workdir / "report.html").read_text()
    assert "of 4 that were drawn, each trained alone" in page
    assert page.count("<td>anywhere</td>") == 2 and "<th>after 20 steps</th>" in page


def drawing(search):
    """What `search_par.draw` needs of a setup."""
    config = CONFIGS["tiny_shakespeare"]
    return types.SimpleNamespace(
        config=dataclasses.replace(config, search=dataclasses.replace(config.search, **search)),
        key=lambda stream: jax.random.key(language_setup.STREAMS[stream]),
        net=types.SimpleNamespace(space=spaces.par(6)),
    )


# The first block is attention by any probability.
_ATTENTION_FIRST = {"block": jnp.zeros((6, 3)).at[0, 2].set(9.0)}


def attention(arch):
    return jnp.mean(arch["block"] == 2)


def test_draws_differ_and_keep_the_target():
    setup = drawing({"samples": 8, "target": 0.4, "selection": "trials"})
    archs, explored = search_par.draw(setup, attention, _ATTENTION_FIRST)
    archs = np.asarray(archs["block"])
    assert not any(explored) and np.all(archs[:, 0] == 2)
    assert np.mean(archs == 2, axis=1).max() <= 0.4
    # Trained alone, identity blocks are nothing, wherever they stand; in the supernet they have a place.
    assert len({tuple(row[row != 0]) for row in archs}) == 8
    setup = drawing({"samples": 64, "target": 0.4, "selection": "sampling"})
    placed = np.asarray(search_par.draw(setup, attention, _ATTENTION_FIRST)[0]["block"])
    assert len({tuple(row) for row in placed}) == 64 > len({tuple(row[row != 0]) for row in placed})
    free, _ = search_par.draw(drawing({"samples": 8}), None, _ATTENTION_FIRST)
    assert np.mean(np.asarray(free["block"]) == 2, axis=1).max() > 0.4
    narrow = drawing({"samples": 8, "target": 0.4, "slack": 0.2})
    full, _ = search_par.draw(narrow, attention, _ATTENTION_FIRST)
    assert np.all(np.sum(full["block"] == 2, axis=1) == 2)  # 2 of 6 are .33, within .32 and .4
    with pytest.raises(ValueError, match=r"None of 512 draws costs 0.32 to 0.4 .*they cost 1.17 to 2"):
        search_par.draw(narrow, lambda arch: 1.0 + attention(arch), _ATTENTION_FIRST)


@pytest.mark.parametrize("share, searched", [(0.0, 16), (0.5, 8), (1.0, 0)])
def test_exploring_draws_what_the_search_does_not(share, searched):
    how = {"samples": 16, "explore": share, "target": 0.5, "selection": "trials"}
    archs, explored = search_par.draw(drawing(how), attention, _ATTENTION_FIRST)
    archs, explored = np.asarray(archs["block"]), np.asarray(explored)
    assert np.sum(~explored) == searched and len({tuple(row[row != 0]) for row in archs}) == 16
    assert np.all(archs[~explored, 0] == 2)
    assert not explored.any() or not np.all(archs[explored, 0] == 2)
    assert np.mean(archs == 2, axis=1).max() <= 0.5


def test_exploring_makes_up_for_a_search_that_keeps_no_target():
    setup = drawing({"samples": 8, "explore": 0.5, "target": 0.5, "selection": "trials"})
    everywhere = {"block": jnp.zeros((6, 3)).at[:, 2].set(20.0)}
    archs, explored = search_par.draw(setup, attention, everywhere)
    assert all(explored) and archs["block"].shape == (8, 6)


def fake_trials(monkeypatch, loss):
    """Replaces training; returns the list of what would be trained."""
    trained = []

    def train_alone(setup, archs, steps, evaluate, path):
        trained.append((steps, list(archs)))
        return [loss(arch, steps) for arch in archs]

    monkeypatch.setattr(trials, "train_alone", train_alone)
    return trained


def test_a_race_goes_on_with_the_best(monkeypatch, tmp_path):
    trained = fake_trials(monkeypatch, lambda arch, steps: abs(arch - steps / 10))
    setup = drawing({"trial_steps": (30, 50, 900), "eta": 3})
    best, losses = trials.race(setup, list(range(9)), None, tmp_path)
    assert trained == [(30, list(range(9))), (50, [3, 2, 4])]  # one is left: it need not be trained
    assert best == 4 and [len(one) for one in losses] == [1, 1, 2, 2, 2, 1, 1, 1, 1]


def test_losses_that_are_no_numbers_never_go_on(monkeypatch, tmp_path):
    trained = fake_trials(monkeypatch, lambda arch, _: math.nan if arch < 5 else float(arch))
    setup = drawing({"trial_steps": (30, 50), "eta": 2})
    assert trials.race(setup, list(range(8)), None, tmp_path)[0] == 5
    assert trained[1] == (50, [5, 6, 7])
    with pytest.raises(ValueError, match="None of 4 trials of 30 steps has a loss that is a number"):
        trials.race(setup, list(range(4)), None, tmp_path)


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("search.selection=guess", "search.selection is 'guess', expected one of argmax, sampling"),
        ("search.end_temperature=0", "temperature is 0.0, expected one above 0"),
        ("search.order=third", "search.order is 'third', expected one of joint, first, second"),
        ("search.cost=params", "search.cost is 'params', expected one of None, macs, latency"),
        ("search.cost_weight=1", "search.cost_weight needs a search.cost"),
        ("search.relaxation=average", "with it search.selection is perturbation"),
        ("search.samples=0", "search.samples is 0"),
        ("search.slack=0", "search.slack is 0.0, expected more than 0"),
        ("search.trial_steps=900,300", r"search.trial_steps is \(900, 300\), expected numbers .* increase"),
        ("search.trial_steps=0", r"search.trial_steps is \(0,\), expected numbers of steps that increase"),
        ("search.eta=1", "search.eta is 1, expected at least 2"),
        ("search.explore=2", "search.explore is 2.0, expected 0 to 1"),
        ("search.start=800", "search.start is 800, and training.steps 800"),
        ("model.dtype=bf16", "model.dtype is 'bf16', expected float32 or bfloat16"),
        ("model.blocks=5", "model.blocks is 5, expected an even number"),
    ],
)
def test_impossible_configs_are_refused_before_anything_runs(assignment, message):
    with pytest.raises(ValueError, match=message):
        config.override(CONFIGS["tiny_shakespeare"], [assignment])


def test_random_patterns_are_as_dear_and_different():
    space = spaces.par(8)
    found, table = (
        spaces.par_rule(8),
        latency.LatencyTable("block", {"identity": 0, "feed_forward": 10, "attention": 50}, "cpu", {}),
    )
    cost = table.cost(space)
    patterns = language_setup.random_patterns(space, found, cost)
    stacks = {tuple(np.asarray(arch["block"]).tolist()) for arch in patterns}
    assert len(stacks) == len(patterns) > 20
    assert tuple(np.asarray(found["block"]).tolist()) not in stacks
    wanted = int(cost(found)["latency_ns"])
    assert all(abs(int(cost(arch)["latency_ns"]) / wanted - 1) <= 0.06 for arch in patterns)
    # Nothing else is as dear as attention everywhere.
    assert not language_setup.random_patterns(space, space.largest(), cost)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("search_par", "--set=data.search_fraction=0"), "needs text that is held out of training"),
        (("retrain_language",), "result.json is missing: first run experiments.search_par"),
    ],
)
def test_clear_errors(arguments, message, data_dir, tmp_path):
    binary, *more = arguments
    process = start(binary, tmp_path, data_dir, *more)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0 and message in output and "Traceback" not in output
