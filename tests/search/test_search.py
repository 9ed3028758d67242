"""The runner of a search: bounds, no hang, a history, exact resume, failures; and what is evolution's own."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from small_searches import SPACE, cost, evaluate, never, pairs, params, score

from jaxnas import search
from jaxnas.search import bounds as bounds_lib
from jaxnas.space import Choice, Space

BOUNDED = dict(space=SPACE, cost=cost, bounds={"params": (10, 60)}, evaluations=80)
EVOLUTION = search.Evolution(population=20, parents=5, mutations=10, crossovers=10, **BOUNDED)
RANDOM = search.RandomSearch(batch=20, **BOUNDED)


def run(strategy=EVOLUTION, score=evaluate, evaluations=None, **kwargs):
    strategy = strategy if evaluations is None else dataclasses.replace(strategy, evaluations=evaluations)
    given = {"batched": True, "objective": "fitness"} | kwargs
    return search.run(strategy, score, jax.random.key(0), **given)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "history.jsonl"
    return run(history_path=path), path.read_text()


def test_children_come_from_the_best_of_all_generations():
    """Of 10 mutants, no gene beyond what mutation explains; crossovers mix the top 5 only."""
    space = Space(op=Choice(*range(4)).repeat(10))
    strategy = dataclasses.replace(EVOLUTION, space=space, cost=None, bounds={})
    state = run(strategy, pairs).state
    codes, scores, born = (np.asarray(x) for x in (state.codes, state.scores, state.born))
    for generation in range(1, 4):
        before = born < generation
        top = codes[before][np.argsort(-scores[before], kind="stable")[:5]]
        children = codes[born == generation][10:]
        pure = np.mean([np.all([gene in top[:, e] for e, gene in enumerate(child)]) for child in children])
        assert pure >= 0.5  # the rest fills up when the parents have no other new child


def test_the_first_architectures_do_not_depend_on_scores():
    """A generation is random if fewer than `random_first` evaluations are done when it begins."""
    strategy = dataclasses.replace(EVOLUTION, random_first=41)

    @jax.jit
    def searched(sign):
        return search.scan(strategy, lambda archs: sign * jax.vmap(score)(archs), jax.random.key(0)).codes

    up, down = np.asarray(searched(jnp.float32(1))), np.asarray(searched(jnp.float32(-1)))
    np.testing.assert_array_equal(up[:60], down[:60])
    assert not np.array_equal(up[60:], down[60:])  # the first generation of children


def test_an_exhausted_space_ends_the_search(caplog):
    strategy = search.RandomSearch(SPACE, cost, {"params": (None, 8)}, evaluations=200, batch=30)
    count, calls = int(np.sum(np.asarray(params(SPACE.enumerate())) <= 8)), []
    assert 50 < count < 200 and count % 30

    def widths(archs):
        scores = np.asarray(archs["width"], np.float32)  # on the host: not to be traced
        calls.append(len(scores))
        return scores

    with caplog.at_level("INFO", "jaxnas"):
        result = run(strategy, widths)
    assert [r.levelname for r in caplog.records if "feasible" in r.message] == ["INFO"]
    assert len(result.history) == sum(calls) == count
    assert bool(strategy.finished(result.state)) and bool(result.state.exhausted)
    assert len({json.dumps(line["architecture"]) for line in result.history}) == count


# ---- Bounds.


def test_reachable():
    found = np.asarray(params(SPACE.enumerate()))
    assert search.reachable(SPACE, cost) == {"params": (found.min(), found.max()), "macs": (1.5, 12.0)}


def test_tight_bounds_are_filled_from_what_is_feasible():
    """Fewer than one random architecture in 5,000 is inside."""
    space, key = Space(op=Choice(*range(8)).repeat(16)), jax.random.key(0)

    def total(arch):
        return {"params": jnp.sum(arch["op"])}

    strategy = search.RandomSearch(space, total, {"params": (None, 16)}, evaluations=100)
    random = space.encode(space.sample(key, 5000))
    assert int(bounds_lib.feasible(space, total, strategy.bounds, random).sum()) <= 1
    archs, state = strategy.ask(strategy.init(key))
    space.check(space.decode(state.seeds))
    assert np.all(state.valid) and np.all(np.sum(archs["op"], axis=1) <= 16)


def test_integer_costs_are_compared_exactly():
    value = {"params": jnp.asarray([2**24, 2**24 + 1], jnp.int32)}
    for high, second in ((2**24, False), (2**24 + 0.5, False), (2**24 + 1, True), (2**40, True)):
        inside = bounds_lib.within(bounds_lib.normalize({"params": (None, high)}), value)
        assert inside.tolist() == [True, second]


# ---- The history, and resuming.


class Stop(Exception):
    pass


def test_history(finished_run):
    result, text = finished_run
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == result.history and len(lines) == 80 and result.resumed == 0
    for i, line in enumerate(lines):
        assert (line["index"], line["strategy"], line["generation"]) == (i, "evolution", i // 20)
        arch = SPACE.from_dict(line["architecture"])
        assert line["params"] == int(cost(arch)["params"]) and isinstance(line["params"], int)
        assert 10 <= line["params"] <= 60 and line["score"] == float(score(arch))
    assert result.score == max(line["score"] for line in lines) == float(score(result.arch))
    assert result.costs == {name: np.asarray(x).item() for name, x in cost(result.arch).items()}


@pytest.mark.parametrize("calls, cut", [(2, 0), (3, 700), (3, 10**6)])
def test_resume_equals_the_uninterrupted_search(finished_run, tmp_path, calls, cut):
    """Stopped in an evaluation, with some of the file's end lost on top."""
    result, text = finished_run
    path, left = tmp_path / "new" / "history.jsonl", iter(range(calls))

    def stopping(archs):
        if next(left, None) is None:
            raise Stop
        return evaluate(archs)

    with pytest.raises(Stop):
        run(score=stopping, history_path=path)
    if cut:
        path.write_text(path.read_text()[:-cut])
    again = run(history_path=path)
    assert path.read_text() == text
    for name in ("codes", "scores", "born", "size"):
        np.testing.assert_array_equal(getattr(again.state, name), getattr(result.state, name))
    np.testing.assert_array_equal(*(jax.random.key_data(r.state.key) for r in (again, result)))
    assert again.resumed == (0 if cut == 10**6 else 20 * calls - (20 if cut else 0))
    assert run(score=never, history_path=path).resumed == 80  # nothing is evaluated
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.more
def test_only_what_is_not_complete_of_this_search_is_cut_off(tmp_path):
    """A generation cut short by a smaller budget, with lines of another search behind it in one file."""
    path, alone = tmp_path / "history.jsonl", tmp_path / "alone.jsonl"
    first = functools.partial(run, RANDOM, name="first")
    first(evaluations=30, history_path=path)
    short = path.read_text()
    run(RANDOM, evaluations=40, history_path=path)
    random = path.read_text().removeprefix(short)
    # Killed while it wrote: one whole line of the next generation, and a part of another.
    run(RANDOM, evaluations=60, history_path=alone)
    lines = alone.read_text().splitlines(keepends=True)
    assert "".join(lines[:40]) == random
    path.write_text(short + random + lines[40] + lines[41][:50])
    result = first(evaluations=60, history_path=path)
    assert result.resumed == 20
    got = path.read_text().splitlines(keepends=True)
    assert "".join(got[:20]) == "".join(short.splitlines(keepends=True)[:20])
    assert got[20:61] == lines[:41] and [json.loads(x)["index"] for x in got[61:]] == list(range(20, 60))
    assert run(RANDOM, evaluations=60, history_path=path).resumed == 40
    assert sorted(path.read_text().splitlines()[-20:]) == sorted(alone.read_text().splitlines()[-20:])
    assert first(evaluations=60, score=never, history_path=path).resumed == 60


