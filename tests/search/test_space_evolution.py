"""A space moves to where its architectures err less, by no more than it should, and stays a legal space."""

import jax
import numpy as np
import pytest

from jaxnas import search, spaces
from jaxnas.search import ShiftRule, space_evolution
from jaxnas.search.space_evolution import shift_options
from jaxnas.space import Choice, Space

VIT = spaces.autoformer("tiny")
FLAT = Space(width=Choice(16, 24, 32), kernel=Choice(3, 5, 7), op=Choice("a", "b"))


def sample(space, count=600, seed=0):
    return jax.tree.map(np.asarray, space.sample(jax.random.key(seed), count))


def samples(space, count, each):
    """Independent samples, drawn at once."""
    archs = sample(space, count * each)
    return [jax.tree.map(lambda x, i=i: x[i * each : (i + 1) * each], archs) for i in range(count)]


def linear(space, archs, noise=0.01, seed=0, **slopes):
    """Errors that depend on the named choices, or the mean of their active positions, and on chance."""
    errors = 0.3 + noise * np.random.default_rng(seed).normal(size=len(next(iter(archs.values()))))
    for name, slope in slopes.items():
        values = np.asarray(space[name].options, float)[archs[name]]
        if space[name].shape:
            mask = np.asarray(space.active(archs)[name])
            values = (values * mask).sum(1) / mask.sum(1)
        errors += slope * (values - values.mean())
    return errors


def by_definition(errors, top):
    """By definition, and as `approx`."""
    return pytest.approx((np.mean(errors) + np.mean(np.sort(errors)[:top])) / 2, rel=1e-12)


# ---- The E-T error and its decomposition.


def test_an_option_has_the_error_of_the_architectures_that_have_it():
    """Half way between the mean error and that of the best."""
    archs = sample(FLAT)
    errors = linear(FLAT, archs, kernel=0.01)
    for top in (1, 7, 600, 1000):
        assert space_evolution.et_error(errors, top=top) == by_definition(errors, top)
    found = space_evolution.decompose(FLAT, archs, errors, top=20)
    assert list(found) == list(FLAT)
    for name, one in found.items():
        assert one.options == FLAT[name].options
        members = [errors[archs[name] == index] for index in range(len(one.options))]
        assert list(one.errors) == [by_definition(errors, 20) for errors in members]
    # The line is that of least squares.
    one = found["kernel"]
    slope, standard_error, r_squared = space_evolution.fit_line(one)
    correlation = np.corrcoef(one.options, one.errors)[0, 1]
    assert slope == pytest.approx(np.polyfit(one.options, one.errors, 1)[0], rel=1e-9)
    assert r_squared == pytest.approx(correlation**2, rel=1e-9) and 0.9 < r_squared <= 1
    assert slope == pytest.approx(0.01, abs=3 * standard_error)


def test_positions_are_pooled_by_their_share_of_the_active_ones():
    space = Space(
        depth=Choice(1, 3),
        width=Choice(8, 16).repeat(3, active="depth"),
        kind=Choice("x", "y"),
        place=Choice(0, 1, 2).repeat(3).at_positions([0], [0, 1], [2, 1]).when("kind", "y"),
    )
    archs = sample(space, 200)
    errors = linear(space, archs, noise=0.1)
    found = space_evolution.decompose(space, archs, errors, top=200, names=["width", "place"])
    assert list(found) == ["width", "place"]
    # With all of them at the top, the E-T error is the weighted mean.
    rows = space.to_dicts(archs)
    for name, one in found.items():
        for option, error in zip(one.options, one.errors, strict=True):
            shares = [np.mean([value == option for value in row.get(name, [None])]) for row in rows]
            assert error == pytest.approx(np.average(errors, weights=shares), rel=1e-12)


def test_the_standard_error_of_a_slope_is_how_far_it_differs_between_samples():
    slopes, said = [], []
    for seed, archs in enumerate(samples(VIT, 40, 300)):
        errors = linear(VIT, archs, embed_dim=-0.0002, mlp_ratio=0.02, seed=seed)
        shifts = search.evolve_space(VIT, archs, errors, top=20).shifts
        slopes.append([shift.slope for shift in shifts])
        said.append([shift.standard_error for shift in shifts])
    ratio = np.std(slopes, axis=0) / np.mean(said, axis=0)
    assert ((ratio > 0.75) & (ratio < 1.3)).all(), ratio


# ---- Where a space moves.


def test_choices_move_down_the_slope_and_the_others_stay():
    archs = sample(VIT, 1000)
    errors = linear(VIT, archs, embed_dim=-0.0005, depth=-0.01, mlp_ratio=0.05)
    found = search.evolve_space(VIT, archs, errors)
    steps = {shift.name: shift.steps for shift in found.shifts}
    assert steps == {"embed_dim": 1, "depth": 1, "num_heads": 0, "mlp_ratio": -1}
    assert found.space == spaces.vit((216, 240, 264), (13, 14, 15), (3, 4), (2.5, 3.0, 3.5))
    assert found.errors == tuple(errors) and found.et_error == space_evolution.et_error(errors)
    decomposed = space_evolution.decompose(VIT, archs, errors)
    for shift in found.shifts:
        assert shift.old == VIT[shift.name].options and shift.new == found.space[shift.name].options
        line = shift.slope, shift.standard_error, shift.r_squared
        assert line == space_evolution.fit_line(decomposed[shift.name])
    # Nothing depends on the order of the sample.
    other = search.evolve_space(VIT, jax.tree.map(lambda x: x[::-1], archs), errors[::-1])
    assert other.space == found.space
    np.testing.assert_allclose(*([x.slope for x in one.shifts] for one in (found, other)), rtol=1e-9)
    # The next one goes on from there, under the same rules.
    archs = sample(found.space, 1000, 1)
    again = search.evolve_space(found.space, archs, linear(found.space, archs, depth=0.01)).space
    assert again == spaces.vit((216, 240, 264), (12, 13, 14), (3, 4), (2.5, 3.0, 3.5))


