"""Promises that every strategy keeps: one course however it is run, nothing twice, no hang, clear errors."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import scipy.stats
import threadpoolctl
import tiers

from jaxnas import search
from jaxnas.search.neighbours import mutate_one, neighbours
from jaxnas.space import Choice, Space

SPACE = Space(width=Choice(1, 2, 4, 8), depth=Choice(3, 4, 5), op=Choice(0, 1, 2).repeat(5, active="depth"))
SMALL = Space(op=Choice("a", "b", "c").repeat(3))
TARGET = jnp.asarray([0, 2, 1, 1, 0])


def score(arch):
    """Each position prefers its own operation; wider is a little better."""
    match = SPACE.active(arch)["op"] & (arch["op"] == TARGET)
    return jnp.sum(match).astype(jnp.float32) + 0.1 * arch["width"].astype(jnp.float32)


@jax.jit
def evaluate(archs):
    return jax.vmap(score)(archs)


def cost(arch):
    width = jnp.asarray(SPACE["width"].table)[arch["width"]]
    return {"params": width * (1 + jnp.sum(jnp.where(SPACE.active(arch)["op"], arch["op"] + 1, 0)))}


TRANSFORMER = search.TransformerPolicy(width=8, layers=1, heads=2)
COMMON = dict(space=SPACE, evaluations=60)
STRATEGIES = {
    "random": search.RandomSearch(batch=10, **COMMON),
    "local": search.LocalSearch(**COMMON),
    "ageing": search.RegularizedEvolution(population=10, sample=4, **COMMON),
    "ageing, unique": search.RegularizedEvolution(population=10, sample=4, unique=True, **COMMON),
    "ageing, in parallel": search.RegularizedEvolution(population=10, sample=4, batch=4, **COMMON),
    "reinforce": search.Reinforce(learning_rate=0.3, queue=5, **COMMON),
    "ppo": search.PPO(policy=TRANSFORMER, learning_rate=0.01, **COMMON),
}
# The published form may evaluate an architecture again.
REPEATING = {"ageing", "ageing, in parallel"}
QUICK = ("random", "ageing", "ageing, in parallel")
every_strategy = pytest.mark.parametrize(
    "name", [*QUICK, *tiers.more(*(name for name in STRATEGIES if name not in QUICK))]
)


@functools.cache
def scanned(name):
    """The last states of eight searches that ran as one program."""
    many = jax.vmap(functools.partial(search.scan, STRATEGIES[name], evaluate))
    return jax.jit(many)(SEEDS)


SEEDS = jax.random.split(jax.random.key(3), 8)


@every_strategy
def test_one_program_and_the_host_loop_are_the_same_search(name, tmp_path):
    strategy, key, many = STRATEGIES[name], SEEDS[1], scanned(name)
    # A history file asks for the loop on the host.
    result = search.run(strategy, evaluate, key, batched=True, history_path=tmp_path / "history.jsonl")
    np.testing.assert_array_equal(many.codes[1], result.state.codes)
    np.testing.assert_array_equal(many.scores[1], result.state.scores)
    again = search.run(strategy, evaluate, key, batched=True, history_path=tmp_path / "history.jsonl")
    assert again.resumed == 60 and again.history == result.history


def test_an_evaluation_is_traced_by_a_scan_alone():
    """What NumPy draws is drawn anew in each generation of the loop on the host."""
    random = np.random.default_rng(0)

    def noisy(archs):
        return np.float32(random.normal()) + 0 * archs["width"].astype(jnp.float32)

    strategy = search.RandomSearch(SPACE, evaluations=20, batch=1)
    scores = [line["score"] for line in search.run(strategy, noisy, SEEDS[0], batched=True).history]
    assert len(set(scores)) == 20
    frozen = jax.jit(functools.partial(search.scan, strategy, noisy))(SEEDS[0])
    assert len(np.unique(frozen.scores)) == 1


@dataclasses.dataclass(frozen=True)
class Mine(search.Strategy):
    """A strategy of one's own: mutants of the best so far, two at a time."""

    batch: int = 2

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state):
        key, mutant_key, ask_key = jax.random.split(state.key, 3)
        order, _ = search.ranking(state)
        best = self.space.decode(jnp.maximum(state.codes[order[0]], 0))
        mutants = jax.vmap(lambda k: self.space.mutate(k, best, 0.2))(jax.random.split(mutant_key, 20))
        state = dataclasses.replace(state, key=key)
        quota = jnp.where(state.size > 0, self.batch, 0)
        return search.propose(self, state, ask_key, [(self.space.encode(mutants), quota)])


