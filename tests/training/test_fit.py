"""A training from its first step to its last: defaults, exact resume, divergence, averages, times."""

import dataclasses
import functools
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import scipy.stats
import tiers
from refusals import check
from small_nets import difference
from small_tasks import disturbed, net_of, perceptron, task_of

import jaxnas
from jaxnas import files, report, runs, search, tasks, training
from jaxnas.recipes import Fixed, Relaxed, Uniform
from jaxnas.training import Options, Stopped, Training, fit
from jaxnas.training.checkpoint import Checkpointer, ConfigMismatch
from jaxnas.training.fit import PARTS, restore
from jaxnas.training.keys import stream
from jaxnas.training.mesh import make_mesh
from jaxnas.training.step import prepare, set_up
from jaxnas.training.store import DivergedError

TASK, NET, MESH = task_of("images"), perceptron(1), make_mesh(1)
TRAINING = Training(
    steps=7,
    batch_size=8,
    learning_rate=1e-2,
    warmup_steps=1,
    log_every=1,
    evaluate_every=3,
    checkpoint_every=2,
    devices=1,
    prefetch=0,  # tests disturb what happens while the batch of a step is made
)
UNIFORM, RELAXED = Uniform(), Relaxed(start=2, every=2)


def train(task, workdir, training=TRAINING, **settings):
    return fit(task, NET, training, workdir=workdir, **settings)


def found_in(workdir, training=TRAINING, recipe=UNIFORM, **options):
    return restore(TASK, NET, training, recipe, workdir, **options)


def lines(workdir, split=None):
    found = files.read_lines(workdir / "metrics.jsonl")
    return [line for line in found if split in (None, line["split"])]


def column(workdir, split, name="step"):
    return [line[name] for line in lines(workdir, split)]


def saved(workdir):
    with Checkpointer(workdir / "checkpoints") as checkpoints:
        return checkpoints.steps()


# ---- Resume.


def bits(state):
    def plain(x):
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return [np.asarray(plain(x)).tobytes() for x in jax.tree.leaves(state)]


def stop_by(number):
    def change(batch):
        os.kill(os.getpid(), number)
        return batch

    return change


def fail(batch):
    raise InterruptedError("the machine stops here")


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory):
    """From a recipe to a training without interruptions, and its folder."""

    @functools.cache
    def run(recipe):
        folder = tmp_path_factory.mktemp("whole")
        return train(TASK, folder, recipe=recipe), folder

    return run


INTERRUPTED = [(UNIFORM, "SIGTERM"), (RELAXED, "error")]
INTERRUPTED += tiers.nightly((UNIFORM, "error"), (UNIFORM, "SIGINT"), (RELAXED, "SIGTERM"))


@pytest.mark.parametrize(("recipe", "how"), INTERRUPTED)
def test_an_interrupted_training_ends_as_one_that_was_not(recipe, how, tmp_path, whole_runs):
    whole, folder = whole_runs(recipe)
    broken = disturbed(4, fail if how == "error" else stop_by(getattr(signal, how)))
    with pytest.raises((InterruptedError, Stopped)) as stop:
        train(broken, tmp_path, recipe=recipe)
    if how == "error":
        assert saved(tmp_path)[-1] == 4
    else:
        stopped = stop.value.trained
        assert not stopped.complete and int(stopped.state.step) == 5 == saved(tmp_path)[-1]
        assert isinstance(stop.value, KeyboardInterrupt) or stop.value.code == 143
        assert not (tmp_path / "times.json").exists()
    with pytest.raises(ConfigMismatch, match="seed: 0 .* / 1 "):
        train(TASK, tmp_path, recipe=recipe, seed=1)
    again = train(TASK, tmp_path, recipe=recipe)
    assert again.complete and int(again.state.step) == 7
    assert bits(again.state) == bits(whole.state)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    # Complete, it is not trained on; what it left is found.
    before = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
    assert train(broken, tmp_path, recipe=recipe).complete
    assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == before
    found = found_in(tmp_path, recipe=recipe)
    assert found.complete and difference(found.variables, whole.variables) == 0


