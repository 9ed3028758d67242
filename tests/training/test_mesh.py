"""Meshes of data and model axes: the same training on less memory, and what is communicated."""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import refusals
import tiers
from small_nets import difference
from small_tasks import TASKS, disturbed, net_of, perceptron, recalling, task_of

import jaxnas
from benchmarks.collectives import communicated
from jaxnas import files, recipes, spaces, supernets
from jaxnas.recipes import Attentive, Fair, Fixed, Progressive, Relaxed, Sandwich, Uniform
from jaxnas.recipes.relaxed import Order
from jaxnas.training import Options, Training, fit, make_evaluator
from jaxnas.training.mesh import make_mesh
from jaxnas.training.step import prepare

pytestmark = pytest.mark.eight_devices

# Adam would make much of gradients that differ by rounding alone.
SGD = optax.sgd(0.1, momentum=0.9), lambda step: 0.1


def taught(net, task):
    """Random architectures that learn from a trained network."""
    variables = jaxnas.init(net, jax.random.key(4), task.inputs)
    small = jaxnas.extract(net, variables, net.space.largest(), inputs=task.inputs)
    return Uniform(distill=recipes.Distillation(teacher=recipes.Teacher(small.net, small.variables)))


RECIPES = {
    "uniform": lambda *_: Uniform(),
    "attentive": lambda *_: Uniform(sampler=Attentive(candidates=2)),
    "taught": taught,
    "sandwich": lambda *_: Sandwich(random=1),
    "sandwich, projected": lambda *_: Sandwich(random=1, project_after=0.0),
    "progressive": lambda net, _: Progressive(
        phases=((0, net.space.fix(net.space.largest())), (1, net.space)), recipe=Fair()
    ),
    "fixed": lambda net, _: Fixed(net.space.sample(jax.random.key(3))),
    **{order: lambda *_, order=order: Relaxed(order=order, every=1) for order in get_args(Order)},
}
# Each recipe on one task, and each task by one recipe; two on tasks that give them something else.
FURTHER = {"sandwich": "language", "taught": "text"}
PAIRS = [(FURTHER.get(recipe, "images"), recipe) for recipe in RECIPES]
PAIRS += [(kind, "uniform") for kind in TASKS if kind != "images"]
# A language model hands a memory from batch to batch, which a teacher would need one of its own for, and a
# regression has no classes to learn from another network.
UNTAUGHT = [("language", "taught")]
UNTAUGHT += [("table", name) for name in ("taught", "sandwich", "sandwich, projected")]
EVERY = ((kind, recipe) for kind in TASKS for recipe in RECIPES)
PAIRS += tiers.nightly(*(pair for pair in EVERY if pair not in [*PAIRS, *UNTAUGHT]))


def trained(kind, recipe, devices=1, model=1):
    task = task_of(kind)
    if kind == "images" and recipe == "uniform":
        task = dataclasses.replace(task, mixup=0.2, crop_padding=1)  # of rows that other devices have
    net = perceptron(1, (4, 8)) if kind == "images" else net_of(kind, scan=True)
    if kind == "language" and recipe != "uniform":
        net = recalling()
    where = dict(devices=devices, model_devices=model)
    settings = Training(steps=4, batch_size=8, warmup_steps=0, average=0.5, **where)
    options = Options(optimizer=SGD)
    state, step, batch = prepare(task, net, settings, RECIPES[recipe](net, task), options=options)
    for number in range(3):
        state, metrics = step(state, batch(number))
    return state, metrics


@pytest.mark.parametrize(("kind", "recipe"), PAIRS)
def test_eight_devices_train_as_one_does_by_every_recipe_and_on_every_task(kind, recipe):
    alone, metrics = trained(kind, recipe)
    shared, other = trained(kind, recipe, 8, 2)  # rows over four devices, parameters over two
    assert difference(shared.params, alone.params) <= 1e-5
    assert difference(shared.average, alone.average) <= 1e-5 < difference(alone.average, alone.params)
    assert float(other["loss"]) == pytest.approx(float(metrics["loss"]), abs=1e-5)
    parts = [leaf.addressable_shards[0].data.size / leaf.size for leaf in jax.tree.leaves(shared.opt_state)]
    assert min(parts) == 1 / 2  # of the momentum too
    if kind == "language":  # each device remembers its own rows
        memory = shared.carry["train"].inputs
        assert np.abs(memory).max() > 0.1
        assert (memory.shape[1], memory.sharding.shard_shape(memory.shape)[1]) == (8, 1)
    # Adam divides the gradients of the logits by their size, which makes more of rounding.
    for name, logits in dict(alone.logits).items():
        np.testing.assert_allclose(shared.logits[name], logits, atol=1e-4)