# ---- Failures.


def test_scores_that_are_not_finite_are_skipped_and_counted(tmp_path):
    path = tmp_path / "history.jsonl"

    def sometimes(archs):
        scores = np.asarray(evaluate(archs))
        return np.where(scores > 3, np.where(archs["width"] == 0, np.inf, np.nan), scores)

    result = run(score=sometimes, history_path=path)
    failed = [line for line in result.history if line["score"] is None]
    assert len(failed) == int(result.state.skipped) > 0
    assert result.score <= 3 and len(result.history) == 80
    assert run(score=never, history_path=path).score == result.score
    failing = lambda: run(score=lambda archs: np.full(20, -np.inf, np.float32))  # noqa: E731
    refusals.check((failing, ValueError, "20", "failed"))


def test_a_first_failure_ends_no_search_that_asks_one_by_one():
    strategy, told = search.LocalSearch(SPACE, evaluations=30), []

    def failing(times):
        failures = iter([np.nan] * times)
        return lambda archs: np.asarray(evaluate(archs)) + np.float32(next(failures, 0))

    result = run(strategy, failing(3), progress=told.append)
    assert int(result.state.skipped) == 3 and len(result.history) == 30
    assert np.isnan([one.best for one in told]).tolist() == [True] * 3 + [False] * 27
    assert [one.failed for one in told] == [1, 2] + [3] * 28
    assert all(part in str(told[-1]) for part in ("30 of 30", "3", f"{told[-1].best:.4g}"))
    refusals.check((lambda: run(strategy, failing(30)), ValueError, "20", "failed"))
