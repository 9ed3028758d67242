"""The evolution of a space on the page: all options of all spaces, all slopes, and the errors on one axis."""

import dataclasses
import re
import xml.etree.ElementTree

import jax
import numpy as np
import pytest
import workdirs

from jaxnas import report, search, spaces
from jaxnas.report import read_run, space_evolution, words
from jaxnas.report import result as result_lib
from jaxnas.report.result import SampledSpaceOf

SVG = "{http://www.w3.org/2000/svg}"
START = (4.5, 0.0, 0.9 * 4.5)  # px from where the path of a mark begins to its middle, by space
RULES = {"depth": search.ShiftRule(most=4), "embed_dim": search.ShiftRule(multiple=16)}


@pytest.fixture(scope="module")
def evolution():
    """Three spaces of the digits, where wide networks with small MLPs are better, and chance."""
    space, found = spaces.digits(), []
    for number, name in enumerate("ABC"):
        archs = space.sample(jax.random.key(number), 400)
        rng = np.random.default_rng(number)
        values = {one: np.asarray(space[one].options)[np.asarray(archs[one])] for one in space}
        errors = 0.14 - 0.0012 * values["embed_dim"] + 0.015 * values["mlp_ratio"].mean(1)
        errors = errors - 0.01 * values["depth"] + np.abs(rng.normal(0, 0.012, 400))
        evolved = search.evolve_space(space, archs, errors, rules=RULES)
        shifts = evolved.shifts if name < "C" else ()
        found.append(
            SampledSpaceOf(name=name, et_error=evolved.et_error, errors=evolved.errors, shifts=shifts)
        )
        space = evolved.space if name < "C" else space
    return space, tuple(found)


def with_spaces(root, given, **changes):
    workdirs.vision(root, layers=3)
    result = result_lib.read(root)
    result_lib.write(root, dataclasses.replace(result, spaces=given, **changes))
    return root


def drawings(page, name):
    figures = re.findall(r"<svg.*?</svg>", page, flags=re.S)
    return [xml.etree.ElementTree.fromstring(one) for one in figures if f'id="{name}-' in one]


def test_all_options_of_all_spaces_are_drawn_on_the_axis_of_their_choice(tmp_path, evolution):
    space, given = evolution
    root = with_spaces(tmp_path, given)
    assert read_run(root).result.spaces == given  # as it was written
    page = report.write(root).read_text(encoding="utf-8")
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
        marks = [x for x in figure.iter(f"{SVG}path") if x.get("class").startswith("mark")]
        titles = [x.find(f"{SVG}title").text for x in marks]
        expected = [
            f"{words.show(option)} in {row.space}"
            for rows in choices.values()
            for row in rows
            for option in sorted(row.options)
        ]
        assert titles == expected
        # On one axis for each choice: the place of a mark goes with its value, whatever the space.
        start = 0
        for rows in choices.values():
            values = [(row.number, option) for row in rows for option in sorted(row.options)]
            left = [float(re.match(r"M([\d.]+)", x.get("d"))[1]) for x in marks[start:][: len(values)]]
            places = [x + START[number] for x, (number, _) in zip(left, values, strict=True)]
            start += len(values)
            line = np.polyfit([value for _, value in values], places, 1)
            np.testing.assert_allclose(np.polyval(line, [value for _, value in values]), places, atol=0.15)
            assert line[0] > 0
        width, height = map(float, figure.get("viewBox").split()[2:])
        for text in figure.iter(f"{SVG}text"):
            assert 0 <= float(text.get("x")) <= width and 0 < float(text.get("y")) < height


def test_slopes_are_said_with_their_errors_and_what_followed(tmp_path, evolution):
    _, given = evolution
    page = report.write(with_spaces(tmp_path, given)).read_text(encoding="utf-8").replace("\u00a0", " ")
    (wide, narrow) = drawings(page, "shifts")
    said = [text.text for text in wide.iter(f"{SVG}text") if "±" in text.text]
    shifts = [
        row.shift for rows in space_evolution.rows_of(given).values() for row in rows if row.shift is not None
    ]
    assert len(said) == len(shifts) == 8
    for text, shift in zip(said, shifts, strict=True):
        numbers = re.match(r"([+−]?[\d.]+) ± ([\d.]+): (.*)", text)
        rise, error = (float(x.replace("−", "-")) for x in numbers.groups()[:2])
        assert rise == pytest.approx(100 * shift.slope * shift.step, abs=0.006)
        assert error == pytest.approx(100 * shift.standard_error * shift.step, abs=0.006)
        far = words.show(abs(shift.steps) * shift.step)
        assert numbers[3] == ("stays", f"up by {far}", f"down by {far}")[np.sign(shift.steps)]
    assert any("stays" in text for text in said) and any("up by 16" in text for text in said)
    assert sum("±" in text.text for text in narrow.iter(f"{SVG}text")) == 8
    assert "rise of the error over one step (points)" in [text.text for text in wide.iter(f"{SVG}text")]
    table = page[page.index("All shifts in figures") :].partition("</table>")[0]
    assert len(re.findall("<tr><th>", table)) == 1 + 8


def test_the_errors_of_all_spaces_are_on_one_axis(tmp_path, evolution):
    _, given = evolution
    page = report.write(with_spaces(tmp_path, given)).read_text(encoding="utf-8").replace("\u00a0", " ")
    for one in given:
        points = space_evolution._distribution(one.errors)
        errors, shares = np.transpose(points)
        np.testing.assert_array_equal([np.mean(np.asarray(one.errors) <= x) for x in errors], shares)
        assert (errors[0], errors[-1]) == (min(one.errors), max(one.errors)) and shares[-1] == 1
        assert len(points) <= space_evolution.POINTS
        assert f"{one.name}: E-T error {100 * one.et_error:.2f} %, 400 architectures" in page
    for figure in drawings(page, "errors"):
        lines = [x.get("class") for x in figure.iter(f"{SVG}path") if x.get("class").startswith("line")]
        assert lines == ["line lane0", "line lane1", "line lane2"]
    change = 100 * (given[-1].et_error - given[0].et_error)
    assert f"From A to C it changes by −{-change:.2f} points." in page and "search error" in page


def test_a_run_without_an_evolution_says_nothing_of_it(tmp_path):
    page = report.write(workdirs.vision(tmp_path)).read_text(encoding="utf-8")
    assert "How the search space moved" not in page and "lane0" not in page.partition("</style>")[2]
    assert read_run(tmp_path).result.spaces == ()


def test_one_space_a_loss_and_odd_names_are_shown_too(tmp_path, evolution):
    _, given = evolution
    task = dataclasses.replace(read_run(workdirs.vision(tmp_path)).result.task, metrics=(workdirs.LOSS,))
    odd = dataclasses.replace(given[0].shifts[0], name="<b>&\"'", old=(1, 2, 3, 4, 5, 6, 7, 8, 9, 1000))
    spaces_of = (dataclasses.replace(given[0], name="<A>", shifts=(odd,)),)
    page = report.write(with_spaces(tmp_path, spaces_of, task=task)).read_text(encoding="utf-8")
    assert "<b>&" not in page and "<A>" not in page and "search loss" in page and "nats per token" in page
    for figure in drawings(page, "shifts"):
        values = [x.text for x in figure.iter(f"{SVG}text") if x.get("class") == "number"]
        assert values == ["1", "1000"]  # those between would lie on each other
        assert sum(x.get("class").startswith("mark") for x in figure.iter(f"{SVG}path")) == 10