def test_a_training_goes_on_with_other_numbers_of_model_devices(tmp_path):
    """It ends with the weights of one device, wherever its checkpoints were made."""
    net = perceptron(1, options=(4, 8))
    settings = Training(steps=3, batch_size=8, log_every=1, evaluate_every=3, checkpoint_every=1, prefetch=0)

    def train(task, workdir, devices=1, model=1):
        where = dict(devices=devices, model_devices=model)
        return fit(task, net, dataclasses.replace(settings, **where), workdir=workdir)

    def stop(batch):
        raise InterruptedError

    alone = train(task_of("images"), tmp_path / "alone")
    for at, model in ((1, 4), (2, 2)):
        with pytest.raises(InterruptedError):
            train(disturbed(at, stop), tmp_path / "moved", 8, model)
    moved = train(task_of("images"), tmp_path / "moved")
    assert moved.complete and difference(moved.variables, alone.variables) <= 1e-5
    lines = [files.read_lines(tmp_path / name / "metrics.jsonl") for name in ("moved", "alone")]
    losses = [[line["loss"] for line in one if "loss" in line] for one in lines]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert len(losses[0]) == 3


@pytest.mark.hlo
def test_a_supernet_takes_the_less_memory_the_more_devices_share_it_and_only_active_parts_move():
    task, space = task_of("images"), spaces.vit((32, 48), (2,), (2, 4), (1.0, 2.0))
    sizes = dict(image_size=4, patch_size=2, num_classes=2, head_dim=16, max_relative_position=1)
    net = supernets.ViT(space, form="masked", **sizes)
    largest = 4 * int(jaxnas.cost(net, task.inputs)(space.largest())["params"])  # bytes
    stored = 4 * sum(leaf.size for leaf in jax.tree.leaves(jaxnas.init(net, jax.random.key(0), task.inputs)))
    arguments, moved = {}, {}
    for model in (1, 4):
        settings = Training(steps=4, batch_size=8, devices=8, model_devices=model)
        state, step, batch = prepare(task, net, settings, Uniform())
        program = step.lower(state, batch(0)).compile()
        arguments[model] = program.memory_analysis().argument_size_in_bytes
        moved[model] = {kind: size for kind, (size, _) in communicated(program.as_text()).items()}
    # Parameters and two moments, but for vectors, which each device has.
    assert arguments[4] <= arguments[1] - 0.9 * 3 * stored * 3 / 4
    # Gathered for the forward and for the backward pass. XLA counts branches of the largest sizes.
    assert moved[4]["all-gather"] <= 2.2 * largest
    for sizes in moved.values():
        assert sizes["all-reduce"] <= 1.1 * largest
        assert sizes.get("all-to-all", 0) <= 0.05 * largest  # the tables of relative positions


def test_devices_evaluate_different_architectures_and_say_what_one_says():
    task, net = task_of("images"), perceptron()
    variables = jaxnas.init(net, jax.random.key(0), task.inputs)
    archs = net.space.sample(jax.random.key(1), 11)
    expected = make_evaluator(task, net, "search", mesh=make_mesh(1))(variables, archs)
    for size in ((8, 1), (8, 2)):
        found = make_evaluator(task, net, "search", mesh=make_mesh(*size))(variables, archs)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=1e-6)
    evaluate = make_evaluator(task, net, "search", mesh=make_mesh(8))
    dealt = evaluate.deal(archs).reshape(8, 2)
    macs = np.asarray(jax.vmap(lambda arch: jnp.float32(jaxnas.cost(net, task.inputs)(arch)["macs"]))(archs))
    work = macs[dealt].sum(axis=1)
    assert set(dealt.ravel()) == set(range(11)) and work.max() <= macs.max() + np.sort(macs)[len(macs) // 2]


def test_meshes_that_the_machine_cannot_make_are_refused(monkeypatch):
    refusals.check(
        *((lambda n=n: make_mesh(n), ValueError, "devices", str(n), "1 to 8") for n in (0, 9)),
        (lambda: make_mesh("2"), ValueError, "devices", "'2'", "1 to 8"),
        (lambda: make_mesh(6, 4), ValueError, "model_devices", "4", "1, 2, 3, 6"),
        (lambda: make_mesh(8, 0), ValueError, "0", "1, 2, 4, 8"),
    )
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: one)
    refusals.check((lambda: make_mesh(2), ValueError, "devices", "2", "1"))