def test_chance_alone_moves_few_choices_and_none_of_them_far():
    moved = []
    for seed, archs in enumerate(samples(FLAT, 40, 400)):
        found = search.evolve_space(FLAT, archs, linear(FLAT, archs, noise=0.1, seed=seed))
        moved += [abs(shift.steps) for shift in found.shifts]
        assert found.space["op"] == FLAT["op"]
    assert max(moved) <= 1 and np.mean(moved) < 0.15
    assert search.evolve_space(FLAT, archs, np.full(400, 0.1)).space == FLAT


PLACES = ShiftRule(values=(1, 2, 4, 7, 14, 28))  # options move from place to place


@pytest.mark.parametrize(
    "options, steps, rule, expected",
    [
        ((192, 216, 240), 1, ShiftRule(), (216, 240, 264)),
        ((192, 216, 240), 1, ShiftRule(most=250), (216, 240)),  # what is beyond a bound is dropped
        ((192, 216, 240), 1, ShiftRule(step=10, multiple=8), (200, 224, 248)),
        ((1, 2, 3), -2, ShiftRule(), (1,)),  # no size falls to 0
        ((1, 2, 3), -1, ShiftRule(least=0), (0, 1, 2)),
        ((0, 1, 2), -1, ShiftRule(), (0, 1)),
        ((-1, 0, 1), -1, ShiftRule(), (-2, -1, 0)),
        ((0.1, 0.2), 1, ShiftRule(), (0.2, 0.3)),
        ((8, 32, 16), 1, ShiftRule(), (16, 40, 24)),  # the order stays; a step is the least distance
        ((2, 3), 1, ShiftRule(step=0.4), (2, 3)),  # whole numbers stay whole
        ((8, 16), 1, ShiftRule(step=4, multiple=8), (16, 24)),  # halves are rounded up
        ((4, 7), 1, PLACES, (7, 14)),
        ((4, 7), 3, PLACES, (28,)),
        ((4, 7), -2, PLACES, (1, 2)),
    ],
)
def test_shifted_options(options, steps, rule, expected):
    moved = shift_options("width", options, steps, rule)
    assert moved == expected and [type(x) for x in moved] == [type(options[0])] * len(moved)


@pytest.mark.parametrize(
    "rule, steps, options",
    [
        (ShiftRule(threshold=0.011), 7, (72, 80, 88)),  # of about 0.08 over a step
        (ShiftRule(step=2, multiple=8), 0, (16, 24, 32)),  # a step that rounding undoes is none
    ],
)
def test_a_space_moves_by_its_rules(rule, steps, options):
    archs = sample(FLAT, 800)
    errors = linear(FLAT, archs, width=-0.01)
    shift, _ = search.evolve_space(FLAT, archs, errors, rules={"width": rule}).shifts
    assert shift.name == "width" and shift.slope < 0 and (shift.steps, shift.new) == (steps, options)


# ---- What hangs together stays together.


def test_what_is_repeated_up_to_a_depth_follows_it():
    def made(depths, places):
        most = max(depths)
        return Space(
            depth=Choice(*depths),
            kind=Choice("x", "y").repeat(most, active="depth"),
            width=Choice(8, 16).repeat(most).when("kind", "y"),
            place=Choice(*range(max(map(max, places)) + 1))
            .repeat(most, active="depth")
            .at_positions(*places),
            other=Choice(1, 2).repeat(5),
        )

    space = made((2, 3), ([0], [0, 1], [1, 2]))
    archs = sample(space, 400)
    for slope, depths, places in (
        (-0.1, (3, 4), ([0], [0, 1], [1, 2], [1, 2])),
        (0.1, (1, 2), ([0], [0, 1])),
    ):
        errors = linear(space, archs, depth=slope)
        found = search.evolve_space(space, archs, errors, fixed=("width", "other"))
        assert found.space == made(depths, places)
        assert [shift.name for shift in found.shifts] == ["depth"]


def test_numbers_that_are_no_sizes_stay():
    space = Space(
        kind=Choice(1, 2),
        width=Choice(8, 16).when("kind", 2),
        source=Choice(0, 1).repeat(2).at_positions([0], [0, 1]),
        op=Choice("a", "b"),
        mixed=Choice(1, "all"),
        one=Choice(5),
    )
    archs = sample(space, 400)
    errors = linear(space, archs, width=-0.1, kind=-1.0) - 0.5 * archs["op"]
    found = search.evolve_space(space, archs, errors, rules={"one": ShiftRule(most=6)})
    assert [shift.name for shift in found.shifts] == ["width"] and found.space["width"].options == (16, 24)
    assert all(found.space[name] == space[name] for name in space if name != "width")
