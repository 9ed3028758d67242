"""The evolution of a space on the page: all options of all spaces, all slopes, and the errors on one axis."""

import dataclasses
import re

import jax
import numpy as np
import pytest
import workdirs
from workdirs import page_of, section_of

from jaxnas import search, spaces
from jaxnas.report import words
from jaxnas.report.findings import read_run
from jaxnas.report.result import SampledSpaceOf

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


def test_all_options_of_all_spaces_are_drawn_with_the_slopes(root, evolution):
    space, given = evolution
    assert read_run(root).result.spaces == given  # as it was written
    shown = section_of(root, "How the search space")["charts"]
    assert list(shown) == [*(f"shift-{i}" for i in range(4)), "errors"]
    for name, spec in zip(space, shown.values(), strict=False):
        rows = spec["datasets"]["cells"]
        options = {one: tuple(row["x"] for row in rows if row["y"] == one) for one in "ABC"}
        assert options["A"] == spaces.digits()[name].options and options["C"] == space[name].options
        shifts = {one.name: x for one in given for x in one.shifts if x.name == name}
        assert options["B"] == shifts["B"].old and options["C"] == shifts["B"].new
        assert spec["title"]["text"] == words.plain(name)
        for line, (where, x) in zip(spec["title"]["subtitle"], shifts.items(), strict=True):
            label, slope, spread = re.fullmatch(r"(\w): (\S+) ± (\S+) points, step \S+", line).groups()
            expected = 100 * x.step * np.asarray([x.slope, x.standard_error])
            numbers = [float(slope.replace("−", "-")), float(spread)]
            np.testing.assert_allclose(numbers, expected, rtol=0, atol=0.006)
            assert label == where


def test_the_errors_of_all_spaces_are_on_one_axis(root, evolution):
    shown = section_of(root, "How the search space")
    rows, text = shown["charts"]["errors"]["datasets"]["lines"], " ".join(shown["text"])
    for one in evolution[1]:
        errors, shares = np.asarray([[row["x"], row["y"]] for row in rows if row["s"] == one.name]).T
        np.testing.assert_allclose(
            [np.mean(np.asarray(one.errors) <= x + 1e-6) for x in errors], shares, atol=0.01
        )
        np.testing.assert_allclose((errors[0], errors[-1]), (min(one.errors), max(one.errors)), rtol=1e-5)
        assert shares[-1] == 1 and len(errors) <= 100
        assert f"{one.name}: E-T error {100 * one.et_error:.2f}\u00a0%" in text
    change = 100 * (evolution[1][-1].et_error - evolution[1][0].et_error)
    assert f"From A to C it changes by −{-change:.2f} points." in text


def test_a_run_of_one_evaluation_and_without_an_evolution(tmp_path):
    page = page_of(workdirs.vision(tmp_path, evaluations=1))
    assert "How the search space moved" not in page.text
    assert len(page.charts["scatter"]["datasets"]["points"]) == 2  # one of each strategy


def test_one_space_a_loss_and_odd_names_are_shown_too(tmp_path, evolution):
    start = evolution[1][0]
    task = dataclasses.replace(read_run(workdirs.vision(tmp_path)).result.task, metrics=(workdirs.LOSS,))
    odd = dataclasses.replace(start.shifts[0], name="<b>&\"'", old=(*range(1, 10), 1000))
    start = dataclasses.replace(start, name="<A>", shifts=(odd,))
    page = page_of(workdirs.change(tmp_path, spaces=(start,), task=task))
    assert (
        page.charts["shift-0"]["title"]["text"] == odd.name
        and "<A>" in page.text
        and re.search("nats per token", page.text)
    )
    assert len(page.charts["shift-0"]["datasets"]["cells"]) == 10