def test_records_that_were_lost_or_changed_are_noticed(tmp_path, whole_runs):
    def refused(call, folder):
        path = folder / "metrics.jsonl"
        whole = path.read_bytes()
        first = whole.index(b"\n") + 1
        for changed in (whole[first:], whole[:first], b"", whole.replace(b"0", b"1", 1)):
            path.write_bytes(changed)
            check((lambda: call(folder), ValueError, path.name))
            assert path.read_bytes() == changed
        return path

    ended = shutil.copytree(whole_runs(UNIFORM)[1], tmp_path / "ended")
    records = refused(found_in, ended)
    check((lambda: train(TASK, ended), ValueError, records.name))
    records.unlink()
    assert train(TASK, ended).complete and not records.exists()

    broken = tmp_path / "broken"
    with pytest.raises(InterruptedError):
        train(disturbed(4, fail), broken)
    records = refused(lambda folder: train(TASK, folder), broken)
    records.unlink()
    with pytest.raises(InterruptedError):  # before the next checkpoint: the file begins behind the last one
        train(disturbed(5, fail), broken)
    assert column(broken, None) == [5]
    assert train(TASK, broken).complete and train(TASK, broken).complete and records.exists()


def test_records_and_times_follow_the_settings(whole_runs):
    trained, folder = whole_runs(UNIFORM)
    assert column(folder, "train") == list(range(1, 8)) and column(folder, "search") == [3, 6, 7]
    assert {"loss", "accuracy", "learning_rate"} <= lines(folder)[0].keys()
    watched = lines(folder, "search")[-1]
    low, mean, high = (watched[f"random_accuracy_{name}"] for name in ("min", "mean", "max"))
    assert 0 <= low <= mean <= high <= 1
    assert saved(folder) == [4, 6, 7]  # the last three
    # Times are beside the metrics, which a run gives again bit for bit.
    records = files.read_lines(folder / "times.jsonl")
    assert [line["step"] for line in records] == list(range(1, 8))
    for line in records:
        shares = [line[f"{part}_share"] for part in PARTS]
        assert line["seconds"] > 0 and min(shares) >= 0 and 0 < sum(shares) <= 1.001
    assert records[3]["evaluation_share"] > 0 == records[2]["evaluation_share"]  # step 3, behind its record
    times = files.read_json(folder / "times.json")
    assert times == dict(trained.times) and set(times) == {"seconds", "steps_per_second", *PARTS}
    assert all(times[part] > 0 for part in PARTS) and sum(times[part] for part in PARTS) <= 1
    assert times["steps_per_second"] * times["seconds"] == pytest.approx(7)
    # Other settings are another training, but for those that change no weights; it is found complete.
    with pytest.raises(ConfigMismatch, match="steps: 7"):
        train(TASK, folder, dataclasses.replace(TRAINING, steps=9))
    other = dataclasses.replace(TRAINING, log_every=3, checkpoint_every=1, devices=None, steps_per_call=4)
    again = train(TASK, folder, other)
    assert again.complete and dict(again.times) == times  # those of the training
    assert found_in(folder, seed=0).complete
    with pytest.raises(ConfigMismatch, match="seed"):
        found_in(folder, seed=1)


def test_a_training_with_batches_made_ahead_goes_on_as_one_without(tmp_path):
    """The defaults of a user: batches made ahead, and several steps in a call."""
    ahead = dataclasses.replace(TRAINING, steps=10, log_every=4, prefetch=2, steps_per_call=2)
    whole = train(TASK, tmp_path / "whole", dataclasses.replace(ahead, prefetch=0))
    with pytest.raises(InterruptedError):
        train(disturbed(7, fail), tmp_path / "broken", ahead)
    assert saved(tmp_path / "broken")[-1] == 6  # an error is that of its step, and not of two before
    again = train(TASK, tmp_path / "broken", ahead)
    assert again.complete and difference(again.variables, whole.variables) == 0
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")


