"""Races over fidelities: they halve and carry the best on, nothing enters twice, budgets and failures."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from small_searches import OPS, pairs

from jaxnas import search
from jaxnas.space import Choice, Space

KEYS = jax.random.split(jax.random.key(0), 4)


def evaluate(archs, fidelity):
    """The true score, less an error that is smaller at each higher fidelity; and 1, 3 or 9 seconds."""
    places = archs["op"].shape[1]
    code = jnp.sum(archs["op"] * 4 ** jnp.arange(places)[None, :], axis=1)
    level = jnp.asarray(fidelity).astype(jnp.float32)
    seconds = jnp.broadcast_to(jnp.asarray([1.0, 3.0, 9.0])[fidelity], code.shape)
    return pairs(archs) + jnp.sin(code.astype(jnp.float32)) * (2 - level), seconds


# Batches of 4: rungs of 9, 3 and 1 take several, and one is not full.
RACES = search.Hyperband(OPS, evaluations=70, fidelities=3, first=9, batch=4)
TIMED = dataclasses.replace(RACES, budget=150.0)


@pytest.fixture(scope="module")
def races():
    """The last states of four searches that ran as one program, and the rows of each that are in use."""
    states = jax.jit(jax.vmap(functools.partial(search.scan, TIMED, evaluate)))(KEYS)
    return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(len(KEYS))]


def run(strategy, evaluate=evaluate, key=KEYS[0], **more):
    return search.run(strategy, evaluate, key, **{"batched": True} | more)


def used(state):
    """Codes, scores, fidelities and seconds of the evaluations, in their order."""
    columns = state.codes, state.scores, state.memory.fidelity, state.memory.seconds
    return [np.asarray(x)[: int(state.size)] for x in columns]


def test_races_halve_and_carry_the_best_on(races):
    assert [RACES.rungs(start) for start in range(3)] == [[9, 3, 1], [3, 1], [1]]
    sweep = [0] * 9 + [1] * 3 + [2] + [1] * 3 + [2] + [2]
    for codes, scores, fidelity, _ in map(used, races):
        np.testing.assert_array_equal(fidelity, (sweep * 4)[: len(codes)])
        for first in range(0, len(codes) - 12, 18):
            best = np.argsort(-scores[first : first + 9], kind="stable")
            np.testing.assert_array_equal(codes[first + 9 : first + 12], codes[first + best[:3]])
            winner = first + 9 + np.argmax(scores[first + 9 : first + 12])
            np.testing.assert_array_equal(codes[first + 12], codes[winner])
        # What starts a race was never evaluated before.
        starts = np.flatnonzero(np.isin(np.arange(len(codes)) % 18, [*range(9), 13, 14, 15, 17]))
        assert len(np.unique(codes[starts], axis=0)) == len(starts)


def test_the_budget_in_seconds_ends_a_search_and_counts(races):
    for state in races:
        codes, scores, fidelity, seconds = used(state)
        np.testing.assert_array_equal(seconds, 3.0**fidelity)
        spent = np.cumsum(seconds)
        assert spent[-1] >= 150 and len(codes) < 70
        for budget in (20.0, 80.0, 150.0):
            inside = spent <= budget
            highest = inside & (fidelity == fidelity[inside].max())
            _, best = dataclasses.replace(TIMED, budget=budget).best(state)
            assert best == scores[highest].max()
    # 150 seconds are 16 evaluations at the highest fidelity, the only one that counts.
    assert np.mean([scores[fidelity == 2].max() for _, scores, fidelity, _ in map(used, races)]) > 2


def test_a_search_goes_on_with_a_larger_budget(races, tmp_path):
    path = tmp_path / "history.jsonl"
    first = run(dataclasses.replace(TIMED, budget=60.0), history_path=path)
    more = run(TIMED, history_path=path)
    assert more.resumed == len(first.history) < len(more.history)
    jax.tree.map(np.testing.assert_array_equal, used(more.state), used(races[0]))


def test_an_exhausted_space_ends_after_the_race_that_is_being_run():
    small = Space(op=Choice("a", "b", "c").repeat(2))
    strategy = search.SuccessiveHalving(small, evaluations=100, fidelities=3, first=6, eta=2)
    assert strategy.starts == (0,) and strategy.name == "SuccessiveHalving"
    state = run(strategy).state
    # Nine architectures: a race of six, and one of the three that are left.
    np.testing.assert_array_equal(used(state)[2], [0] * 6 + [1] * 3 + [2] + [0] * 3 + [1] + [2])
    assert bool(state.exhausted) and bool(strategy.finished(state))


def test_failed_evaluations_are_counted_and_never_go_on():
    def sometimes(archs, fidelity):
        scores, seconds = evaluate(archs, fidelity)
        failed = archs["op"][:, 0] != 2
        return jnp.where(failed, jnp.nan, jnp.where(scores > 6, jnp.inf, scores)), seconds

    state = run(RACES, sometimes).state
    scores, fidelity = np.asarray(state.scores), np.asarray(state.memory.fidelity)
    assert int(state.size) == 70 and int(state.skipped) == np.isnan(scores).sum() > 0
    usable = np.isfinite(scores[np.flatnonzero(fidelity == 0)[:9]]).sum()
    assert np.sum(fidelity[9:12] == 1) >= min(usable, 3) and RACES.best(state)[1] <= 6
    # Whoever was promoted had a score at the fidelity below.
    codes = np.asarray(state.codes)
    lost = {tuple(code) for code in codes[np.isnan(scores) & (fidelity == 0)]}
    assert not lost & {tuple(code) for code in codes[fidelity > 0][np.isfinite(scores[fidelity > 0])]}
    refusals.check((lambda: run(RACES, lambda a, f: evaluate(a, f)[0] * jnp.nan), ValueError, "failed"))


def test_seconds_may_be_left_out_where_no_budget_needs_them():
    def silent(values, fidelity):
        """Of option values, as a plain Python function."""
        indices = jnp.asarray([["abcd".index(option) for option in values["op"]]])
        return float(evaluate({"op": indices}, fidelity)[0][0])

    result = run(RACES, silent, batched=False)
    np.testing.assert_array_equal(result.state.codes, run(RACES).state.codes)
    assert {line["seconds"] for line in result.history} == {0.0}
    refusals.check((lambda: run(TIMED, silent, batched=False), ValueError, "budget", "150.0"))


GIVEN = np.asarray(OPS.encode(OPS.sample(jax.random.key(9), 7)))
TRIALS = search.SuccessiveHalving(OPS, given=search.Pool(GIVEN), fidelities=3, eta=2, batch=1)


def test_a_race_of_given_architectures_has_one_line_for_each_trial(tmp_path):
    assert TRIALS.rungs(0) == [7, 3, 1] and TRIALS.evaluations == 11
    path, calls, inodes = tmp_path / "history.jsonl", [], set()

    def trial(archs, fidelity):
        inodes.add(path.stat().st_ino)
        calls.append((OPS.encode(archs)[0].tolist(), fidelity, path.read_text().count("\n")))
        return evaluate(archs, fidelity)

    result = run(TRIALS, trial, history_path=path)
    codes, scores = np.asarray(result.state.codes), np.asarray(result.state.scores)
    np.testing.assert_array_equal(codes[:7], GIVEN)
    np.testing.assert_array_equal(codes[7:10], codes[np.argsort(-scores[:7], kind="stable")[:3]])
    np.testing.assert_array_equal(codes[10], codes[7 + np.argmax(scores[7:10])])
    np.testing.assert_array_equal(OPS.encode(result.arch), codes[10])
    assert len(inodes) == 1  # appended to, and not written anew
    assert calls == [(codes[i].tolist(), f, i) for i, f in enumerate([0] * 7 + [1] * 3 + [2])]
    # Killed in a trial: those before it are not run again.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:8]) + lines[8][:30])
    calls.clear()
    again = run(TRIALS, trial, history_path=path)
    assert len(calls) == 3 and again.resumed == 8 and path.read_text() == "".join(lines)
    other = dataclasses.replace(TRIALS, given=search.Pool(GIVEN[:4]))
    refusals.check((lambda: run(other, history_path=path), ValueError, "first", "given"))


def test_a_given_race_ends_where_trials_fail():
    def trial(archs, fidelity):
        return jnp.where(jnp.asarray(fidelity) == 1, jnp.nan, evaluate(archs, fidelity)[0])

    strategy = dataclasses.replace(TRIALS, batch=0)
    state = jax.jit(functools.partial(search.scan, strategy, trial))(KEYS[0])
    codes, scores, fidelity, _ = used(state)
    np.testing.assert_array_equal(codes[:7], GIVEN)
    assert fidelity.tolist() == [0] * 7 + [1] * 3 and strategy.best(state)[1] == np.nanmax(scores)
