"""What a search cannot do is refused before it begins, by the name of the setting and what was given."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

from jaxnas import predictors, search
from jaxnas.search import ShiftRule, pareto
from jaxnas.search.nsga2 import NSGA2
from jaxnas.space import Choice, Space

SPACE = Space(
    width=Choice(1, 2, 4, 8), depth=Choice(6, 7, 8), op=Choice(0, 1, 2, 3).repeat(8, active="depth")
)
SMALL = Space(op=Choice(0, 1, 2).repeat(3))
FLAT = Space(width=Choice(16, 24, 32), kernel=Choice(3, 5, 7), op=Choice("a", "b"))
KEY = jax.random.key(0)
RANDOM = search.RandomSearch(SMALL, evaluations=10, batch=2)
RACES = search.Hyperband(SMALL, evaluations=70, fidelities=3, first=9, batch=4)
ARCHS = FLAT.sample(KEY, 40)
ERRORS = np.linspace(0.1, 0.2, 40)


def cost(arch):
    width = jnp.asarray(SPACE["width"].table)[arch["width"]]
    ops = jnp.where(SPACE.active(arch)["op"], arch["op"] + 1, 0)
    return {"params": width * (1 + jnp.sum(ops)), "macs": width.astype(jnp.float32) * 1.5}


def small_cost(arch):
    return {"params": 10 * jnp.sum(arch["op"])}


def never(archs):
    raise AssertionError("evaluated")


def widths(archs):
    return archs["width"].astype(jnp.float32)


def run(strategy, evaluate=never, key=KEY, **more):
    return lambda: search.run(strategy, evaluate, key, **{"batched": True} | more)


def test_impossible_bounds():
    """P10: with the range that can be reached."""

    def bounded(**bounds):
        return lambda: run(search.RandomSearch(SPACE, cost, bounds))(), ValueError

    def small(**bounds):
        return (lambda: search.check_bounds(SMALL, small_cost, bounds)), ValueError

    reached = "7 to 264"
    refusals.check(
        # The space is too large to be listed: the range is what was found.
        (*bounded(params=(None, 6)), "params", "6", reached),
        (*bounded(params=(1e9, None)), "1,000,000,000", reached),
        (*bounded(params=(257, 259)), "257 to 259", "256", reached),
        (*bounded(params=(200, None), macs=(None, 2.0)), "200 to 264", "1.5 to 2"),
        (*bounded(parms=(1, 2)), "'parms'", "'params'"),
        (*bounded(params=(9, 8)), "9", "8"),
        (*bounded(params=9), "(min, max)"),
        (*bounded(params=(None, math.nan)), "(min, max)"),
        # Of a listed space it is exact.
        (*small(params=(None, -1)), "-1", "0 to 60"),
        (*small(params=(12, 18)), "12 to 18", "10", "20"),
        (lambda: search.RandomSearch(SMALL, bounds={"params": (1, 2)}).init(KEY), ValueError, "cost"),
        (run(search.LocalSearch(SPACE, cost, {"params": (None, 1)})), ValueError, reached),
        (lambda: NSGA2(SPACE, cost, {"params": (None, 1)}).init(KEY), ValueError, reached),
        (lambda: search.Hyperband(SMALL, small_cost, {"params": (70, 90)}).init(KEY), ValueError, "0 to 60"),
    )


def test_settings():
    def case(kind, *names, error=ValueError, **change):
        return (lambda: kind(**{"space": SMALL} | change)), error, *(names or map(str, (*change,)))

    def guided(*names, error=ValueError, **change):
        given = dict(predictor=predictors.GaussianProcess(steps=8), features=predictors.one_hot(SMALL))
        return case(search.PredictorGuided, *names, error=error, **given | change)

    def pool(codes):
        return search.Pool(np.asarray(codes))

    halving, either = search.SuccessiveHalving, (TypeError, ValueError)
    refusals.check(
        *(
            case(search.Evolution, **change)
            for change in (
                {"population": 0},
                {"evaluations": 0},
                {"parents": 0},
                {"mutations": 26},
                {"layer_probability": 1.5},
                {"random_first": -1},
                {"random_first": 1001},
            )
        ),
        *(
            case(search.RandomSearch, "evaluations", repr(wrong), evaluations=wrong)
            for wrong in (10.5, "10", 0, None)
        ),
        *(
            case(NSGA2, **change)
            for change in (
                {"objectives": 1},
                {"crossover_probability": 1.1},
                {"mutation_probability": -1.0},
                {"population": 0},
            )
        ),
        case(search.RegularizedEvolution, "sample", "11", "10", population=10, sample=11),
        case(search.Reinforce, "None", error=either, space=None),
        case(search.Reinforce, "{'op': 3}", error=either, space={"op": 3}),
        case(search.Reinforce, "cost", "'params'", error=either, cost="params"),
        case(search.Reinforce, "canonical", "5", error=either, canonical=5),
        case(search.Reinforce, "bounds", "5", error=either, bounds=5),
        case(search.Reinforce, "bounds", "3", error=either, bounds={3: (1, 2)}),
        case(search.Reinforce, "bounds", "[1]", error=either, bounds={"params": ([1], 2)}),
        case(search.Reinforce, "policy", "None", error=either, policy=None),
        case(search.Reinforce, "policy", "class", error=either, policy=search.SoftmaxPolicy),
        case(search.Reinforce, "baseline", "'none'", baseline="none"),
        case(search.LocalSearch, "batch", "0", batch=0),
        case(halving, "int32[0, 3]", "int32 [n, 3]", given=pool(np.zeros((0, 3), np.int32))),
        case(halving, "int32[2, 2]", given=pool(np.zeros((2, 2), np.int32))),
        case(halving, "row 0", "[4, 4, 4]", given=pool(np.full((1, 3), 4, np.int32))),
        case(halving, "equal", given=pool(np.zeros((2, 3), np.int32))),
        case(
            halving,
            "given",
            given=pool(np.eye(3, dtype=np.int32)),
            cost=lambda arch: arch,
            bounds={"a": (1, 2)},
        ),
        *(
            case(search.Hyperband, "starts", "0 to 2", fidelities=3, starts=wrong)
            for wrong in ((3,), (), 1, ("0",))
        ),
        case(halving, "starts", error=TypeError, starts=(1,)),
        case(search.Hyperband, "given", "int", error=TypeError, given=3),
        case(search.Hyperband, "budget", "0.0", fidelities=3, budget=0.0),
        case(search.Hyperband, "eta", "1", eta=1),
        case(search.Hyperband, "batch", "-1", batch=-1),
        case(search.PredictorGuided, "predictor", "features"),
        guided("acquisition", "'ucb'", acquisition="ucb"),
        guided("initial", "1", initial=1),
        guided("predictor", "5", error=TypeError, predictor=5),
        guided("predictor", "class", error=TypeError, predictor=predictors.GaussianProcess),
        guided("features", "5", error=TypeError, features=5),
        guided("pool", "ndarray", error=TypeError, pool=np.zeros((3, 3), np.int32)),
        guided("pool", "list", error=TypeError, pool=[1, 2]),
        guided("int32[3, 2]", "int32 [n, 3]", pool=pool(np.zeros((3, 2), np.int32))),
        guided("row 0", "[9, 9, 9]", pool=pool(np.full((3, 3), 9))),
    )


def test_calls(tmp_path):
    (tmp_path / "file").write_text("")
    archs, state = RANDOM.ask(RANDOM.init(KEY))
    nan = predictors.GaussianProcess(steps=8), lambda arch: jnp.full(3, jnp.nan)
    nsga2, races = NSGA2(SMALL, evaluations=40, population=20), RACES.ask(RACES.init(KEY))
    pairs = nsga2.ask(nsga2.init(KEY))

    @dataclasses.dataclass(frozen=True)
    class Silent(search.Strategy):
        """Says nothing."""

    returned = (None, ["a", "b"], {"score": jnp.ones(2)}, 1.0, jnp.ones(3), jnp.ones(2, int))
    costs = (5, {"params": "many"}, {"params": jnp.ones(2)}, None)

    def costing(value, bounds):
        return run(search.RandomSearch(SMALL, lambda arch: value, bounds, evaluations=10)), TypeError, "cost"

    refusals.check(
        (run(RANDOM, history_path=tmp_path / "file" / "history.jsonl"), OSError, "file"),
        (run(RANDOM, history_path=5), TypeError, "5"),
        (run(RANDOM, lambda archs: np.zeros(3, np.float32)), ValueError, "float32[3]", "2"),
        (lambda: RANDOM.tell(state, archs, np.zeros(3, np.float32)), ValueError, "float32[3]"),
        (lambda: RANDOM.best(RANDOM.init(KEY)), ValueError, "0"),
        (run(RANDOM, lambda values: None, batched=False), ValueError, "object[]", "number"),
        (run(RANDOM, lambda values, fidelity: 1.0, batched=False), TypeError, "evaluate(values)"),
        (run(nsga2, lambda values: (1.0, [2.0]), batched=False), ValueError, "object[]", "[2]"),
        *(
            (run(RANDOM, key=key), TypeError, "key")
            for key in (0, None, jax.random.PRNGKey(0), jax.random.split(KEY))
        ),
        (run(RANDOM, None), TypeError, "evaluate", "None"),
        *((run(wrong), TypeError, "strategy") for wrong in (search.RandomSearch, object())),
        (run(Silent(SMALL)), NotImplementedError, "Silent", "ask"),
        (run(RANDOM, lambda: 1.0), TypeError, "evaluate(architectures)"),
        (run(RANDOM, lambda archs, fidelity: 1.0), TypeError, "evaluate(architectures)"),
        (run(RACES, lambda archs: archs), TypeError, "evaluate(architectures, fidelity)"),
        *(
            (lambda value=value: search.scan(RANDOM, lambda archs: value, KEY), ValueError, "[2]")
            for value in returned
        ),
        *(costing(value, bounds) for value in costs for bounds in ({}, {"params": (1, 2)})),
        (lambda: RACES.tell(races[1], races[0], jnp.zeros(4), jnp.zeros(3)), ValueError, "float32[3]"),
        *(
            (
                run(RACES, lambda values, fidelity, took=took: (1.0, took), batched=False),
                ValueError,
                "seconds",
                str(took),
            )
            for took in (math.nan, -1.0, math.inf)
        ),
        (lambda: dataclasses.replace(RACES, budget=9.0).best(RACES.init(KEY)), ValueError, "0"),
        *(
            (
                lambda shape=shape: nsga2.tell(pairs[1], pairs[0], np.zeros(shape, np.float32)),
                ValueError,
                "[20, 2]",
            )
            for shape in ([20, 3], [20], [19, 2])
        ),
        *(
            (
                lambda space=space: search.PredictorGuided(space, predictor=nan[0], features=nan[1]).init(
                    KEY
                ),
                ValueError,
                "features",
                "{'op': [",
            )
            for space in (SMALL, Space(op=Choice(*range(6)).repeat(12)))
        ),
    )


def test_a_function_of_values_may_return_several_numbers():
    strategy = NSGA2(SMALL, evaluations=40, population=20)
    result = search.run(strategy, lambda values: (values["op"].count(0), values["op"].count(1)), KEY)
    assert set(map(tuple, result.score.tolist())) == {(0, 3), (1, 2), (2, 1), (3, 0)}


def test_points():
    zeros = np.zeros((3, 2))
    refusals.check(
        (lambda: pareto.hypervolume(np.zeros((3, 4)), np.zeros(4)), ValueError, "4", "2 and 3"),
        (lambda: pareto.hypervolume(np.zeros((3, 1)), np.zeros(1)), ValueError, "1"),
        (lambda: pareto.hypervolume(zeros, 0.0), ValueError, "reference", "[]", "[2]"),
        (lambda: pareto.pareto_front(np.zeros(3)), ValueError, "[3]", "[N, M]"),
        (lambda: pareto.non_dominated_rank(zeros, np.ones(2, bool)), ValueError, "valid", "[2]", "[3]"),
    )


def test_spaces_that_cannot_move():
    def evolve(errors=ERRORS, archs=ARCHS, **more):
        return lambda: search.evolve_space(FLAT, archs, errors, **more)

    def changed(index, value):
        return np.where(np.arange(40) == index, value, ERRORS)

    def rule(name, given, **more):
        return evolve(rules={name: given}, **more)

    def shift(options, steps, rule=None):
        return lambda: search.shift_options("width", options, steps, *([rule] if rule else []))

    few, listed = {**ARCHS, "kernel": jnp.minimum(ARCHS["kernel"], 1)}, ShiftRule(values=(1, 2, 4, 7, 14, 28))
    refusals.check(
        (evolve(changed(3, np.nan)), ValueError, "1 of 40", "3"),
        (evolve(changed(7, np.inf)), ValueError, "7", "inf"),
        (evolve(ERRORS[:, None]), ValueError, "[40, 1]"),
        (evolve(ERRORS[:30]), ValueError, "[40]", "[30]"),
        (evolve(ERRORS[:9], jax.tree.map(lambda x: x[:9], ARCHS)), ValueError, "9", "10"),
        (evolve(top=0), ValueError, "top", "0"),
        (evolve(archs=few), ValueError, "40", "7", "'kernel'"),
        (evolve(archs=SMALL.sample(KEY, 40)), ValueError, "'width'"),
        (evolve(archs=FLAT.soften(ARCHS)), TypeError, "hard"),
        (evolve(archs={**ARCHS, "width": ARCHS["width"] + 2}), ValueError, "'width'"),
        (evolve(fixed=("widht",)), ValueError, "'widht'", "'width'"),
        (rule("depth", ShiftRule()), ValueError, "'depth'"),
        (rule("op", ShiftRule()), ValueError, "'op'"),
        (rule("width", ShiftRule(), fixed=["width"]), ValueError, "'width'"),
        (rule("width", 3), TypeError, "'width'", "3"),
        (rule("width", ShiftRule(most=24)), ValueError, "'width'", "[32]", "most=24"),
        (rule("width", ShiftRule(multiple=16)), ValueError, "[24]", "multiple=16"),
        (shift((8, 16), -1, ShiftRule(step=16, least=8)), ValueError, "'width'", "(-8, 0)", "least=8"),
        (shift((1, 2), -2), ValueError, "positive"),
        (shift((8,), 1), ValueError, "step"),
        (shift((14, 28), 2, listed), ValueError, "(1, 2, 4, 7, 14, 28)"),
        (shift((4, 5), 1, listed), ValueError, "[5]"),
        (lambda: search.decompose(FLAT, ARCHS, ERRORS, names=["w"]), ValueError, "'w'"),
        (lambda: search.fit_line(search.decompose(FLAT, ARCHS, ERRORS)["op"]), ValueError, "'a', 'b'"),
        (lambda: ShiftRule(step=0), ValueError, "step", "0"),
        (lambda: ShiftRule(threshold=np.nan), ValueError, "threshold", "nan"),
        (lambda: ShiftRule(least=3, most=2), ValueError, "least", "3", "most", "2"),
    )
    # A choice that stays may lack members.
    assert [shift.name for shift in evolve(archs=few, fixed=("kernel",))().shifts] == ["width"]


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "history.jsonl"
    strategy = search.Evolution(
        SPACE,
        cost,
        {"params": (30, 90)},
        evaluations=40,
        population=20,
        parents=5,
        mutations=10,
        crossovers=10,
    )
    search.run(strategy, widths, KEY, batched=True, history_path=path)
    return strategy, path.read_text().splitlines(keepends=True)


def test_histories_of_another_search(history, tmp_path):
    strategy, lines = history

    def resumed(number, content, change={}, **more):  # noqa: B006
        path = tmp_path / f"{number}.jsonl"
        path.mkdir() if content is None else path.write_bytes(content)
        given = dataclasses.replace(strategy, **change)
        return run(given, more.pop("evaluate", widths), history_path=path, **more), ValueError

    def edited(number, old, new):
        text = lines[25].replace(old, new)
        assert text != lines[25]
        return resumed(number, "".join([*lines[:25], text, *lines[26:]]).encode())

    whole = "".join(lines).encode()
    score = lines[25][lines[25].index('"score": ') :].split(",")[0].rstrip("}\n")
    refusals.check(
        (*resumed(0, whole, key=jax.random.key(1)), "key", "[0, 0]", "[0, 1]"),
        (*resumed(1, whole, {"parents": 4}), "parents", "5", "4"),
        (*resumed(2, whole, {"bounds": {"params": (30, 91)}}), "bounds", "90", "91"),
        (*resumed(3, whole, {"cost": lambda arch: {**cost(arch), "macs": 1}}), "macs", "1"),
        (*resumed(4, whole, {"evaluations": 20}), "40", "20"),
        (*resumed(20, whole, evaluate=never), "objective=", "move"),
        # A changed score, and a line lost in the middle.
        (*edited(5, score, '"score": 99.0'), "line 26"),
        (*edited(6, score, '"score": "high"'), "line 26"),
        (*resumed(7, "".join([*lines[:25], *lines[26:]]).encode()), "line 26"),
        (*resumed(8, b"hello\nyou\n"), "line 1", "JSON"),
        (*resumed(9, b'{"step": 1}\n'), "line 1", "'index'"),
        (*resumed(10, b"[" * 100_000 + b"\n"), "line 1", "nested"),
        (*resumed(11, b"\x80\x04\n\xff"), "11.jsonl"),
        (*resumed(12, b"\x80\x04\n"), "line 1", "UTF-8"),
        (*resumed(13, None), "13.jsonl"),
    )
    assert (tmp_path / "0.jsonl").read_bytes() == whole