def test_the_best_state_is_kept_and_found_beside_the_latest(tmp_path):
    often = dataclasses.replace(TRAINING, steps=12, evaluate_every=1, checkpoint_every=1)
    train(TASK, tmp_path, often)
    best = 1 + int(np.argmax(column(tmp_path, "search", "random_accuracy_mean")))
    assert saved(tmp_path) == sorted({best, 10, 11, 12})
    steps = [int(found_in(tmp_path, often, best=which).state.step) for which in (True, False)]
    assert steps == [best, 12]


def test_an_interrupted_training_is_searched_only_where_that_is_asked_for(tmp_path):
    with pytest.raises(KeyboardInterrupt, match="step 5 of 7"):
        train(disturbed(4, stop_by(signal.SIGINT)), tmp_path)
    found = found_in(tmp_path)
    assert not found.complete
    settings = runs.Search(runs.ByStrategy(search.RandomSearch(NET.space, evaluations=2), baseline=False))

    def run(settings):
        return runs.search_and_finish(TASK, NET, found.variables, settings, runs.Lab(tmp_path, mesh=MESH))

    own = UNIFORM, TRAINING, runs.Lab(tmp_path)
    check(
        (lambda: run(settings), ValueError, "search.incomplete"),
        (lambda: runs.select(TASK, NET, found.state, runs.Search(), *own), ValueError, "search.incomplete"),
    )
    result = run(dataclasses.replace(settings, incomplete=True))
    assert "step 5 of 7" in result.interrupted and result == report.result.read(tmp_path)
    assert result.interrupted in (tmp_path / "report.html").read_text()


def test_a_sure_search_is_complete_before_its_last_step(tmp_path):
    for _ in range(2):
        trained = train(TASK, tmp_path, recipe=dataclasses.replace(RELAXED, confidence=0.01))
        assert trained.complete and int(trained.state.step) == 3 == saved(tmp_path)[-1]
        assert lines(tmp_path)[-1]["confidence"] >= 0.01 and lines(tmp_path)[-1]["step"] == 3
    rarely = dataclasses.replace(TRAINING, log_every=50, checkpoint_every=50)
    train(TASK, tmp_path / "b", rarely, recipe=dataclasses.replace(RELAXED, confidence=0.01))
    assert column(tmp_path / "b", "train") == [3]  # its losses were checked, too


def test_a_training_in_a_thread_is_restored_with_its_optimizer_by_a_reader_that_removes_nothing(tmp_path):
    options = Options(optimizer=(optax.sgd(1e-2), optax.constant_schedule(1e-2)))
    with ThreadPoolExecutor(1) as threads:  # where no signals can be handled
        trained = threads.submit(train, TASK, tmp_path, options=options).result()
    being_saved = tmp_path / "checkpoints" / f"9{ocp.utils.TMP_DIR_SUFFIX}1"
    being_saved.mkdir()
    found = found_in(tmp_path, options=options)
    assert found.complete and difference(found.variables, trained.variables) == 0
    assert being_saved.exists()
    with Checkpointer(tmp_path / "checkpoints"):
        assert not being_saved.exists()


# ---- Divergence.


def poisoned(step):
    """Images of which those of one step are NaN."""
    return disturbed(step, lambda batch: {**batch, "image": np.float32(np.nan) * batch["image"]})


def finite(workdir, training=TRAINING):
    """The last step that was saved, all values of which are finite."""
    state = found_in(workdir, training).state
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.variables, state.opt_state)))
    return int(state.step)


MENDS = [{"learning_rate": 1e-3, "clip": 0.5, "warmup_steps": 3}]
MENDS += tiers.nightly({"learning_rate": 1e-3}, {"clip": 1.0})


