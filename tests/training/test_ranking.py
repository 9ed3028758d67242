"""Rank correlations: inherited against stand-alone quality of architectures."""

import concurrent.futures
import dataclasses
import json

import jax
import numpy as np
import pytest
import scipy.stats
from refusals import check
from small_nets import random_params, take
from small_tasks import perceptron, random_images, task_of

import jaxnas
from jaxnas import data, executors, runs, search, tasks
from jaxnas.runs.ranking import _interval, kendall_tau, trained_alone
from jaxnas.training import EarlyStopping, Options, Training, make_evaluator, train_seeds
from jaxnas.training.alone import make_scorer
from jaxnas.training.keys import stream

TASK, NET = task_of("images"), perceptron(1, range(1, 9))
VARIABLES = {"params": random_params(NET, TASK.inputs.shape)}
TRAINING = Training(steps=6, batch_size=8, learning_rate=3e-2, devices=1)


def scores_alone(training, archs, **options):
    return np.float32([*make_scorer(TASK, NET, training, **options)(archs)])


@pytest.mark.parametrize("together", [1, None])
def test_each_architecture_is_trained_alone_as_if_there_were_no_others(together):
    archs, options = NET.space.sample(jax.random.key(0), 5), Options(together=together)
    alone = scores_alone(TRAINING, archs, together=together or 5)
    once = dict(
        training=dataclasses.replace(TRAINING, evaluate_every=6), stopping=EarlyStopping(role="search")
    )
    both = train_seeds(TASK, NET, seeds=[4] * 5, arch=archs, options=options, **once)
    own = train_seeds(TASK, NET, seeds=[0], arch=take(archs, 3), **once)
    assert own.metrics["search"]["accuracy"][0] == pytest.approx(alone[3], abs=1e-6)
    # So are several seeds at once.
    one = train_seeds(TASK, NET, seeds=[4], arch=take(archs, 3), **once)
    for a, b in zip(*map(jax.tree.leaves, (both.variables, one.variables)), strict=True):
        np.testing.assert_allclose(a[3], b[0], rtol=1e-5, atol=1e-6)


def test_a_ranking_has_inherited_scores_and_those_alone():
    found = runs.rank(TASK, NET, VARIABLES, runs.Lab(alone=TRAINING), 5)
    archs = jax.tree.map(lambda *x: np.stack(x), *map(NET.space.from_dict, found.architectures))
    expected = make_evaluator(TASK, NET, "search").scores(VARIABLES, archs)
    np.testing.assert_array_equal(np.float32(found.inherited), expected)
    np.testing.assert_array_equal(np.float32(found.alone), scores_alone(TRAINING, archs))
    tau = scipy.stats.kendalltau(found.inherited, found.alone).statistic
    assert found.kendall_tau == (None if np.isnan(tau) else tau)
    assert (found.role, found.steps) == ("search", 6)


def test_kendall_tau_and_its_interval():
    """As SciPy has it; NaN, and no warning, where there is none; an interval over resampled rows."""
    assert kendall_tau([1, 2, 3, 3], [1, 3, 2, 3]) == pytest.approx(0.4)
    for x, y in (([], []), ([1.0], [1.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, np.nan], [1.0, 2.0])):
        assert np.isnan(kendall_tau(np.asarray(x), np.asarray(y)))
        assert np.isnan(_interval(np.asarray(x), np.asarray(y), jax.random.key(0), 9)).all()
    x = np.arange(30.0)
    y = x + np.random.default_rng(0).normal(size=30) * 10
    low, high = _interval(x, y, jax.random.key(0))
    assert 0 < low < kendall_tau(x, y) < high < 1
    assert _interval(x, x, jax.random.key(0), 9) == pytest.approx((1, 1))


@pytest.mark.more
def test_the_page_shows_what_was_ranked(tmp_path):
    settings = runs.Search(ranked=3, ranked_steps=2, most_share=0.9)
    result = runs.search_and_finish(TASK, NET, VARIABLES, settings, runs.Lab(tmp_path, alone=TRAINING))
    assert len(result.ranking.inherited) == len(result.ranking.alone) == 3 and result.ranking.steps == 2
    html = (tmp_path / "report.html").read_text()
    assert "How well the supernet ranks architectures" in html and "3 random architectures" in html
    assert jaxnas.report.result.read(tmp_path) == result


