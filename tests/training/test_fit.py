"""A training from its first step to its last: defaults, exact resume, divergence, averages, times."""

import dataclasses
import json
import os
import shutil
import signal
import threading

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
import tiers
from refusals import check
from small_nets import difference
from small_tasks import disturbed, net_of, perceptron, task_of

import jaxnas
from jaxnas import files, report, runs, search
from jaxnas.training import (
    Checkpointer,
    ConfigMismatch,
    DivergedError,
    Fixed,
    Relaxed,
    Stopped,
    Training,
    Uniform,
    fit,
    make_evaluator,
    make_mesh,
    replay,
)
from jaxnas.training.ahead import Ahead
from jaxnas.training.fit import PARTS, restore
from jaxnas.training.keys import stream
from jaxnas.training.prepare import prepare

TASK, NET, MESH = task_of("images"), perceptron(1), make_mesh(1)
TRAINING = Training(
    steps=7,
    batch_size=8,
    learning_rate=1e-2,
    warmup_steps=1,
    log_every=1,
    evaluate_every=3,
    checkpoint_every=2,
    prefetch=0,  # tests disturb what happens while the batch of a step is made
)


def config_of(training):
    settings = {"learning_rate": training.learning_rate, "clip": training.clip, "steps": training.steps}
    return {"seed": 0, "training": settings}


def train(task, workdir, training=TRAINING, **settings):
    settings = {"config": config_of(training), "mesh": MESH, **settings}
    return fit(task, NET, training, workdir=workdir, **settings)


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def saved(workdir):
    with Checkpointer(workdir / "checkpoints") as checkpoints:
        return checkpoints.steps()


# ---- Resume.


UNIFORM, RELAXED = Uniform(), Relaxed(start=2, every=2)


def stop_by(number):
    def change(batch):
        os.kill(os.getpid(), number)
        return batch

    return change


def fail(batch):
    raise RuntimeError("the machine stops here")


@pytest.mark.parametrize(
    ("recipe", "how"),
    [
        (UNIFORM, "SIGTERM"),
        (RELAXED, "error"),
        *tiers.nightly((UNIFORM, "error"), (UNIFORM, "SIGINT"), (RELAXED, "SIGTERM")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__.lower(),
)
def test_an_interrupted_training_ends_as_one_that_was_not(recipe, how, tmp_path, whole_runs):
    whole, metrics = whole_runs(recipe)
    change = fail if how == "error" else stop_by(getattr(signal, how))
    broken = disturbed(4, change)
    if how == "error":
        with pytest.raises(RuntimeError, match="the machine stops here"):
            train(broken, tmp_path, recipe=recipe)
        assert saved(tmp_path)[-1] == 4
    else:
        with pytest.raises(Stopped) as stop:
            train(broken, tmp_path, recipe=recipe)
        stopped = stop.value.trained
        assert not stopped.complete and int(stopped.state.step) == 5 == saved(tmp_path)[-1]
        assert isinstance(stop.value, KeyboardInterrupt) or stop.value.code == 143
        assert not (tmp_path / "times.json").exists()
    # Not with another seed.
    with pytest.raises(ConfigMismatch, match="seed: 0 .* / 1 "):
        train(TASK, tmp_path, recipe=recipe, config={**config_of(TRAINING), "seed": 1})
    again = train(TASK, tmp_path, recipe=recipe)
    assert again.complete and int(again.state.step) == 7
    for a, b in zip(jax.tree.leaves(again.state), jax.tree.leaves(whole.state), strict=True):
        a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics
    # Complete, it is not trained on; what it left is found.
    before = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
    assert train(broken, tmp_path, recipe=recipe).complete
    assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == before
    found = restore(TASK, NET, TRAINING, recipe, tmp_path, config_of(TRAINING), MESH)
    assert found.complete and difference(found.variables, whole.variables) == 0


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory):
    """From a recipe to a training without interruptions, and its metrics file."""
    made = {}

    def run(recipe):
        if recipe not in made:
            folder = tmp_path_factory.mktemp("whole")
            trained = train(TASK, folder, recipe=recipe)
            made[recipe] = trained, (folder / "metrics.jsonl").read_bytes()
        return made[recipe]

    return run


@pytest.mark.parametrize("complete", [True, *tiers.more(False)])
def test_records_that_were_lost_or_changed_are_noticed(complete, tmp_path):
    if complete:
        train(TASK, tmp_path)
    else:
        with pytest.raises(RuntimeError):
            train(disturbed(4, fail), tmp_path)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for changed in (whole[first:], whole[:first], b"", whole.replace(b"0", b"1", 1)):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="jsonl is not"):
            train(TASK, tmp_path)
        assert path.read_bytes() == changed
        if complete:
            with pytest.raises(ValueError, match="jsonl is not"):
                restore(TASK, NET, TRAINING, UNIFORM, tmp_path, config_of(TRAINING), MESH)
    path.unlink()
    if not complete:  # Killed again before the next checkpoint, the file begins behind the last one.
        with pytest.raises(RuntimeError):
            train(disturbed(5, fail), tmp_path)
        assert [line["step"] for line in lines(tmp_path)] == [5]
    assert train(TASK, tmp_path).complete and train(TASK, tmp_path).complete
    assert path.exists() == (not complete)  # those behind the checkpoint


