"""The evolution of a space on the page: all options of all spaces, all slopes, and the errors on one axis."""

import dataclasses
import re

import jax
import numpy as np
import pytest
import workdirs
from workdirs import SVG, drawings, elements, page_of, texts

from jaxnas import search, spaces
from jaxnas.report import read_run, space_evolution, words
from jaxnas.report.result import SampledSpaceOf

START = (4.5, 0.0, 0.9 * 4.5)  # px from where the path of a mark begins to its middle, by space
RULES = {"depth": search.ShiftRule(most=4), "embed_dim": search.ShiftRule(multiple=16)}


@pytest.fixture(scope="module")
def evolution():
    """Three spaces of the digits, where wide networks with small MLPs are better, and chance."""
    space, found = spaces.digits(), []
    for number, name in enumerate("ABC"):
        archs = space.sample(jax.random.key(number), 400)
        values = {one: np.asarray(space[one].options)[np.asarray(archs[one])] for one in space}
        errors = 0.14 - 0.0012 * values["embed_dim"] + 0.015 * values["mlp_ratio"].mean(1)
        errors -= 0.01 * values["depth"] - np.abs(np.random.default_rng(number).normal(0, 0.012, 400))
        evolved, last = search.evolve_space(space, archs, errors, rules=RULES), name == "C"
        sample = {"et_error": evolved.et_error, "errors": evolved.errors}
        found.append(SampledSpaceOf(name=name, shifts=() if last else evolved.shifts, **sample))
        space = space if last else evolved.space
    return space, tuple(found)


@pytest.fixture(scope="module")
def root(evolution, tmp_path_factory):
    made = workdirs.vision(tmp_path_factory.mktemp("evolved"), layers=3)
    return workdirs.change(made, spaces=evolution[1])


@pytest.fixture(scope="module")
def page(root):
    return page_of(root).replace("\u00a0", " ")


def test_all_options_of_all_spaces_are_drawn_on_the_axis_of_their_choice(root, page, evolution):
    space, given = evolution
    assert read_run(root).result.spaces == given  # as it was written
    choices = space_evolution.rows_of(given)
    assert list(choices) == list(space)
    for name, rows in choices.items():
        assert [row.space for row in rows] == ["A", "B", "C"]
        assert rows[-1].options == space[name].options and rows[-1].shift is None
        assert rows[0].options == spaces.digits()[name].options
        assert [row.shift.new for row in rows[:-1]] == [row.options for row in rows[1:]]
    assert choices["embed_dim"][1].options == (48, 64, 80) and choices["depth"][2].options == (4,)

    figures = drawings(page, "shifts")
    assert len(figures) == 2
    for figure in figures:
        marks = elements(figure, "path", "mark")
        for rows in choices.values():
            values = [(row, option) for row in rows for option in sorted(row.options)]
            drawn, marks = marks[: len(values)], marks[len(values) :]
            titles = [mark.find(f"{SVG}title").text for mark in drawn]
            assert titles == [f"{words.show(option)} in {row.space}" for row, option in values]
            # On one axis for each choice: the place of a mark goes with its value, whatever the space.
            left = [float(re.match(r"M([\d.]+)", mark.get("d"))[1]) for mark in drawn]
            places = [x + START[row.number] for x, (row, _) in zip(left, values, strict=True)]
            options = [option for _, option in values]
            line = np.polyfit(options, places, 1)
            np.testing.assert_allclose(np.polyval(line, options), places, atol=0.15)
            assert line[0] > 0
        assert marks == []
        workdirs.check_inside(figure)


def test_slopes_are_said_with_their_errors_and_what_followed(page, evolution):
    wide, narrow = drawings(page, "shifts")
    said = [text for text in texts(wide) if "±" in text]
    rows = [row for rows in space_evolution.rows_of(evolution[1]).values() for row in rows]
    shifts = [row.shift for row in rows if row.shift is not None]
    assert len(said) == len(shifts) == sum("±" in text for text in texts(narrow)) == 8
    for text, shift in zip(said, shifts, strict=True):
        *numbers, followed = re.match(r"([+−]?[\d.]+) ± ([\d.]+): (.*)", text).groups()
        slopes = np.asarray([float(x.replace("−", "-")) for x in numbers])
        line = np.asarray([shift.slope, shift.standard_error])
        np.testing.assert_allclose(slopes, 100 * shift.step * line, rtol=0, atol=0.006)
        far = words.show(abs(shift.steps) * shift.step)
        assert followed == ("stays", f"up by {far}", f"down by {far}")[np.sign(shift.steps)]
    assert any("stays" in text for text in said) and any("up by 16" in text for text in said)
    assert "rise of the error over one step (points)" in texts(wide)
    table = page[page.index("All shifts in figures") :].partition("</table>")[0]
    assert len(re.findall("<tr><th>", table)) == 1 + 8


def test_the_errors_of_all_spaces_are_on_one_axis(page, evolution):
    _, given = evolution
    for one in given:
        points = space_evolution._distribution(one.errors)
        errors, shares = np.transpose(points)
        np.testing.assert_array_equal([np.mean(np.asarray(one.errors) <= x) for x in errors], shares)
        assert (errors[0], errors[-1]) == (min(one.errors), max(one.errors)) and shares[-1] == 1
        assert len(points) <= space_evolution.POINTS
        assert f"{one.name}: E-T error {100 * one.et_error:.2f} %, 400 architectures" in page
    for figure in drawings(page, "errors"):
        lines = [one.get("class") for one in elements(figure, "path", "line")]
        assert lines == ["line lane0", "line lane1", "line lane2"]
    change = 100 * (given[-1].et_error - given[0].et_error)
    assert f"From A to C it changes by −{-change:.2f} points." in page and "search error" in page


def test_a_run_of_one_evaluation_and_without_an_evolution_says_nothing_of_it(tmp_path):
    page = page_of(workdirs.vision(tmp_path, evaluations=1))
    assert "How the search space moved" not in page and "lane0" not in page.partition("</style>")[2]
    assert "Accuracy against parameters" in page


def test_one_space_a_loss_and_odd_names_are_shown_too(tmp_path, evolution):
    start = evolution[1][0]
    task = dataclasses.replace(read_run(workdirs.vision(tmp_path)).result.task, metrics=(workdirs.LOSS,))
    odd = dataclasses.replace(start.shifts[0], name="<b>&\"'", old=(*range(1, 10), 1000))
    start = dataclasses.replace(start, name="<A>", shifts=(odd,))
    page = page_of(workdirs.change(tmp_path, spaces=(start,), task=task))
    assert "<b>&" not in page and "<A>" not in page and "search loss" in page and "nats per token" in page
    for figure in drawings(page, "shifts"):
        # Those between would lie on each other.
        assert [one.text for one in elements(figure, "text", "number")] == ["1", "1000"]
        assert len(elements(figure, "path", "mark")) == 10