@pytest.mark.parametrize("changes", MENDS, ids=str)
def test_a_diverged_training_names_what_it_trained_and_goes_on_from_its_last_good_checkpoint(
    changes, tmp_path
):
    with pytest.raises(DivergedError, match="6 is not"):
        train(poisoned(5), tmp_path)
    assert finite(tmp_path) == 4 == saved(tmp_path)[-1] and max(column(tmp_path, None)) == 5
    told = files.read_json(tmp_path / "diverged.json")
    key = jax.random.fold_in(stream(0, "training"), 5)
    drawn = NET.space.sample(jax.random.split(key)[0])
    assert told["step"] == 6 and told["seed"] == 0
    assert told["architectures"] == [NET.space.to_dict(drawn)]
    with pytest.raises(DivergedError):
        train(poisoned(5), tmp_path, dataclasses.replace(TRAINING, clip=9.0))
    mended = dataclasses.replace(TRAINING, **changes)
    with pytest.raises(ConfigMismatch, match="seed"):  # only what mends it may be another
        train(TASK, tmp_path, mended, seed=1)
    trained = train(TASK, tmp_path, mended)
    assert trained.complete and finite(tmp_path, mended) == 7
    assert not (tmp_path / "diverged.json").exists()
    assert column(tmp_path, "train") == list(range(1, 8))
    # From now on another learning rate is another training again.
    with pytest.raises(ConfigMismatch, match="training.learning_rate"):
        train(TASK, tmp_path, dataclasses.replace(mended, learning_rate=0.5))
    # In one call with other steps, however rarely it is looked at, the same is said and nothing else saved.
    rare = dict(steps_per_call=2, log_every=50, checkpoint_every=4, evaluate_every=50)
    with pytest.raises(DivergedError, match="step 6"):
        train(poisoned(5), tmp_path / "rare", dataclasses.replace(TRAINING, **rare))
    assert saved(tmp_path / "rare") == [4] and finite(tmp_path / "rare") == 4
    assert files.read_json(tmp_path / "rare" / "diverged.json") == told


def test_steps_that_are_not_finite_are_skipped_and_counted_where_that_is_asked_for(tmp_path):
    skipping = dataclasses.replace(TRAINING, skip_not_finite=1)
    trained = train(poisoned(5), tmp_path, skipping)
    assert trained.complete and all(np.isfinite(x).all() for x in jax.tree.leaves(trained.variables))
    assert column(tmp_path, "train", "skipped") == [0, 0, 0, 0, 0, 1, 1]
    state, step, batch = prepare(poisoned(0), NET, skipping, UNIFORM)
    before = jax.device_get(state.params)
    state, metrics = step(state, batch(0))
    assert difference(state.params, before) == 0 and metrics["finite"] == 1
    assert step(state, batch(0))[1]["finite"] == 0  # one too many in a row


def test_a_loss_that_leaves_its_course_has_diverged_though_it_is_finite(tmp_path):
    """What its weights were saved to is removed, and smaller steps go on from what is left to a good end."""
    settings = dict(devices=1, steps=16, batch_size=8, warmup_steps=15, log_every=2, checkpoint_every=1)
    exploding = Training(learning_rate=1e2, **settings)
    with pytest.raises(DivergedError, match="diverged at step") as error:
        fit(TASK, NET, exploding, workdir=tmp_path)
    assert max(column(tmp_path, None)) < 16  # it ended before its last step
    first = files.read_json(tmp_path / "diverged.json")["step"]
    assert f"heckpoint {saved(tmp_path)[-1]} " in str(error.value) and 1 <= saved(tmp_path)[-1] < first - 1
    mended = dataclasses.replace(exploding, learning_rate=1e-3, clip=1.0)
    assert fit(TASK, NET, mended, workdir=tmp_path).complete
    assert max(column(tmp_path, "train", "loss")) < 10