def test_records_follow_the_settings(tmp_path):
    train(TASK, tmp_path)
    steps = {"train": [1, 2, 3, 4, 5, 6, 7], "search": [3, 6, 7]}
    found = lines(tmp_path)
    for split, expected in steps.items():
        assert [line["step"] for line in found if line["split"] == split] == expected
    assert {"loss", "accuracy", "learning_rate"} <= found[0].keys()
    watched = [line for line in found if line["split"] == "search"][-1]
    low, mean, high = (watched[f"random_accuracy_{name}"] for name in ("min", "mean", "max"))
    assert 0 <= low <= mean <= high <= 1
    assert saved(tmp_path) == [4, 6, 7]  # the last three


@pytest.mark.parametrize("how", [*tiers.more("error"), "SIGTERM"])
def test_a_training_with_batches_made_ahead_goes_on_as_one_without(how, tmp_path):
    """The defaults of a user: batches made ahead, and several steps in a call."""
    training = dataclasses.replace(TRAINING, steps=10, log_every=4, prefetch=2, steps_per_call=2)
    whole = train(TASK, tmp_path / "whole", dataclasses.replace(training, prefetch=0))
    broken = disturbed(7, fail if how == "error" else stop_by(signal.SIGTERM))
    if how == "error":
        with pytest.raises(RuntimeError, match="the machine stops here"):
            train(broken, tmp_path / "broken", training)
    else:  # Behind whichever step the signal found.
        with pytest.raises(SystemExit):
            train(broken, tmp_path / "broken", training)
    again = train(TASK, tmp_path / "broken", training)
    assert again.complete and difference(again.variables, whole.variables) == 0
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")


def test_times_are_told_for_each_record_of_the_training(tmp_path):
    """Beside the metrics, which a run gives again bit for bit."""
    train(TASK, tmp_path)
    times = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert [line["step"] for line in times] == [1, 2, 3, 4, 5, 6, 7]
    for line in times:
        shares = [line[f"{part}_share"] for part in PARTS]
        assert line["seconds"] > 0 and min(shares) >= 0 and 0 < sum(shares) <= 1.001
    # Step 3 is measured after its record.
    assert times[3]["evaluation_share"] > 0 == times[2]["evaluation_share"]


def test_the_best_state_is_kept_and_found_beside_the_latest(tmp_path):
    training = dataclasses.replace(TRAINING, steps=12, evaluate_every=1, checkpoint_every=1)
    train(TASK, tmp_path, training)
    measured = {x["step"]: x["random_accuracy_mean"] for x in lines(tmp_path) if x["split"] == "search"}
    best = max(measured, key=lambda step: (measured[step], -step))
    assert saved(tmp_path) == sorted({best, 10, 11, 12})
    found = restore(TASK, NET, training, UNIFORM, tmp_path, config_of(training), MESH, best=True)
    assert int(found.state.step) == best
    last = restore(TASK, NET, training, UNIFORM, tmp_path, config_of(training), MESH)
    assert int(last.state.step) == 12