def test_a_strategy_of_ones_own_does_all_that_ours_do(tmp_path):
    strategy, path = Mine(SPACE, cost, {"params": (10, 40)}, evaluations=41), tmp_path / "history.jsonl"
    result = search.run(strategy, evaluate, SEEDS[0], batched=True, history_path=path)
    assert result.history[0]["strategy"] == "Mine" and len(result.history) == 41
    assert all(10 <= line["params"] <= 40 for line in result.history)
    assert len(np.unique(result.state.codes, axis=0)) == 41
    assert search.run(strategy, evaluate, SEEDS[0], batched=True, history_path=path).resumed == 41
    many = jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluate)))(SEEDS)
    np.testing.assert_array_equal(many.codes[0], result.state.codes)


@every_strategy
def test_the_budget_is_spent_on_different_canonical_architectures(name):
    state = scanned(name)
    assert np.all(np.asarray(state.size) == 60)
    for codes in np.asarray(state.codes):
        archs = SPACE.decode(codes)
        SPACE.check(archs)
        np.testing.assert_array_equal(SPACE.encode(SPACE.canonical(archs)), codes)
        if name not in REPEATING:
            assert len(np.unique(codes, axis=0)) == 60


@pytest.mark.parametrize(
    "name", ["ageing", *tiers.more("local", "ageing, unique", "ageing, in parallel", "reinforce")]
)
def test_learns_more_than_random_search(name):
    """Mean of the scores of the last 20 evaluations."""
    last = {n: np.asarray(scanned(n).scores)[:, -20:].mean() for n in (name, "random")}
    assert last[name] > last["random"] + 0.3, last


@pytest.mark.parametrize("name", ["ageing", *tiers.more("local", "ageing, unique", "reinforce")])
def test_bounds_and_canonical_hold_and_failures_are_skipped_and_counted(name):
    def mirrored(arch):
        """Networks are equal if they agree but for the first operation."""
        return {**arch, "op": arch["op"].at[0].set(0)}

    def sometimes(archs):
        scores = evaluate(archs)
        return jnp.where(scores > 2, jnp.nan, jnp.where(scores < 0.5, jnp.inf, scores))

    bounds = {"params": (10, 40)}
    strategy = dataclasses.replace(STRATEGIES[name], cost=cost, bounds=bounds, canonical=mirrored)
    state = jax.jit(functools.partial(search.scan, strategy, sometimes))(SEEDS[0])
    codes, scores = np.asarray(state.codes), np.asarray(state.scores)
    archs = SPACE.decode(codes)
    params = np.asarray(jax.vmap(cost)(archs)["params"])
    assert np.all((params >= 10) & (params <= 40)) and not np.any(np.asarray(archs["op"])[:, 0])
    assert len(np.unique(codes, axis=0)) == 60 or name in REPEATING
    assert int(state.skipped) == np.sum(np.isnan(scores)) > 0
    assert 0.5 <= strategy.best(state)[1] <= 2
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.memory)) or name == "local"


@pytest.mark.parametrize("kind", [search.LocalSearch, *tiers.more(search.Reinforce, search.PPO)])
def test_an_exhausted_space_ends_the_search(kind):
    strategy = kind(space=SMALL, evaluations=100)

    def count(archs):
        return jnp.sum(archs["op"], 1).astype(jnp.float32)

    state = jax.jit(functools.partial(search.scan, strategy, count))(SEEDS[0])
    assert int(state.size) == 27 and bool(strategy.finished(state))
    assert bool(state.exhausted) and strategy.best(state)[1] == 6


