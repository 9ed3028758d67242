"""How strong options are: bars in order, every kept one marked, all rounds told, and chance not forgotten."""

import collections
import dataclasses
import re

import numpy as np
import pytest
import workdirs
from workdirs import SVG, drawings, page_of, texts

from jaxnas.report import read_run, strengths

CASES = {
    "pruning": dict(method="pruning"),
    "strongest": dict(method="strongest", heads=3),
    "perturbation of a repeated decision": dict(method="perturbation", metric=workdirs.LOSS),
    "perturbation of one decision": dict(method="perturbation", heads=None),
}


def change(root, **fields):
    """Replaces fields of the selection of the result of a workdir."""
    selection = read_run(root).result.selection
    return workdirs.change(root, selection=dataclasses.replace(selection, **fields))


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
    (options,) = strengths.strengths(result.selection, result.space.choices).values()
    assert [(one.option, one.kept) for one in options] == [(option, kept[option]) for option in means]
    np.testing.assert_allclose([one.mean for one in options], [*means.values()])

    page = page_of(root)
    figures = drawings(page, "strength-mechanism")
    assert len(figures) == 2
    for figure in figures:
        bars = [x for x in figure.iter(f"{SVG}rect") if x.get("class") in ("head", "box")]
        assert [x.get("class") for x in bars] == ["head" if kept[option] else "box" for option in means]
        x, y, length = np.asarray([[float(bar.get(n)) for n in ("x", "y", "width")] for bar in bars]).T
        ends = np.where(np.asarray([*means.values()]) > 0, x + length, x)
        assert np.all(np.diff(ends) <= 0) and np.all(np.diff(y) >= 0) and min(means.values()) < 0
        assert sum("✓" in text for text in figure.itertext() if ":" not in text) == len(kept)
        about = figure.find(f"{SVG}desc").text.split("; ")
        assert [": " in one and one.endswith("not kept") for one in about] == [not kept[x] for x in means]
        workdirs.check_inside(figure)

    table = page[page.index("in the order made") :].partition("</table>")[0]
    rows = re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td><td>(.*?)</td></tr>", table)
    for (_, chosen, falls), one in zip(rows, result.selection.decisions, strict=True):
        names = [option for _, option in one["removed"]] if "removed" in one else [one["kept"]]
        assert all(name.replace("_", " ") in chosen for name in names)
        figures = [float(x.rpartition(" ")[2].replace("−", "-").replace("±", "")) for x in falls.split(", ")]
        assert figures == sorted(figures, reverse=True) and len(figures) == len(one["drops"])


def test_what_chance_can_do_is_the_largest_standard_error_of_a_difference_of_shares(tmp_path):
    run = read_run(workdirs.mechanisms(tmp_path))
    shares = np.linspace(0, 1, 1001)
    largest = np.sqrt(2 * shares * (1 - shares) / run.result.task.sizes["search"]).max()
    assert strengths.chance(run) == pytest.approx(largest)

    error = dataclasses.replace(run.result.found, errors={"search": {"loss": 0.3}})
    task = dataclasses.replace(run.result.task, metrics=(workdirs.LOSS,))
    of_losses = dataclasses.replace(run.result, found=error, task=task)
    assert strengths.chance(dataclasses.replace(run, result=of_losses)) == pytest.approx(0.3 * 2**0.5)


SMALL, LARGE, UNKNOWN = "the choice may well be chance", "the shaded band", "makes here is not known"
LIMITED = {"search": {"limit": 3}}


@pytest.mark.parametrize(
    "settings, config, examples, said",
    [
        (dict(scale=0.01), {}, None, SMALL),
        (dict(scale=0.2), {}, None, LARGE),
        (dict(scale=0.2, metric=workdirs.LOSS), {}, None, UNKNOWN),
        (dict(scale=0.01), LIMITED, None, UNKNOWN),  # a result of before it was stored
        (dict(scale=0.2), LIMITED, 1234, LARGE),
        (dict(scale=0.2), LIMITED, 12, SMALL),
    ],
)
def test_small_strengths_are_called_so(tmp_path, settings, config, examples, said):
    root = change(workdirs.mechanisms(tmp_path, **settings), examples=examples)
    page = page_of(workdirs.change(root, config=config))
    assert examples is None or f"Between two figures of {examples:,} search" in page
    assert [text for text in (SMALL, LARGE, UNKNOWN) if text in page] == [said]
    assert ('class="spread"' in page) == (said != UNKNOWN)


def test_weights_that_were_learned_are_shown_beside_the_strengths(tmp_path):
    root = workdirs.mechanisms(tmp_path, heads=None, method="perturbation")
    page = page_of(change(root, probabilities={"mechanism": [0.1, 0.1, 0.1, 0.1, 0.1, 0.5]}))
    assert "learned how probable" in page and "How probable each option is" in page


def test_names_are_escaped_and_do_not_leave_the_figure(tmp_path):
    names = ("<b>&\"'", "an option whose name is longer than anyone would think it could be", "c")
    page = page_of(workdirs.mechanisms(tmp_path, options=names))
    assert '<b>&"' not in page and "&lt;b&gt;&amp;&quot;" in page
    for figure in drawings(page, "strength"):
        assert max(map(len, texts(figure))) < 60 and names[1] in figure.find(f"{SVG}desc").text