def test_batches_are_made_ahead_and_their_errors_are_those_of_their_step():
    made, third = [], threading.Event()

    def batch(number):
        made.append(number)
        if number == 2:
            third.set()
        if number == 4:
            raise OSError("batch 4 cannot be read")
        return number

    with Ahead(batch, 2, 6) as ahead:
        assert ahead(0) == 0 and third.wait(60)  # made, though only the first was asked for
        assert [ahead(number) for number in (1, 2, 3)] == [1, 2, 3]
        with pytest.raises(OSError, match="batch 4 cannot be read"):
            ahead(4)
        assert ahead(5) == 5
    assert made == [0, 1, 2, 3, 4, 5]
    made.clear()
    with Ahead(batch, 0, 6) as ahead:
        assert ahead(1) == 1 and made == [1]


def test_other_settings_are_refused_without_a_config_too(tmp_path):
    """But for those that change no weights, such as the steps between two records."""
    train(TASK, tmp_path, config=None)
    longer = dataclasses.replace(TRAINING, steps=9)
    with pytest.raises(ConfigMismatch, match="steps: 7"):
        train(TASK, tmp_path, longer, config=None)
    other = dataclasses.replace(TRAINING, log_every=3, checkpoint_every=1, devices=2, steps_per_call=4)
    assert train(TASK, tmp_path, other, config=None).complete


def test_an_interrupted_training_is_searched_only_where_that_is_asked_for(tmp_path):
    with pytest.raises(KeyboardInterrupt, match="step 5 of 7"):
        train(disturbed(4, stop_by(signal.SIGINT)), tmp_path)
    found = restore(TASK, NET, TRAINING, UNIFORM, tmp_path, config_of(TRAINING), MESH)
    assert not found.complete
    settings = runs.Search(strategy=search.RandomSearch(NET.space, evaluations=2), baseline=False)

    def run(settings):
        common = dict(workdir=tmp_path, mesh=MESH)
        return runs.search_and_finish(TASK, NET, found.variables, settings, **common)

    with pytest.raises(ValueError, match="search.incomplete"):
        run(settings)
    result = run(dataclasses.replace(settings, incomplete=True))
    assert "step 5 of 7" in result.interrupted and result == report.result.read(tmp_path)
    assert result.interrupted in (tmp_path / "report.html").read_text()


def test_a_sure_search_is_complete_before_its_last_step(tmp_path):
    recipe = dataclasses.replace(RELAXED, confidence=0.01)
    trained = train(TASK, tmp_path, recipe=recipe)
    assert trained.complete and int(trained.state.step) == 3 == saved(tmp_path)[-1]
    assert lines(tmp_path)[-1]["confidence"] >= 0.01 and lines(tmp_path)[-1]["step"] == 3
    again = train(TASK, tmp_path, recipe=recipe)
    assert again.complete and int(again.state.step) == 3


# ---- Divergence.


def poisoned(step):
    """Images of which one batch holds labels that make the loss no number."""
    return disturbed(
        step, lambda batch: {**batch, "image": np.full(batch["image"].shape, np.nan, np.float32)}
    )