def test_the_first_and_the_last_step_may_diverge(tmp_path):
    with pytest.raises(DivergedError, match="step 1 is not finite.* no rate mends it"):
        train(poisoned(0), tmp_path)
    assert saved(tmp_path) == []
    with pytest.raises(DivergedError, match="step 7 is not finite"):
        train(poisoned(6), None)


# ---- Averages, defaults, evaluations.


def test_the_average_follows_the_weights_and_is_what_is_evaluated():
    averaged = Training(devices=1, steps=5, batch_size=8, warmup_steps=1, learning_rate=1e-2, average=0.75)
    state, step, batch = prepare(TASK, NET, averaged, UNIFORM)
    expected = jax.device_get(state.params)
    for number in range(5):
        state, _ = step(state, batch(number))
        expected = jax.tree.map(lambda a, p: 0.75 * a + 0.25 * np.asarray(p), expected, state.params)
    assert difference(state.params, expected) > 1e-4
    fitted = fit(TASK, NET, averaged).variables["params"]
    for found in (state.average, state.evaluated()["params"], fitted):
        assert difference(found, expected) < 1e-6


def test_a_network_and_a_number_of_steps_are_enough_and_what_was_given_can_be_read_afterwards():
    given = jaxnas.init(NET, jax.random.key(3), TASK.inputs), NET.space.largest()
    before = jax.device_get(given)
    fit(TASK, NET, 2, recipe=Fixed(given[1]), options=Options(variables=given[0]))
    jax.tree.map(np.testing.assert_array_equal, given, before)
    alone = fit(TASK, NET.clone(space=NET.space.fix(given[1])), 2)
    assert alone.complete and int(alone.state.step) == 2 and alone.state.recipe == ()


def test_evaluations_during_a_training_may_be_limited(tmp_path):
    task = dataclasses.replace(TASK, evaluation_batch_size=4)  # 16 images are searched on
    limited = dataclasses.replace(TRAINING, evaluate_every=7, evaluate_limit=1)
    trained, name = fit(task, NET, limited, workdir=tmp_path, seed=2), task.metrics[0].name
    part, whole = (
        training.make_evaluator(task, NET, "search", limit=limit, mesh=MESH)(
            trained.variables, NET.space.largest()
        )[name]
        for limit in (1, None)
    )
    assert column(tmp_path, "search", f"largest_{name}") == [float(part)] != [float(whole)]


def test_an_evaluation_has_the_standard_error_of_the_mean_of_its_batches():
    evaluate = training.make_evaluator(TASK, NET, "test", mesh=MESH, batch_size=6)  # 30 images
    variables, arch = jaxnas.init(NET, jax.random.key(0), TASK.inputs), NET.space.largest()
    metrics, errors = evaluate.with_errors(variables, arch)
    batches = TASK.evaluation("test", 6, None)
    sums = [
        TASK.loss(tasks.Call(NET, variables, arch, jax.tree.map(lambda x, i=i: x[i], batches)))[1][1]
        for i in range(5)
    ]
    for metric in TASK.metrics:
        values = [float(metric.value(one)) for one in sums]
        np.testing.assert_allclose(metrics[metric.name], np.mean(values), rtol=1e-5)
        np.testing.assert_allclose(errors[metric.name], scipy.stats.sem(values), rtol=1e-3)
    whole = training.make_evaluator(TASK, NET, "test", mesh=MESH, batch_size=30)
    assert np.isnan(whole.with_errors(variables, arch)[1]["loss"])


@pytest.mark.eight_devices
def test_default_batches_are_as_many_rows_as_the_data_have_and_the_devices_can_share():
    for devices, rows in ((1, 16), (3, 15)):  # no more than there are to search on
        assert set_up(TASK, NET, Training(steps=2, devices=devices), Relaxed()).batch_size == rows
    assert [task_of("language").rows(role) for role in ("train", "search", "test")] == [49, 11, 8]


# ---- Refusals.


class Cheating(Uniform):
    roles = ("test",)

    def numbers(self, step):
        return {"test": step}


