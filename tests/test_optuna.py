"""A search as a study of Optuna, and Optuna's samplers as strategies."""

import functools
import importlib
import sys

import jax
import numpy as np
import optuna
import pytest
import refusals

import jaxnas
from jaxnas import Choice, Space, search

SPACE = Space(
    depth=Choice(2, 3, 4),
    width=Choice(16, 32, 48).repeat(4, active="depth"),
    op=Choice("a", "b"),
    kernel=Choice(3, 5, 11).when("op", "b"),
)
KEY = jax.random.key(0)


def score(values):
    return sum(values["width"]) / 100 + (values.get("kernel", 0) - 2) * 0.01


def cost(arch):
    return {"layers": arch["depth"] + 4}  # indices of options


def test_a_study_has_the_decisions_scores_costs_and_failures_of_a_search():
    def sometimes(values):
        return np.nan if values["op"] == "a" else score(values)

    strategy = search.RandomSearch(SPACE, cost, evaluations=40, batch=10)
    result = search.run(strategy, sometimes, KEY)
    study = jaxnas.optuna.to_study(SPACE, result.history, bounds={"layers": (None, 5)})
    within = [line["score"] for line in result.history if line["layers"] <= 5 and line["score"] is not None]
    assert study.best_value == max(within)
    assert {trial.params["depth"] for trial in study.best_trials} <= {2, 3}
    for line, trial in zip(result.history, study.trials, strict=True):
        values = line["architecture"]
        failed = values["op"] == "a"
        assert trial.state == optuna.trial.TrialState.FAIL if failed else trial.value == line["score"]
        assert trial.user_attrs["layers"] == values["depth"] + 2
        widths = {f"width[{i}]": width for i, width in enumerate(values["width"])}
        rest = {name: value for name, value in values.items() if name != "width"}
        assert trial.params == rest | widths  # without decisions that are not active
    assert trial.distributions["width[0]"] == optuna.distributions.IntDistribution(16, 48, step=16)
    assert trial.distributions["op"] == optuna.distributions.CategoricalDistribution(("a", "b"))


def test_several_objectives_are_several_values():
    strategy = search.NSGA2(SPACE, objectives=2, evaluations=20, population=10)
    result = search.run(strategy, lambda values: (score(values), -values["depth"]), KEY)
    study = jaxnas.optuna.to_study(SPACE, result.history)
    assert {tuple(np.float32(trial.values)) for trial in study.best_trials} == set(map(tuple, result.score))


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "jaxnas.optuna", raising=False)
    with pytest.raises(ImportError, match=r"jaxnas\[optuna\]"):
        importlib.import_module("jaxnas.optuna")


def test_what_is_of_another_space_is_refused():
    other = Space(depth=Choice(2, 3, 4, 5), op=Choice("a", "b"))
    line = {"architecture": {"depth": 5, "op": "a"}, "score": 1.0, "strategy": "random", "generation": 0}
    history = [line]
    study = jaxnas.optuna.to_study(other, history)
    refusals.check(
        (lambda: jaxnas.optuna.to_study(SPACE, [], study=study), ValueError, "depth", "another space"),
        (lambda: jaxnas.optuna.to_study(SPACE, history), ValueError, "depth", "5"),
    )


@pytest.mark.parametrize(
    "sampler",
    [functools.partial(optuna.samplers.TPESampler, n_startup_trials=4), optuna.samplers.NSGAIISampler],
    ids=["tpe", "nsga2"],
)
def test_samplers_search_within_bounds_and_resume(sampler, tmp_path):
    strategy = jaxnas.optuna.FromOptuna(SPACE, cost, {"layers": (None, 5)}, evaluations=25, sampler=sampler)
    calls = []

    def stopping(values):
        calls.append(values)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return np.nan if values["op"] == "a" else score(values)

    settings = dict(history_path=tmp_path / "history.jsonl", objective="of the test")
    with pytest.raises(KeyboardInterrupt):
        search.run(strategy, stopping, KEY, **settings)
    resumed = search.run(strategy, stopping, KEY, **settings)
    whole = search.run(strategy, stopping, KEY, objective="of the test")
    assert resumed.resumed == 12
    tried = [line["architecture"] for line in resumed.history]
    assert tried == [line["architecture"] for line in whole.history]
    assert len({str(values) for values in tried}) == 25  # none twice
    assert all(values["depth"] <= 3 for values in tried)


def test_networks_that_are_equal_are_one_proposal():
    """The sampler's own trials get the scores, and are not replaced by random architectures."""
    scored = []

    class Watched(optuna.samplers.RandomSampler):
        def after_trial(self, study, trial, state, values):
            scored.append(values)

    def without_kernels(arch):
        return SPACE.canonical({**arch, "op": 0 * arch["op"]})

    strategy = jaxnas.optuna.FromOptuna(SPACE, evaluations=20, sampler=Watched, canonical=without_kernels)
    result = search.run(strategy, score, KEY)
    tried = [str(line["architecture"]) for line in result.history]
    assert len(set(tried)) == 20 and not any("'b'" in values for values in tried)
    told = {values[0] for values in scored if values}
    assert {line["score"] for line in result.history[:-1]} <= told  # the last is told when one more is asked


def test_a_sampler_learns():
    """As a tree-structured Parzen estimator does, and random search does not."""
    space = Space(width=Choice(*range(8)).repeat(6))

    def near(values):
        return -sum(abs(width - 5) for width in values["width"])

    def found(strategy, **options):
        searcher = strategy(space, evaluations=60, **options)
        return np.mean([search.run(searcher, near, jax.random.key(seed)).score for seed in range(3)])

    assert found(jaxnas.optuna.FromOptuna) > found(search.RandomSearch, batch=1) + 1
