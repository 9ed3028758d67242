"""Search: each architecture once, bounds kept, no hang, same key same search, exact resume."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tiers

from jaxnas import search, spaces
from jaxnas.search import bounds as bounds_lib
from jaxnas.search import proposals
from jaxnas.space import Choice, Space

SPACE = Space(
    width=Choice(1, 2, 4, 8), depth=Choice(6, 7, 8), op=Choice(0, 1, 2, 3).repeat(8, active="depth")
)
SMALL = Space(
    width=Choice(1, 2, 4, 8), depth=Choice(1, 2, 3), op=Choice(0, 1, 2, 3).repeat(3, active="depth")
)
BOUNDS = {"params": (30, 90)}


def make_cost(space):
    def cost(arch):
        width = jnp.asarray(space["width"].table)[arch["width"]]
        ops = jnp.where(space.active(arch)["op"], arch["op"] + 1, 0)
        return {"params": width * (1 + jnp.sum(ops)), "macs": width.astype(jnp.float32) * 1.5}

    return cost


COST, SMALL_COST = make_cost(SPACE), make_cost(SMALL)
EVOLUTION = search.Evolution(
    SPACE, COST, BOUNDS, evaluations=120, population=20, parents=5, mutations=10, crossovers=10
)
RANDOM = search.RandomSearch(SPACE, COST, BOUNDS, evaluations=120, batch=20)


@pytest.fixture(autouse=True, scope="module")
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def fitness(arch):
    """Each position prefers its own operation; deeper is better."""
    match = SPACE.active(arch)["op"] & (arch["op"] == jnp.asarray([0, 3, 1, 2, 0, 1, 3, 2]))
    return jnp.sum(match).astype(jnp.float32) + 0.25 * arch["width"].astype(jnp.float32)


evaluate = jax.jit(jax.vmap(fitness))


def rows_of(batch):
    return [{name: x[i] for name, x in batch.items()} for i in range(len(batch["depth"]))]


def scan(strategy, state):
    def step(state, _):
        archs, state = strategy.ask(state)
        return strategy.tell(state, archs, jax.vmap(fitness)(archs)), None

    return jax.lax.scan(step, state, None, length=strategy.evaluations // strategy.batch)[0]


@pytest.fixture(scope="module")
def many_seeds():
    """Whole searches as one scan, over 8 seeds under vmap."""
    keys = jax.random.split(jax.random.key(0), 8)
    return {
        strategy: jax.jit(jax.vmap(lambda key, s=strategy: scan(s, s.init(key))))(keys)
        for strategy in (EVOLUTION, RANDOM)
    }


@pytest.mark.parametrize("strategy", [EVOLUTION, RANDOM], ids=["evolution", "random"])
def test_each_architecture_once_and_within_bounds(many_seeds, strategy):
    states = many_seeds[strategy]
    assert np.all(states.size == 120) and np.all(jax.vmap(strategy.finished)(states))
    for codes in np.asarray(states.codes):
        assert len(np.unique(codes, axis=0)) == 120
        archs = SPACE.decode(codes)
        SPACE.check(archs)
        np.testing.assert_array_equal(SPACE.encode(SPACE.canonical(archs)), codes)
        params = np.asarray(jax.vmap(COST)(archs)["params"])
        assert params.min() >= 30 and params.max() <= 90


def test_evolution_beats_random_search(many_seeds):
    best = {s: np.nanmax(np.asarray(states.scores), axis=1) for s, states in many_seeds.items()}
    assert best[EVOLUTION].mean() > best[RANDOM].mean() + 0.5


def test_ask_tell_by_hand_equals_the_scan(many_seeds):
    """Also: the same key gives the same search, and vmap over keys equals the loop."""
    state = EVOLUTION.init(jax.random.split(jax.random.key(0), 8)[3])
    while not EVOLUTION.finished(state):
        archs, state = EVOLUTION.ask(state)
        state = EVOLUTION.tell(state, archs, evaluate(archs))
    np.testing.assert_array_equal(state.codes, many_seeds[EVOLUTION].codes[3])
    np.testing.assert_array_equal(state.scores, many_seeds[EVOLUTION].scores[3])
    arch, score = EVOLUTION.best(state)
    assert float(fitness(arch)) == float(score) == np.max(state.scores)
    assert not np.array_equal(state.codes, many_seeds[EVOLUTION].codes[4])


def test_children_come_from_the_best_of_all_generations(many_seeds):
    """Of 10 mutants, no gene beyond what mutation explains; crossovers mix the top 5 only."""
    first = jax.tree.map(lambda x: x[0], many_seeds[EVOLUTION])
    codes, scores, born = (np.asarray(x) for x in (first.codes, first.scores, first.born))
    for generation in range(1, 6):
        before = born < generation
        top = codes[before][np.argsort(-scores[before], kind="stable")[:5]]
        children = codes[born == generation][10:]
        pure = np.mean([np.all([gene in top[:, e] for e, gene in enumerate(child)]) for child in children])
        assert pure >= 0.5  # the rest fills up when the parents have no other new child


@pytest.mark.parametrize("random_first, expected", [*tiers.more((0, 20)), (41, 60)])
def test_the_first_architectures_do_not_depend_on_scores(random_first, expected):
    """A generation is random if fewer than `random_first` evaluations are done when it begins."""
    strategy = dataclasses.replace(EVOLUTION, random_first=random_first)

    @jax.jit
    def searched(sign):
        return search.scan(strategy, lambda archs: sign * jax.vmap(fitness)(archs), jax.random.key(0)).codes

    up, down = np.asarray(searched(jnp.float32(1))), np.asarray(searched(jnp.float32(-1)))
    np.testing.assert_array_equal(up[:expected], down[:expected])
    rest = slice(expected, expected + 20)  # the first generation of children
    assert not np.array_equal(up[rest], down[rest])


@pytest.mark.parametrize("kind", [search.RandomSearch, *tiers.more(search.Evolution)])
def test_an_exhausted_space_ends_the_search(kind, caplog):
    bounds = {"params": (None, 12)}
    strategy = kind(SMALL, SMALL_COST, bounds, evaluations=2000)
    every = SMALL.enumerate()
    count = int(np.sum(np.asarray(jax.vmap(SMALL_COST)(every)["params"]) <= 12))
    assert 50 < count < SMALL.cardinality
    calls = []

    def score(archs):
        scores = np.asarray(archs["width"], np.float32)  # on the host: not to be traced
        calls.append(len(scores))
        return scores

    with caplog.at_level("INFO", "jaxnas"):
        result = search.run(strategy, score, jax.random.key(0), batched=True)
    assert [r.levelname for r in caplog.records if "feasible" in r.message] == ["INFO"]
    assert len(result.history) == sum(calls) == count
    assert bool(strategy.finished(result.state)) and bool(result.state.exhausted)
    assert len({json.dumps(line["architecture"]) for line in result.history}) == count


# ---- Bounds.


def test_reachable():
    low, high = (int(SPACE["width"].table[i]) * (1 + n) for i, n in ((0, 6), (3, 32)))
    assert search.reachable(SPACE, COST) == {"params": (low, high), "macs": (1.5, 12.0)}
    params = np.asarray(jax.vmap(SMALL_COST)(SMALL.enumerate())["params"])
    assert search.reachable(SMALL, SMALL_COST)["params"] == (params.min(), params.max())


def test_tight_bounds_are_filled_from_what_is_feasible():
    """Fewer than one random architecture in 5,000 is inside."""
    space = spaces.autoformer("tiny")

    def cost(arch):
        width = jnp.asarray(space["embed_dim"].table)[arch["embed_dim"]]
        heads = jnp.where(space.active(arch)["num_heads"], arch["num_heads"] + 3, 0)
        ratio = jnp.where(space.active(arch)["mlp_ratio"], arch["mlp_ratio"] + 6, 0)
        return {"params": width * (256 * jnp.sum(heads) + width * jnp.sum(ratio))}

    low, high = search.reachable(space, cost)["params"]
    bounds = {"params": (low, round(low + 0.02 * (high - low)))}
    strategy = search.RandomSearch(space, cost, bounds, evaluations=100)
    random = space.encode(space.sample(jax.random.key(0), 5000))
    assert int(bounds_lib.feasible(space, cost, strategy.bounds, random).sum()) <= 1
    state = strategy.init(jax.random.key(0))
    space.check(space.decode(state.seeds))
    archs, state = strategy.ask(state)
    assert np.all(state.valid)
    assert np.all(np.asarray(jax.vmap(cost)(archs)["params"]) <= bounds["params"][1])


def test_integer_costs_are_compared_exactly():
    value = {"params": jnp.asarray([2**24, 2**24 + 1], jnp.int32)}
    for high, second in ((2**24, False), (2**24 + 0.5, False), (2**24 + 1, True), (2**40, True)):
        inside = bounds_lib.within(bounds_lib.normalise({"params": (None, high)}), value)
        assert inside.tolist() == [True, second]


def test_packed_codes_are_exact():
    space = spaces.autoformer("base")
    codes = space.encode(space.sample(jax.random.key(0), 500))
    packed = np.asarray(proposals._pack(space, codes))
    assert packed.shape[1] <= 3
    changed = codes.at[:, -1].set((codes[:, -1] + 1) % 3)
    both = np.concatenate([packed, np.asarray(proposals._pack(space, changed))])
    plain = np.concatenate([codes, changed])
    assert len(np.unique(both, axis=0)) == len(np.unique(plain, axis=0))
    assert packed.min() >= 0


# ---- The runner, its history and resuming.


class Stop(Exception):
    pass


def never(archs):
    raise AssertionError("evaluated")


def stop_after(calls):
    def stopping(archs):
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Stop
        return evaluate(archs)

    return stopping


def run(strategy=EVOLUTION, score=evaluate, seed=0, **kwargs):
    return search.run(
        strategy, score, jax.random.key(seed), batched=True, **{"objective": "fitness"} | kwargs
    )


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "history.jsonl"
    return run(history_path=path), path.read_text()


def test_history(finished_run):
    result, text = finished_run
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == result.history and len(lines) == 120 and result.resumed == 0
    for i, line in enumerate(lines):
        assert (line["index"], line["strategy"], line["generation"]) == (i, "evolution", i // 20)
        arch = SPACE.from_dict(line["architecture"])
        assert line["params"] == int(COST(arch)["params"]) and isinstance(line["params"], int)
        assert line["score"] == float(fitness(arch))
    assert result.score == max(line["score"] for line in lines) == float(fitness(result.arch))
    assert result.costs == {name: np.asarray(x).item() for name, x in COST(result.arch).items()}


@pytest.mark.parametrize("calls, cut", [(0, 0), (2, 0), (3, 5), (3, 700), (3, 10**6)])
def test_resume_equals_the_uninterrupted_search(finished_run, tmp_path, calls, cut):
    """Stopped in an evaluation, with some of the file's end lost on top."""
    result, text = finished_run
    path = tmp_path / "new" / "history.jsonl"
    with pytest.raises(Stop):
        run(score=stop_after(calls), history_path=path)
    if cut:
        path.write_text(path.read_text()[:-cut])
    again = run(history_path=path)
    assert path.read_text() == text
    for name in ("codes", "scores", "born", "size"):
        np.testing.assert_array_equal(getattr(again.state, name), getattr(result.state, name))
    np.testing.assert_array_equal(*(jax.random.key_data(r.state.key) for r in (again, result)))
    assert again.resumed == (0 if cut == 10**6 else 20 * calls - (20 if cut else 0))
    assert run(score=never, history_path=path).resumed == 120  # nothing is evaluated
    assert list(path.parent.iterdir()) == [path]


