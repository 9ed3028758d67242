"""What a search cannot do is refused before it begins, by the name of the setting and what was given."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import refusals
from small_searches import SMALL, SPACE, cost, evaluate, never

from jaxnas import predictors, search
from jaxnas.search import NSGA2, ShiftRule, pareto
from jaxnas.search.bounds import check_bounds
from jaxnas.search.space_evolution import shift_options
from jaxnas.space import Choice, Space

FLAT = Space(width=Choice(16, 24, 32), kernel=Choice(3, 5, 7), op=Choice("a", "b"))
KEY = jax.random.key(0)
RANDOM = search.RandomSearch(SMALL, evaluations=10, batch=2)
RACES = search.Hyperband(SMALL, evaluations=70, fidelities=3, first=9, batch=4)
ARCHS = FLAT.sample(KEY, 40)
ERRORS = np.linspace(0.1, 0.2, 40)
VALUE, EITHER = ValueError, (TypeError, ValueError)


def small_cost(arch):
    return {"params": 10 * jnp.sum(arch["op"])}


def run(strategy, evaluate=never, key=KEY, **more):
    return lambda: search.run(strategy, evaluate, key, **{"batched": True} | more)


def test_impossible_bounds():
    """P10: with the range that can be reached."""
    ops = Choice(0, 1, 2).repeat(12, active="depth")
    space = Space(width=Choice(1, 2, 4, 8), depth=Choice(10, 11, 12), op=ops)

    def large_cost(arch):
        ops = jnp.where(space.active(arch)["op"], arch["op"] + 1, 0)
        width = jnp.asarray(space["width"].table)[arch["width"]]
        return {"params": width * (1 + jnp.sum(ops)), "macs": width.astype(jnp.float32) * 1.5}

    def bounded(*names, kind=search.RandomSearch, **bounds):
        return (lambda: kind(space, large_cost, bounds).init(KEY)), VALUE, *names

    def small(*names, **bounds):
        return (lambda: check_bounds(SMALL, small_cost, bounds)), VALUE, *names

    reached = "11 to 296"
    refusals.check(
        # The space is too large to be listed: the range is what was found.
        bounded("params", "10", reached, params=(None, 10)),
        bounded("1,000,000,000", reached, params=(1e9, None)),
        bounded("200 to 296", "1.5 to 2", params=(200, None), macs=(None, 2.0)),
        bounded("'parms'", "'params'", parms=(1, 2)),
        bounded("9", "8", params=(9, 8)),
        bounded("(min, max)", params=(None, math.nan)),
        # Of a listed space it is exact.
        small("-1", "0 to 60", params=(None, -1)),
        small("12 to 18", "10", "20", params=(12, 18)),
        (lambda: search.RandomSearch(SMALL, bounds={"params": (1, 2)}).init(KEY), VALUE, "cost"),
    )


def test_settings():
    def case(kind, *names, error=VALUE, **change):
        return (lambda: kind(**{"space": SMALL} | change)), error, *(names or map(str, (*change,)))

    def pool(codes):
        return search.Pool(np.asarray(codes))

    given = dict(predictor=predictors.GaussianProcess(steps=8), features=predictors.one_hot(SMALL))
    guided = functools.partial(search.PredictorGuided, **given)
    halving = search.SuccessiveHalving
    bounded = dict(cost=lambda arch: arch, bounds={"a": (1, 2)})
    refusals.check(
        case(search.Evolution, mutations=26),
        case(NSGA2, objectives=1),
        case(search.RegularizedEvolution, "sample", "11", "10", population=10, sample=11),
        case(search.Reinforce, "cost", "'params'", error=EITHER, cost="params"),
        case(search.Reinforce, "bounds", "5", error=EITHER, bounds=5),
        case(search.Reinforce, "bounds", "[1]", error=EITHER, bounds={"params": ([1], 2)}),
        case(search.Reinforce, "policy", "None", error=EITHER, policy=None),
        case(search.Reinforce, "baseline", "'none'", baseline="none"),
        case(halving, "int32[0, 3]", "int32 [n, 3]", given=pool(np.zeros((0, 3), np.int32))),
        case(halving, "row 0", "[4, 4, 4]", given=pool(np.full((1, 3), 4, np.int32))),
        case(halving, "equal", given=pool(np.zeros((2, 3), np.int32))),
        case(halving, "given", given=pool(np.eye(3, dtype=np.int32)), **bounded),
        case(halving, "starts", error=TypeError, starts=(1,)),
        case(search.Hyperband, "given", "int", error=TypeError, given=3),
        *(case(search.Hyperband, "starts", "0 to 1", fidelities=2, starts=wrong) for wrong in ((3,), (), 1)),
        case(search.PredictorGuided, "predictor", error=TypeError),
        case(guided, "acquisition", "'ucb'", acquisition="ucb"),
        case(guided, "features", "5", error=TypeError, features=5),
        case(guided, "pool", "list", error=TypeError, pool=[1, 2]),
    )


def test_calls(tmp_path):
    (tmp_path / "file").write_text("")
    nsga2 = NSGA2(SMALL, evaluations=40, population=20)
    asked = {strategy: strategy.ask(strategy.init(KEY)) for strategy in (RANDOM, RACES, nsga2)}

    def tell(strategy, *told):
        archs, state = asked[strategy]
        return lambda: strategy.tell(state, archs, *(np.zeros(shape, np.float32) for shape in told))

    @dataclasses.dataclass(frozen=True)
    class Silent(search.Strategy):
        """Says nothing."""

    def returning(value):
        return (lambda: search.scan(RANDOM, lambda archs: value, KEY)), VALUE, "[2]"

    def costing(value, bounds):
        return run(search.RandomSearch(SMALL, lambda arch: value, bounds, evaluations=10)), TypeError, "cost"

    def taking(seconds):
        trial = run(RACES, lambda values, fidelity: (1.0, seconds), batched=False)
        return trial, VALUE, "seconds", str(seconds)

    def seeing(space):
        process = dict(predictor=predictors.GaussianProcess(), features=lambda arch: jnp.full(3, jnp.nan))
        return (lambda: search.PredictorGuided(space, **process).init(KEY)), VALUE, "features", "{'op': ["

    returned = (None, {"score": jnp.ones(2)}, 1.0, jnp.ones(2, int))
    costs = (5, {"params": "many"}, {"params": jnp.ones(2)})
    keys = (0, jax.random.PRNGKey(0), jax.random.split(KEY))
    refusals.check(
        (run(RANDOM, history_path=tmp_path / "file" / "history.jsonl"), OSError, "file"),
        (run(RANDOM, lambda archs: np.zeros(3, np.float32)), VALUE, "float32[3]", "2"),
        (run(RANDOM, lambda values: None, batched=False), VALUE, "object[]", "number"),
        (run(RANDOM, lambda values, fidelity: 1.0, batched=False), TypeError, "evaluate(values)"),
        (run(nsga2, lambda values: (1.0, [2.0]), batched=False), VALUE, "object[]", "[2]"),
        *((run(RANDOM, key=key), TypeError, "key") for key in keys),
        (run(RANDOM, None), TypeError, "evaluate", "None"),
        *((run(wrong), TypeError, "strategy") for wrong in (search.RandomSearch, object())),
        (run(Silent(SMALL)), NotImplementedError, "Silent", "ask"),
        (run(RANDOM, lambda: 1.0), TypeError, "evaluate(architectures)"),
        (run(RACES, lambda archs: archs), TypeError, "evaluate(architectures, fidelity)"),
        *map(returning, returned),
        *(costing(value, bounds) for value in costs for bounds in ({}, {"params": (1, 2)})),
        *map(taking, (math.nan, -1.0, math.inf)),
        *map(seeing, (SMALL, Space(op=Choice(*range(6)).repeat(12)))),
        (lambda: pareto.hypervolume(np.zeros((3, 4)), np.zeros(4)), VALUE, "4", "2 and 3"),
        (tell(RACES, 4, 3), VALUE, "float32[3]"),
        *((tell(nsga2, shape), VALUE, "[20, 2]") for shape in ([20, 3], [20])),
        (lambda: RANDOM.best(RANDOM.init(KEY)), VALUE, "0"),
    )
    both = search.run(nsga2, lambda values: (values["op"].count("a"), values["op"].count("b")), KEY)
    assert set(map(tuple, both.score.tolist())) == {(0, 3), (1, 2), (2, 1), (3, 0)}


def test_spaces_that_cannot_move():
    def evolve(errors=ERRORS, archs=ARCHS, **more):
        return lambda: search.evolve_space(FLAT, archs, errors, **more)

    def changed(index, value):
        return np.where(np.arange(40) == index, value, ERRORS)

    def rule(name, given, **more):
        return evolve(rules={name: given}, **more)

    def shift(options, steps, rule=None):
        return lambda: shift_options("width", options, steps, *([rule] if rule else []))

    few, listed = {**ARCHS, "kernel": jnp.minimum(ARCHS["kernel"], 1)}, ShiftRule(values=(1, 2, 4, 7, 14, 28))
    refusals.check(
        (evolve(changed(3, np.nan)), VALUE, "1 of 40", "3"),
        (evolve(ERRORS[:30]), VALUE, "[40]", "[30]"),
        (evolve(top=0), VALUE, "top", "0"),
        (evolve(archs=few), VALUE, "40", "7", "'kernel'"),
        (evolve(archs=SMALL.sample(KEY, 40)), VALUE, "'width'"),
        (evolve(archs=FLAT.soften(ARCHS)), TypeError, "soft"),
        (evolve(archs={**ARCHS, "width": ARCHS["width"] + 2}), VALUE, "'width'"),
        (evolve(fixed=("widht",)), VALUE, "'widht'", "'width'"),
        (rule("depth", ShiftRule()), VALUE, "'depth'"),
        (rule("width", ShiftRule(), fixed=["width"]), VALUE, "'width'"),
        (rule("width", 3), TypeError, "'width'", "3"),
        (rule("width", ShiftRule(most=24)), VALUE, "'width'", "[32]", "most=24"),
        (rule("width", ShiftRule(multiple=16)), VALUE, "[24]", "multiple=16"),
        (shift((8, 16), -1, ShiftRule(step=16, least=8)), VALUE, "'width'", "(-8, 0)", "least=8"),
        (shift((8,), 1), VALUE, "step"),
        (shift((14, 28), 2, listed), VALUE, "(1, 2, 4, 7, 14, 28)"),
        (shift((4, 5), 1, listed), VALUE, "[5]"),
        (lambda: ShiftRule(least=3, most=2), VALUE, "least", "3", "most", "2"),
    )
    # A choice that stays may lack members.
    assert [shift.name for shift in evolve(archs=few, fixed=("kernel",))().shifts] == ["width"]


def test_histories_of_another_search(tmp_path):
    whole_path, bounds = tmp_path / "whole.jsonl", {"params": (10, 60)}
    sizes = dict(evaluations=40, population=20, parents=5, mutations=10, crossovers=10)
    strategy = search.Evolution(SPACE, cost, bounds, **sizes)
    search.run(strategy, evaluate, KEY, batched=True, history_path=whole_path)
    lines = whole_path.read_text().splitlines(keepends=True)
    whole, paths = "".join(lines).encode(), iter(range(100))

    def resumed(content, *names, evaluate=evaluate, key=KEY, **change):
        path = tmp_path / f"{next(paths)}.jsonl"
        path.mkdir() if content is None else path.write_bytes(content)
        given = dataclasses.replace(strategy, **change)
        return run(given, evaluate, key, history_path=path), VALUE, *names

    def edited(old, new):
        text = lines[25].replace(old, new)
        assert text != lines[25]
        return resumed("".join([*lines[:25], text, *lines[26:]]).encode(), "line 26")

    score = lines[25][lines[25].index('"score": ') :].split(",")[0].rstrip("}\n")
    refusals.check(
        resumed(whole, "key", "[0, 0]", "[0, 1]", key=jax.random.key(1)),
        resumed(whole, "parents", "5", "4", parents=4),
        resumed(whole, "bounds", "60", "61", bounds={"params": (10, 61)}),
        resumed(whole, "macs", "1", cost=lambda arch: {**cost(arch), "macs": 1}),
        resumed(whole, "40", "20", evaluations=20),
        resumed(whole, "objective=", "move", evaluate=never),
        # A changed score, and a line lost in the middle.
        edited(score, '"score": 99.0'),
        edited(score, '"score": "high"'),
        resumed("".join([*lines[:25], *lines[26:]]).encode(), "line 26"),
        resumed(b'{"step": 1}\n', "line 1", "'index'"),
        resumed(b"\x80\x04\n", "line 1", "UTF-8"),
        (*resumed(None, ".jsonl")[:1], OSError, ".jsonl"),
    )
    assert (tmp_path / "0.jsonl").read_bytes() == whole
