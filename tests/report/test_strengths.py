"""How strong options are: bars in order, every kept one marked, all rounds told, and chance not forgotten."""

import collections
import dataclasses

import numpy as np
import pytest
import workdirs
from workdirs import section_of

from jaxnas.report import findings
from jaxnas.report.findings import read_run

CASES = {
    "pruning": dict(method="pruning"),
    "strongest": dict(method="strongest", heads=3),
    "perturbation of a repeated decision": dict(method="perturbation", metric=workdirs.LOSS),
    "perturbation of one decision": dict(method="perturbation", heads=None),
}


def change(root, **fields):
    """Replaces fields of the selection of the result of a workdir."""
    found = read_run(root).result.selection
    return workdirs.change(root, selection=dataclasses.replace(found, **fields))


def expected(result):
    """By option: all its drops (of the first round), and how often it is in the found architecture."""
    drops, decisions = collections.defaultdict(list), result.selection.decisions
    for one in decisions[:1] if "blocks" in decisions[0] else decisions:
        names = [option for _, option in one["blocks"]] if "blocks" in one else workdirs.MECHANISMS
        for option, drop in zip(names, one["drops"], strict=True):
            drops[option].append(drop)
    found = result.found.architecture["mechanism"]
    return drops, collections.Counter(found if isinstance(found, list) else [found])


@pytest.mark.parametrize("case", CASES)
def test_bars_are_the_means_strongest_first_and_the_kept_ones_are_marked(tmp_path, case):
    root = workdirs.mechanisms(tmp_path, **CASES[case])
    result = read_run(root).result
    drops, kept = expected(result)
    means = {option: np.mean(drops[option]) for option in sorted(drops, key=lambda x: -np.mean(drops[x]))}
    shown, scale = section_of(root, "How strong"), 100 if result.task.metrics[0].unit == "%" else 1
    (spec,) = shown["charts"].values()
    bars = spec["datasets"]["bars"]
    assert [x["s"] for x in bars] == [option.replace("_", " ") for option in means]
    assert [x["kept"] == "kept" for x in bars] == [kept[option] > 0 for option in means]
    for x, option in zip(bars, means, strict=True):
        figures = [means[option], min(drops[option]), max(drops[option])]
        np.testing.assert_allclose([x["x"], x["low"], x["high"]], scale * np.asarray(figures), rtol=1e-5)


def test_what_chance_can_do_is_the_largest_standard_error_of_a_difference_of_shares(tmp_path):
    run = read_run(change(workdirs.mechanisms(tmp_path), examples=workdirs.SIZES["search"]))
    shares = np.linspace(0, 1, 1001)
    largest = np.sqrt(2 * shares * (1 - shares) / run.result.task.sizes["search"]).max()
    assert findings.chance(run, run.result.selection) == pytest.approx(largest)

    error = dataclasses.replace(run.result.found, errors={"search": {"loss": 0.3}})
    task = dataclasses.replace(run.result.task, metrics=(workdirs.LOSS,))
    of_losses = dataclasses.replace(run.result, found=error, task=task)
    assert findings.chance(dataclasses.replace(run, result=of_losses), run.result.selection) == pytest.approx(
        0.3 * 2**0.5
    )


@pytest.mark.parametrize(
    "settings, examples, limit",  # points that may be chance, and whether the largest bar is below it
    [
        (dict(scale=0.01), 1101, (4.26, True)),
        (dict(scale=0.2), 1101, (4.26, False)),
        (dict(scale=0.2), 12, (40.82, True)),
        (dict(scale=0.2, metric=workdirs.LOSS), 1101, None),
        (dict(scale=0.01), None, None),
    ],
)
def test_small_strengths_are_called_so(tmp_path, settings, examples, limit):
    root = change(workdirs.mechanisms(tmp_path, **settings), examples=examples)
    shown = section_of(root, "How strong")
    data, text = shown["charts"]["strength-0"]["datasets"], " ".join(shown["text"])
    assert [round(x["high"], 2) for x in data["chance"]] == ([limit[0]] if limit else [])
    assert ("not known" in text) == (limit is None)
    assert ("may well be chance" in text) == (limit is not None and limit[1])
    assert limit is None or (max(x["x"] for x in data["bars"]) < limit[0]) == limit[1]


def test_weights_that_were_learned_are_shown_beside_the_strengths(tmp_path):
    root = workdirs.mechanisms(tmp_path, heads=None, method="perturbation")
    change(root, probabilities={"mechanism": [0.1, 0.1, 0.1, 0.1, 0.1, 0.5]})
    assert section_of(root, "How probable") and section_of(root, "How strong")
