"""How strong options are: bars in order, every kept one marked, all rounds told, and chance not forgotten."""

import collections
import dataclasses
import re
import xml.etree.ElementTree

import numpy as np
import pytest
import workdirs

from jaxnas import report
from jaxnas.report import read_run, strengths
from jaxnas.report import result as result_lib

CASES = {
    "pruning": dict(method="pruning"),
    "strongest": dict(method="strongest", heads=3),
    "perturbation of a repeated decision": dict(method="perturbation", metric=workdirs.LOSS),
    "perturbation of one decision": dict(method="perturbation", heads=None),
}
SVG = "{http://www.w3.org/2000/svg}"


def change(root, config=None, **fields):
    """Replaces fields of the selection, and the config, of the result of a workdir."""
    result = result_lib.read(root)
    selection = dataclasses.replace(result.selection, **fields)
    result_lib.write(root, dataclasses.replace(result, selection=selection, config=config or {}))
    return root


def expected(result):
    """By option: all its drops (of the first round), and how often it is in the found architecture."""
    drops, first = collections.defaultdict(list), result.selection.decisions[0]
    if "blocks" in first:
        for (_, option), drop in zip(first["blocks"], first["drops"], strict=True):
            drops[option].append(drop)
    else:
        for one in result.selection.decisions:
            for option, drop in zip(workdirs.MECHANISMS, one["drops"], strict=True):
                drops[option].append(drop)
    found = result.found.architecture["mechanism"]
    return drops, collections.Counter(found if isinstance(found, list) else [found])


def drawings(root, name="mechanism"):
    """The figures of the strengths on the page, for wide screens and for narrow ones."""
    page = report.write(root).read_text(encoding="utf-8")
    found = [x for x in re.findall(r"<svg.*?</svg>", page, flags=re.S) if f'id="strength-{name}' in x]
    return [xml.etree.ElementTree.fromstring(one) for one in found]


@pytest.mark.parametrize("case", CASES)
def test_bars_are_the_means_strongest_first_and_the_kept_ones_are_marked(tmp_path, case):
    root = workdirs.mechanisms(tmp_path, **CASES[case])
    drops, kept = expected(read_run(root).result)
    order = sorted(drops, key=lambda option: -np.mean(drops[option]))
    (options,) = strengths.strengths(
        read_run(root).result.selection, read_run(root).result.space.choices
    ).values()
    assert [one.option for one in options] == order
    assert {one.option: one.kept for one in options} == {option: kept[option] for option in order}
    np.testing.assert_allclose([one.mean for one in options], [np.mean(drops[x]) for x in order])

    figures = drawings(root)
    assert len(figures) == 2
    for figure in figures:
        bars = [x for x in figure.iter(f"{SVG}rect") if x.get("class") in ("head", "box")]
        assert [x.get("class") for x in bars] == ["head" if kept[option] else "box" for option in order]
        assert [float(x.get("y")) for x in bars] == sorted(float(x.get("y")) for x in bars)
        lengths = [float(x.get("width")) for x in bars]
        ends = [float(x.get("x")) + (length if np.mean(drops[option]) > 0 else 0)
                for x, length, option in zip(bars, lengths, order, strict=True)]  # fmt: skip
        assert ends == sorted(ends, reverse=True) and any(np.mean(drops[option]) < 0 for option in order)
        assert sum("✓" in text for text in figure.itertext() if ":" not in text) == len(kept)
        about = figure.find(f"{SVG}desc").text.split("; ")
        assert [": " in one and one.endswith("not kept") for one in about] == [not kept[x] for x in order]
        width, height = map(float, figure.get("viewBox").split()[2:])
        for x in figure.iter(f"{SVG}rect"):
            assert 0 <= float(x.get("x")) <= float(x.get("x")) + float(x.get("width")) <= width + 0.2
            assert 0 <= float(x.get("y")) <= height


@pytest.mark.parametrize("case", CASES)
def test_all_that_was_found_out_is_in_the_table_in_order(tmp_path, case):
    root = workdirs.mechanisms(tmp_path, **CASES[case])
    page = report.write(root).read_text(encoding="utf-8")
    decisions = read_run(root).result.selection.decisions
    table = page[page.index("in the order made") :].partition("</table>")[0]
    rows = re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td><td>(.*?)</td></tr>", table)
    assert len(rows) == len(decisions)
    for (_, chosen, falls), one in zip(rows, decisions, strict=True):
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


@pytest.mark.parametrize(
    "settings, config, examples, said",
    [
        (dict(scale=0.01), {}, None, SMALL),
        (dict(scale=0.2), {}, None, LARGE),
        (dict(scale=0.2, metric=workdirs.LOSS), {}, None, UNKNOWN),
        (dict(scale=0.01), {"search": {"limit": 3}}, None, UNKNOWN),  # a result of before it was stored
        (dict(scale=0.2), {"search": {"limit": 3}}, 1234, LARGE),
        (dict(scale=0.2), {"search": {"limit": 3}}, 12, SMALL),
    ],
)
def test_small_strengths_are_called_so(tmp_path, settings, config, examples, said):
    root = change(workdirs.mechanisms(tmp_path, **settings), config, examples=examples)
    page = report.write(root).read_text(encoding="utf-8")
    assert examples is None or f"Between two figures of {examples:,} search" in page
    assert [text for text in (SMALL, LARGE, UNKNOWN) if text in page] == [said]
    assert ('class="spread"' in page) == (said != UNKNOWN)


def test_weights_that_were_learned_are_shown_beside_the_strengths(tmp_path):
    root = change(workdirs.mechanisms(tmp_path, heads=None, method="perturbation"),
                  probabilities={"mechanism": [0.1, 0.1, 0.1, 0.1, 0.1, 0.5]})  # fmt: skip
    page = report.write(root).read_text(encoding="utf-8")
    assert "learned how probable" in page and "How probable each option is" in page


def test_names_are_escaped_and_do_not_leave_the_figure(tmp_path):
    names = ("<b>&\"'", "an option whose name is longer than anyone would think it could be", "c")
    root = workdirs.mechanisms(tmp_path, options=names)
    page = report.write(root).read_text(encoding="utf-8")
    assert '<b>&"' not in page and "&lt;b&gt;&amp;&quot;" in page
    for figure in drawings(root):
        labels = [text.text for text in figure.iter(f"{SVG}text")]
        assert max(map(len, labels)) < 60 and names[1] in figure.find(f"{SVG}desc").text