def test_what_does_not_fit_the_task_or_the_network_is_refused(tmp_path):
    file, rate = tmp_path / "file", optax.constant_schedule(0.1)
    file.touch()
    own = jaxnas.init(NET, jax.random.key(0), TASK.inputs)
    other = jaxnas.init(perceptron(2), jax.random.key(0), TASK.inputs)
    small = jaxnas.extract(NET, own, NET.space.smallest(), inputs=TASK.inputs).variables
    vit, language = net_of("images").clone(image_size=8), net_of("language")
    shape = "float32[1, 4, 4, 1]"

    def case(*names, error=ValueError, task=TASK, net=NET, steps=2, **more):
        return lambda: fit(task, net, steps, **more), error, *names

    def option(error, *names, **wrong):
        return lambda: fit(TASK, NET, 2, options=Options(**wrong)), error, *names

    def kind(**wrong):
        return case(*wrong, error=TypeError, **wrong)

    check(
        case("TransformerXL does not take the batches of arrays", shape, net=language),
        case("ViT does not take the batches of arrays", shape, net=vit),
        case("Perceptron", "batches of tokens", "{'tokens': int32[1, 8]}", task=task_of("language")),
        case("Perceptron makes float32[1, 3] of one row of arrays", shape, net=NET.clone(classes=3)),
        case("space", error=TypeError, net=nn.Dense(3)),
        case("space", error=TypeError, net=None),
        *(case(f"training.steps is {steps!r}", steps=steps) for steps in (2.5, "3", 0)),
        option(ValueError, "Perceptron", "params/in_1", variables=other),
        option(ValueError, "'params'", "in_0", variables=own["params"]),
        option(ValueError, "Perceptron", "params/in_0", variables=small),
        case("'test'", recipe=Cheating()),
        kind(recipe=Uniform),
        kind(recipe="sandwich"),
        option(TypeError, "optimizer", optimizer=optax.sgd(0.1)),
        option(TypeError, "optimizer", optimizer=(optax.sgd(0.1), 0.1)),
        option(TypeError, "optimizer", optimizer=(rate, optax.sgd(rate))),
        option(TypeError, "may_differ", may_differ="program"),
        option(ValueError, "together", together=0),
        case(error=FileExistsError, workdir=file),
        case(error=TypeError, workdir=3),
        case(error=TypeError, task=type(TASK)),
        case("type", error=TypeError, net=type(NET)),
        (lambda: runs.Search(runs.ByStrategy(search.Evolution)), TypeError, "Evolution", "instance"),
    )


def test_an_evaluation_takes_roles_architectures_and_variables_of_its_task_and_network():
    def evaluator(role, **options):
        return training.make_evaluator(TASK, NET, role, mesh=MESH, **options)

    evaluate, measured = evaluator("search"), evaluator("test")
    variables, arch = jaxnas.init(NET, jax.random.key(0), TASK.inputs), NET.space.largest()
    archs = NET.space.sample(jax.random.key(0), 2)
    check(
        (lambda: evaluate(variables, {"hidden": jnp.array([7])}), ValueError, "'hidden'[0] is 7"),
        (lambda: evaluate(variables, {"hidden": jnp.array([[0], [-1]])}), ValueError, "is -1"),
        (lambda: evaluate(variables, {"hiden": jnp.array([0])}), ValueError, "did you mean 'hidden'"),
        (lambda: evaluate(variables, None), (TypeError, ValueError), "the network needs `arch`"),
        (lambda: evaluate(variables["params"], arch), (TypeError, ValueError), "'params'"),
        (lambda: evaluator("search", limit=0), ValueError, "limit is 0"),
        *((lambda role=role: evaluator(role), ValueError, f"'{role}'") for role in ("train", "exam")),
        (lambda: evaluator("validation"), ValueError, "'validation'"),
        (lambda: measured.scores(variables, archs), ValueError, "'test'"),
    )