def finite(workdir):
    state, _, _ = prepare(TASK, NET, TRAINING, Uniform(), MESH)
    with Checkpointer(workdir / "checkpoints") as checkpoints:
        step, state, _ = checkpoints.restore(state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.variables, state.opt_state)))
    return step


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 1e-3, "clip": 0.5, "warmup_steps": 3},
        *tiers.nightly({"learning_rate": 1e-3}, {"clip": 1.0}),
    ],
    ids=str,
)
def test_a_diverged_training_goes_on_from_its_last_good_checkpoint(changes, tmp_path):
    with pytest.raises(DivergedError, match="6 is not"):
        train(poisoned(5), tmp_path)
    assert finite(tmp_path) == 4 == saved(tmp_path)[-1]
    assert max(line["step"] for line in lines(tmp_path)) == 5
    with pytest.raises(DivergedError):  # what was tried in vain is not in the record
        train(poisoned(5), tmp_path, dataclasses.replace(TRAINING, clip=9.0))
    mended = dataclasses.replace(TRAINING, **changes)
    other = {**config_of(mended), "seed": 1}
    with pytest.raises(ConfigMismatch, match="seed"):  # only what mends it may be another
        train(TASK, tmp_path, mended, config=other)
    trained = train(TASK, tmp_path, mended)
    assert trained.complete and int(trained.state.step) == 7 and finite(tmp_path) == 7
    (mend,) = files.read_lines(tmp_path / "mends.jsonl")
    assert (mend["step"], mend["diverged"]) == (4, 6) and not (tmp_path / "diverged.json").exists()
    before = {"learning_rate": 1e-2, "clip": None}
    assert mend["changes"] == {
        f"training.{name}": {"before": before[name], "now": now}
        for name, now in changes.items()
        if name in before  # the config of these tests has no others
    }
    assert [line["step"] for line in lines(tmp_path) if line["split"] == "train"] == [1, 2, 3, 4, 5, 6, 7]
    # From now on another learning rate is another training again.
    third = dataclasses.replace(mended, learning_rate=0.5)
    with pytest.raises(ConfigMismatch, match="training.learning_rate"):
        train(TASK, tmp_path, third)


def test_no_rate_is_named_where_the_first_step_diverges(tmp_path):
    with pytest.raises(DivergedError, match="1 is not"):
        train(poisoned(0), tmp_path)
    assert saved(tmp_path) == []


def test_what_the_diverged_step_trained_is_said_and_written(tmp_path):
    with pytest.raises(DivergedError, match="6 is not"):
        train(poisoned(5), tmp_path)
    written = json.loads((tmp_path / "diverged.json").read_text())
    for calls in (1, 2):  # the same step, by itself and in one call with others
        other = dataclasses.replace(TRAINING, steps_per_call=calls, log_every=10, checkpoint_every=10)
        with pytest.raises(DivergedError, match="step 6"):
            train(poisoned(5), tmp_path / str(calls), other)
        assert json.loads((tmp_path / str(calls) / "diverged.json").read_text()) == written
    assert written["step"] == 6 and len(written["architectures"]) == 1 and written["seed"] == 0
    # With this key anybody can draw what the step drew.
    key = jax.random.fold_in(stream(0, "training"), 5)
    assert written["key"] == jax.random.key_data(key).tolist()
    drawn = NET.space.sample(jax.random.split(key)[0])
    assert [NET.space.to_dict(drawn)] == written["architectures"]