def test_two_searches_share_a_file(finished_run, tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text(finished_run[1])
    random = run(RANDOM, history_path=path)
    assert path.read_text().startswith(finished_run[1])
    assert random.history[0]["strategy"] == "random" and random.resumed == 0
    for strategy in (EVOLUTION, RANDOM):
        assert run(strategy, never, history_path=path).resumed == 120


@pytest.mark.more
def test_only_what_is_not_complete_of_this_search_is_cut_off(tmp_path):
    """A generation cut short by a smaller budget, with lines of another search behind it."""
    path, alone = tmp_path / "history.jsonl", tmp_path / "alone.jsonl"
    run(evaluations=30, history_path=path)
    short = path.read_text()
    run(RANDOM, evaluations=40, history_path=path)
    random = path.read_text().removeprefix(short)
    # Killed while it wrote: one whole line of the next generation, and a part of another.
    run(RANDOM, evaluations=60, history_path=alone)
    lines = alone.read_text().splitlines(keepends=True)
    assert "".join(lines[:40]) == random
    path.write_text(short + random + lines[40] + lines[41][:50])
    result = run(evaluations=60, history_path=path)
    assert result.resumed == 20
    got = path.read_text().splitlines(keepends=True)
    assert "".join(got[:20]) == "".join(short.splitlines(keepends=True)[:20])
    assert got[20:61] == lines[:41] and [json.loads(x)["index"] for x in got[61:]] == list(range(20, 60))
    assert run(RANDOM, evaluations=60, history_path=path).resumed == 40
    assert sorted(path.read_text().splitlines()[-20:]) == sorted(alone.read_text().splitlines()[-20:])
    assert run(evaluations=60, score=never, history_path=path).resumed == 60


def test_a_larger_budget_goes_on(finished_run, tmp_path):
    """30 is not a whole number of generations: the cut one is completed."""
    path = tmp_path / "history.jsonl"
    assert len(run(evaluations=30, history_path=path).history) == 30
    again = run(history_path=path)
    assert again.resumed == 20 and path.read_text() == finished_run[1]


def test_nan_scores_are_skipped(tmp_path):
    path = tmp_path / "history.jsonl"

    def sometimes(archs):
        scores = np.asarray(evaluate(archs))
        return np.where(scores > 5, np.nan, scores)

    result = run(score=sometimes, history_path=path)
    nans = [line for line in result.history if line["score"] is None]
    assert len(nans) == int(result.state.skipped) > 0
    assert result.score <= 5 and len(result.history) == 120
    assert run(score=never, history_path=path).score == result.score
    refusals.check((lambda: run(score=lambda archs: np.full(20, np.nan)), ValueError, "20", "failed"))


def test_a_first_failure_ends_no_search_that_asks_one_by_one(tmp_path):
    strategy = search.LocalSearch(SPACE, evaluations=30)

    def failing(times):
        def score(archs):
            calls.append(archs)
            value = np.asarray(evaluate(archs), np.float32)
            return np.full_like(value, np.nan) if len(calls) <= times else value

        calls = []
        return score

    told = []
    result = search.run(
        strategy,
        failing(3),
        jax.random.key(0),
        batched=True,
        history_path=tmp_path / "some",
        progress=told.append,
    )
    assert int(result.state.skipped) == 3 and len(result.history) == 30
    assert np.isnan([one.best for one in told]).tolist() == [True] * 3 + [False] * 27
    assert [one.failed for one in told] == [1, 2] + [3] * 28
    assert all(part in str(told[-1]) for part in ("30 of 30", "3", str(told[-1].best)[:4]))
    refusals.check((lambda: run(strategy, failing(30)), ValueError, "20", "failed"))


def test_an_evaluation_on_the_host_may_do_anything_with_arrays():
    def score(archs):
        chosen = archs["op"][archs["op"] > 1]  # as many as there are: no array without values can do that
        return np.asarray(evaluate(archs), np.float32) + 0 * np.float32(len(chosen))

    assert run(RANDOM, score).score == run(RANDOM).score


def test_infinite_scores_are_skipped_and_counted():
    def score(archs):
        scores = np.asarray(evaluate(archs)).copy()
        scores[::4] = np.inf
        return scores

    result = run(score=score)
    assert np.isfinite(result.score) and int(result.state.skipped) == 30
    assert result.history[0]["score"] is None and result.history[1]["score"] is not None
    refusals.check((lambda: run(score=lambda archs: np.full(20, -np.inf, np.float32)), ValueError, "20"))