def test_the_tournament_draws_different_ones_uniformly():
    """Of six with scores 0 to 5, the winner of three different ones is 2 in one case of 20, 5 in ten."""
    space = Space(op=Choice(*range(6)))
    strategy = search.RegularizedEvolution(space, evaluations=7, population=6, sample=3)
    state = dataclasses.replace(
        strategy.init(SEEDS[0]),
        codes=jnp.asarray([*range(6), -1], jnp.int32)[:, None],
        scores=jnp.asarray([*range(6), np.nan], jnp.float32),
        size=jnp.int32(6),
    )
    keys = jax.random.split(jax.random.key(0), 8000)
    mutants = np.asarray(jax.jit(strategy._mutants)(keys, state))[:, 0]
    # A mutant is any option but the winner's own.
    wins = np.asarray([0, 0, 1, 3, 6, 10]) / 20
    expected = 8000 * (1 - wins) / 5
    assert scipy.stats.chisquare(np.bincount(mutants, minlength=6), expected).pvalue > 1e-3


def test_a_mutation_changes_one_active_decision_and_reaches_every_option():
    arch = SPACE.from_dict(dict(width=2, depth=4, op=[0, 1, 2, 0]))
    code = SPACE.encode(arch)
    keys = jax.random.split(jax.random.key(0), 6000)
    mutants = np.asarray(jax.jit(jax.vmap(lambda key: mutate_one(SPACE, key, code)))(keys))
    around = {tuple(row) for row in np.asarray(neighbours(SPACE, code)).tolist()} - {tuple(code.tolist())}
    assert {tuple(row) for row in mutants.tolist()} == around
    # Six decisions count, each as often as another, and so does each of a decision's other options.
    widths, depths = (np.bincount(mutants[:, k])[:4] for k in (0, 1))
    both = [*np.delete(widths, code[0]), *np.delete(depths, code[1])]
    expected = [6000 / 6 / 3] * 3 + [6000 / 6 / 2] * 2
    rest = 6000 - sum(both), 6000 - sum(expected)
    assert scipy.stats.chisquare([*both, rest[0]], [*expected, rest[1]]).pvalue > 1e-3


@pytest.mark.more
def test_the_transformer_policy_draws_by_the_probabilities_that_it_is_trained_by():
    """Also where an earlier decision makes others inactive."""
    space = Space(depth=Choice(1, 2), op=Choice("a", "b").repeat(2, active="depth"), last=Choice(0, 1))
    context = jnp.zeros((3,))
    params = TRANSFORMER.init(jax.random.key(0), space)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    params = jax.tree.unflatten(
        tree,
        [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)],
    )
    draw = jax.jit(jax.vmap(lambda key: TRANSFORMER.sample(params, space, key, context)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(2), 20_000)))
    codes, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(codes) == space.cardinality == 12
    told = jax.vmap(lambda code: TRANSFORMER.evaluate(params, space, code, context)[0])(codes)
    expected = np.exp(np.asarray(told, np.float64))
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    assert scipy.stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > 1e-3


@pytest.mark.more
def test_a_policy_that_sees_the_budget_goes_on_with_the_same_one_only(tmp_path):
    def searched(policy, evaluations):
        strategy = search.Reinforce(SPACE, policy=policy, evaluations=evaluations)
        path = tmp_path / f"{type(policy).__name__}.jsonl"
        return search.run(strategy, evaluate, SEEDS[0], batched=True, history_path=path)

    searched(search.SoftmaxPolicy(), 20)
    assert searched(search.SoftmaxPolicy(), 30).resumed == 20
    searched(TRANSFORMER, 20)
    refusals.check((lambda: searched(TRANSFORMER, 30), ValueError, "evaluations"))


def test_a_strategy_asks_by_one_thread_of_the_blas_and_evaluations_have_theirs():
    def threads():
        return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]

    class Nosy(search.RandomSearch):
        def ask(self, state):
            asking.append(threads())
            return super().ask(state)

    if not threads():
        pytest.skip("the BLAS here is one whose threads cannot be set")
    with threadpoolctl.threadpool_limits(2, "blas"):
        asking, evaluating = [], []

        def noted(archs):
            evaluating.append(threads())
            return np.ones(len(archs["op"]), np.float32)

        strategy = Nosy(SMALL, evaluations=6, batch=3)
        search.run(strategy, noted, SEEDS[0], batched=True)
        before = threads()
    assert len(asking) == len(evaluating) == 2
    assert all(set(found) == {1} for found in asking) and all(found == before for found in evaluating)