def test_a_diverged_step_is_replayed(tmp_path):
    options = dict(config=config_of(TRAINING), mesh=MESH)
    with pytest.raises(FileNotFoundError, match="no diverged.json"):
        replay(TASK, NET, TRAINING, tmp_path, **options)
    with pytest.raises(DivergedError):
        train(poisoned(5), tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    found = replay(poisoned(5), NET, TRAINING, tmp_path, **options)
    assert found.step == 6 and not np.isfinite(found.loss) and np.isfinite(found.largest)
    written = json.loads((tmp_path / "diverged.json").read_text())
    assert list(found.architectures) == written["architectures"]
    assert "batch/train/image" in found.not_finite and "gradient/head/kernel" in found.not_finite
    healthy = replay(TASK, NET, TRAINING, tmp_path, **options)  # with another batch it is a step like others
    assert healthy.not_finite == () and np.isfinite(healthy.loss) and len(healthy.norms) == 6
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    with pytest.raises(ConfigMismatch, match="recipe.type"):
        replay(TASK, NET, TRAINING, tmp_path, recipe=Fixed(NET.space.largest()), **options)
    shutil.rmtree(tmp_path / "checkpoints")  # without them nothing else says that the seed is another one
    with pytest.raises(ValueError, match="the seed 0"):
        replay(TASK, NET, TRAINING, tmp_path, seed=1, **options)


def test_steps_that_are_not_finite_are_skipped_and_counted_where_that_is_asked_for(tmp_path):
    skipping = dataclasses.replace(TRAINING, skip_not_finite=1)
    trained = train(poisoned(5), tmp_path, skipping)
    assert trained.complete and all(np.isfinite(x).all() for x in jax.tree.leaves(trained.variables))
    told = [line["skipped"] for line in lines(tmp_path) if line["split"] == "train"]
    assert told == [0, 0, 0, 0, 0, 1, 1]
    state, step, batch = prepare(poisoned(0), NET, skipping, Uniform(), MESH)
    before = jax.tree.map(np.asarray, state.params)
    state, metrics = step(state, batch(0))
    jax.tree.map(np.testing.assert_array_equal, state.params, before)
    assert metrics["finite"] == 1
    _, metrics = step(state, batch(0))  # one too many in a row
    assert metrics["finite"] == 0


def test_a_retraining_that_diverged_may_change_its_own_settings(tmp_path):
    def config(rate):
        return {"retraining": {"learning_rate": rate, "steps": 7}}

    with pytest.raises(DivergedError):
        train(poisoned(5), tmp_path, config=config(1e-2), recipe=Fixed(NET.space.largest()))
    assert train(TASK, tmp_path, config=config(1e-3), recipe=Fixed(NET.space.largest())).complete


def test_nothing_that_is_not_finite_is_saved_however_rarely_it_is_looked_at(tmp_path):
    rare = dataclasses.replace(TRAINING, log_every=50, checkpoint_every=4, evaluate_every=50)
    with pytest.raises(DivergedError, match="step 6"):
        train(poisoned(5), tmp_path, rare)
    assert saved(tmp_path) == [4] and finite(tmp_path) == 4


def test_a_loss_that_leaves_its_course_has_diverged_though_it_is_finite(tmp_path):
    """What its weights were saved to is removed, and smaller steps go on from what is left to a good end."""
    exploding = Training(
        steps=16, batch_size=8, learning_rate=1e2, warmup_steps=15, log_every=8, checkpoint_every=1
    )
    with pytest.raises(DivergedError, match="diverged at step") as error:
        fit(TASK, NET, exploding, mesh=MESH, workdir=tmp_path)
    first = files.read_json(tmp_path / "diverged.json")["step"]
    assert f"heckpoint {saved(tmp_path)[-1]} " in str(error.value) and 1 <= saved(tmp_path)[-1] < first - 1
    mended = dataclasses.replace(exploding, learning_rate=1e-3, clip=1.0)
    assert fit(TASK, NET, mended, mesh=MESH, workdir=tmp_path).complete
    assert max(line["loss"] for line in lines(tmp_path) if line["split"] == "train") < 10


def test_a_huge_learning_rate_diverges_also_without_a_workdir_and_in_the_last_step():
    huge = Training(steps=6, batch_size=8, learning_rate=3e38, warmup_steps=0, weight_decay=0.0)
    with pytest.raises(DivergedError, match="learning_rate"):
        fit(TASK, NET, huge, mesh=MESH)
    last = Training(steps=2, batch_size=8, warmup_steps=0)
    with pytest.raises(DivergedError, match="step 2 is not finite"):
        fit(poisoned(1), NET, last, mesh=MESH)


# ---- Averages, times, defaults.


def test_the_average_follows_the_weights_and_is_what_is_evaluated():
    training = Training(steps=5, batch_size=8, warmup_steps=1, learning_rate=1e-2, average=0.75)
    state, step, batch = prepare(TASK, NET, training, Uniform(), MESH)
    expected = jax.device_get(state.params)
    for number in range(5):
        state, _ = step(state, batch(number))
        expected = jax.tree.map(lambda a, p: 0.75 * a + 0.25 * np.asarray(p), expected, state.params)
    assert difference(state.average, expected) < 1e-6
    assert difference(state.evaluated()["params"], expected) < 1e-6
    assert difference(state.params, expected) > 1e-4
    trained = fit(TASK, NET, training, mesh=MESH)
    assert difference(trained.variables["params"], expected) < 1e-6


def test_times_are_shares_of_the_whole(tmp_path):
    trained = train(TASK, tmp_path)
    times = json.loads((tmp_path / "times.json").read_text())
    assert times == dict(trained.times) and set(times) == {"seconds", "steps_per_second", *PARTS}
    assert all(times[part] > 0 for part in PARTS) and sum(times[part] for part in PARTS) <= 1
    assert times["steps_per_second"] * times["seconds"] == pytest.approx(7)
    assert dict(train(TASK, tmp_path).times) == times  # those of the training, not of finding it complete


@pytest.mark.parametrize("kind", ["images", *tiers.more("language")])
def test_a_task_a_network_and_a_number_of_steps_are_enough(kind):
    net = NET if kind == "images" else net_of(kind, scan=True)
    trained = fit(task_of(kind), net, 3)
    assert trained.complete and int(trained.state.step) == 3
    small = jaxnas.extract(net, trained.variables, net.space.largest(), inputs=task_of(kind).inputs)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(small.variables))