@pytest.mark.more
def test_the_best_of_the_finalists_is_found():
    strategy = search.RandomSearch(NET.space, evaluations=6, batch=6)
    settings = runs.Search(runs.ByStrategy(strategy, finalists=3, finalist_steps=4, baseline=False))
    found = runs.search_space(TASK, NET, VARIABLES, settings, runs.Lab(alone=TRAINING))
    plain = dataclasses.replace(settings, method=runs.ByStrategy(strategy, baseline=False))
    first = runs.search_space(TASK, NET, VARIABLES, plain)
    assert NET.space.to_dict(found.others["best inherited"]) == NET.space.to_dict(first.arch)
    scores = make_evaluator(TASK, NET, "search").scores
    drawn = search.run(strategy, lambda archs: scores(VARIABLES, archs), stream(0, "evolution"), batched=True)
    best = sorted(drawn.history, key=lambda line: -line["score"])
    distinct = {str(line["architecture"]): line["architecture"] for line in best}
    archs = [NET.space.from_dict(values) for values in list(distinct.values())[:3]]
    batch = jax.tree.map(lambda *x: np.stack(x), *archs)
    alone = scores_alone(TRAINING.shortened(4), batch)
    assert NET.space.to_dict(found.arch) == NET.space.to_dict(archs[int(np.argmax(alone))])
    # On workers, which find the last one the best.
    told, names = [], [json.dumps(NET.space.to_dict(arch)) for arch in archs]

    def on_a_worker(text, steps):
        told.append((text, steps))
        return float(names.index(text))

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        calls, lengths = executors.Calls(on_a_worker, executor), executors.Calls(len_of, executor)
        there = runs.search_space(
            TASK, NET, VARIABLES, settings, runs.Lab(alone=TRAINING, workers={"alone": calls})
        )
        own = runs.Lab(alone=TRAINING.shortened(3), workers={"alone": lengths})
        ranking = runs.rank(TASK, NET, VARIABLES, own, 2)
    assert NET.space.to_dict(there.arch) == NET.space.to_dict(archs[2])
    assert sorted(told) == sorted((name, 4) for name in names)
    assert list(ranking.alone) == [len_of(json.dumps(values), 3) for values in ranking.architectures]


def len_of(text, steps):
    return float(len(text) + steps + sum(json.loads(text)["hidden"]))


def test_what_was_trained_alone_in_a_workdir_is_not_trained_again(tmp_path):
    """Also after a kill in the middle of a line; other settings, and only they, begin anew."""
    largest, other = NET.space.largest(), NET.space.from_dict({"hidden": [3]})
    archs = jax.tree.map(lambda *x: np.stack(x), NET.space.smallest(), largest, other, largest)
    names = [json.dumps(one) for one in NET.space.to_dicts(archs)]
    path, told = tmp_path / "search" / "alone.jsonl", []

    def run(training, broken=(), task=TASK):
        def on_a_worker(text, steps):
            told.append(names.index(text))
            return float("nan") if names.index(text) in broken else float(names.index(text) + steps)

        told.clear()
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            calls = executors.Calls(on_a_worker, executor)
            scores = trained_alone(
                task, NET, archs, runs.Lab(tmp_path, alone=training, workers={"alone": calls})
            )
        return scores, list(told)

    scores, trained = run(TRAINING, broken=[2])
    np.testing.assert_array_equal(scores, [6, 7, np.nan, 7])
    assert trained == [0, 1, 2]  # the last one is the second
    np.testing.assert_array_equal(run(TRAINING)[0], scores)
    assert told == []
    path.write_bytes(path.read_bytes()[:-30])
    scores, trained = run(TRAINING)
    np.testing.assert_array_equal(scores, [6, 7, 8, 7])
    assert trained == [2] and len(path.read_text().splitlines()) == 3
    assert run(TRAINING.shortened(4))[1] == [0, 1, 2] and run(TRAINING)[1] == []
    images, labels = random_images(80, 5)
    other_data = tasks.Images(data=data.from_arrays(images, labels, *random_images(30, 1)))
    assert run(TRAINING, task=other_data)[1] == [0, 1, 2]
    path.write_text(path.read_text().replace('"score": 7.0', '"score": 9.0'))
    with pytest.raises(ValueError, match="'alone'"):
        run(TRAINING)


def test_a_training_that_diverges_is_left_out_of_the_ranking():
    wild = dataclasses.replace(TRAINING, learning_rate=1e30, warmup_steps=0)
    found = runs.rank(TASK, NET, VARIABLES, runs.Lab(alone=wild), 3)
    assert found.alone == (None,) * 3 and found.kendall_tau is None and found.interval == (None, None)


def test_what_cannot_be_ranked_is_refused(tmp_path):
    two = NET.space.sample(jax.random.key(0), 2)

    def settings(name, **wrong):
        return lambda: runs.Search(**wrong), ValueError, name

    def searched(name, variables=VARIABLES, **wrong):
        return lambda: runs.search_space(TASK, NET, variables, runs.Search(**wrong)), ValueError, name

    def finished():
        return runs.search_and_finish(TASK, NET, VARIABLES, runs.Search(ranked=2), runs.Lab(tmp_path))

    check(
        (lambda: runs.rank(TASK, NET, VARIABLES, runs.Lab(alone=TRAINING), 1), ValueError, "count is 1"),
        settings("search.ranked is 1", ranked=1),
        (lambda: runs.ByStrategy(finalists=-1), ValueError, "search.method.finalists is -1"),
        *(
            searched("did you mean 'params'", budget="para", **x)
            for x in ({}, {"most": 1e6}, {"most_share": 0.5})
        ),
        searched("finalists is 2; give runs.Lab(alone=...)", method=runs.ByStrategy(finalists=2)),
        searched("NaN or infinite values in the weights", jax.tree.map(lambda x: x * np.nan, VARIABLES)),
        searched("missing", {"params": {"other": np.ones(3)}}),
        (
            lambda: runs.search_space(TASK, NET, VARIABLES, runs.Search(runs.Argmax())),
            TypeError,
            "Argmax()",
            "runs.select",
        ),
        (finished, ValueError, "give runs.Lab(alone=...)"),
        (lambda: train_seeds(TASK, NET, TRAINING, [1], arch=two), ValueError, "2 architectures and 1 seeds"),
    )