def test_one_architecture_is_trained_where_there_is_only_one():
    small = NET.clone(space=NET.space.fix(NET.space.smallest()))
    trained = fit(TASK, small, 2, mesh=MESH)
    assert trained.complete and trained.state.recipe == ()


def test_what_the_caller_gave_can_be_read_afterwards():
    variables = jaxnas.init(NET, jax.random.key(3), TASK.inputs)
    arch = NET.space.largest()
    before = jax.device_get((variables, arch))
    fit(TASK, NET, 2, recipe=Fixed(arch), variables=variables, mesh=MESH)
    for a, b in zip(jax.tree.leaves((variables, arch)), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_network_that_does_not_fit_the_task_is_told_with_shapes_and_dtypes():
    vit = net_of("images").clone(image_size=8)
    cases = (
        (
            TASK,
            net_of("language"),
            "TransformerXL does not take the batches of arrays",
            "float32[1, 4, 4, 1]",
        ),
        (TASK, vit, "ViT does not take the batches of arrays", "float32[1, 4, 4, 1]"),
        (
            task_of("language"),
            NET,
            "Perceptron does not take the batches of tokens",
            "{'tokens': int32[1, 8]}",
        ),
        (
            TASK,
            NET.clone(classes=3),
            "Perceptron makes float32[1, 3] of one row of arrays",
            "float32[1, 4, 4, 1]",
        ),
    )
    for task, net, *messages in cases:
        with pytest.raises(ValueError) as error:
            fit(task, net, 2, mesh=MESH)
        for message in messages:
            assert message in str(error.value)


def test_what_is_no_network_and_no_number_of_steps_is_refused():
    for net, steps, message in (
        (nn.Dense(3), 2, "space"),
        (None, 2, "space"),
        (NET, 2.5, "training.steps is 2.5"),
        (NET, "3", "training.steps is '3'"),
        (NET, 0, "training.steps is 0"),
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            fit(TASK, net, steps, mesh=MESH)
        assert message in str(error.value)


def test_what_is_of_another_kind_is_refused_at_the_door(tmp_path):
    file, rate = tmp_path / "file", optax.constant_schedule(0.1)
    file.touch()

    def given(**wrong):
        return lambda: fit(wrong.pop("task", TASK), NET, 2, **wrong), TypeError, *wrong

    check(
        given(recipe=Uniform),
        given(recipe="sandwich"),
        given(optimizer=optax.sgd(0.1)),
        given(optimizer=(optax.sgd(0.1), 0.1)),
        given(optimizer=(rate, optax.sgd(rate))),
        given(mesh="cpu"),
        given(workdir=file),
        given(workdir=3),
        given(variables=[1.0]),
        given(cost=3),
        given(config=[1]),
        given(may_differ="program"),
        given(progress=1),
        (lambda: fit(type(TASK), NET, 2), TypeError, "task"),
        (lambda: fit(TASK, type(NET), 2), TypeError, "net"),
        (lambda: runs.Search(strategy=search.Evolution), TypeError, "Evolution", "instance"),
    )


def test_an_evaluation_takes_only_architectures_and_variables_of_its_network():
    evaluate = make_evaluator(TASK, NET, "search", mesh=MESH)
    variables = jaxnas.init(NET, jax.random.key(0), TASK.inputs)
    arch = NET.space.largest()
    for given, one, message in (
        (variables, {"hidden": jnp.array([7])}, "'hidden'[0] is 7"),
        (variables, {"hidden": jnp.array([[0], [-1]])}, "is -1"),
        (variables, {"hiden": jnp.array([0])}, "did you mean 'hidden'"),
        (variables, None, "the network needs `arch`"),
        (variables["params"], arch, "'params'"),
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            evaluate(given, one)
        assert message in str(error.value)
    with pytest.raises(ValueError, match="limit is 0"):
        make_evaluator(TASK, NET, "search", limit=0)


def test_the_standard_error_of_an_evaluation_is_that_of_the_mean_of_its_batches():
    evaluate = make_evaluator(TASK, NET, "test", mesh=MESH, batch_size=6)  # 30 images: 5 equal batches
    variables, arch = jaxnas.init(NET, jax.random.key(0), TASK.inputs), NET.space.largest()
    metrics, errors = evaluate.with_errors(variables, arch)
    batches = TASK.evaluation("test", 6, None)
    sums = [
        TASK.loss(NET, variables, arch, jax.tree.map(lambda x, i=i: x[i], batches), (), None, False)[1][1]
        for i in range(5)
    ]
    for metric in TASK.metrics:
        values = [float(metric.value(one)) for one in sums]
        np.testing.assert_allclose(metrics[metric.name], np.mean(values), rtol=1e-5)
        np.testing.assert_allclose(errors[metric.name], scipy.stats.sem(values), rtol=1e-3)
    whole = make_evaluator(TASK, NET, "test", mesh=MESH, batch_size=30)
    assert np.isnan(whole.with_errors(variables, arch)[1]["loss"])


def test_roles_are_guarded():
    class Cheating(Uniform):
        roles = ("test",)

        def numbers(self, step):
            return {"test": step}

    with pytest.raises(ValueError, match="'test'"):
        fit(TASK, NET, 2, recipe=Cheating(), mesh=MESH)
    with pytest.raises(ValueError, match="'train'"):
        make_evaluator(TASK, NET, "train", mesh=MESH)
    with pytest.raises(ValueError, match="'exam'"):
        make_evaluator(TASK, NET, "exam", mesh=MESH)
    with pytest.raises(ValueError, match="'validation'"):
        make_evaluator(TASK, NET, "validation", mesh=MESH)
    measured = make_evaluator(TASK, NET, "test", mesh=MESH)
    variables = jaxnas.init(NET, jax.random.key(0), TASK.inputs)
    with pytest.raises(ValueError, match="'test'"):
        measured.scores(variables, NET.space.sample(jax.random.key(0), 2))


@pytest.mark.eight_devices
def test_default_batches_are_as_many_rows_as_the_data_have_and_the_devices_can_share():
    for task, net, devices, rows in ((TASK, NET, 1, 16), (TASK, NET, 3, 15)):
        state, _, batch = prepare(task, net, Training(steps=2), Relaxed(), make_mesh(devices))
        assert batch(0)["train"]["label"].shape == (rows,)  # no more than there are to search on
    language = task_of("language")
    assert {role: language.rows(role) for role in ("train", "search", "test")} == {
        "train": 49,
        "search": 11,
        "test": 8,
    }
