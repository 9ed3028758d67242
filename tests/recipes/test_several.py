"""Recipes of several architectures in a step: what they draw, learn from, and how gradients are joined."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import refusals
from small_nets import difference, jit, random_params, take
from small_tasks import net_of, perceptron, task_of

import jaxnas
from jaxnas import Choice, Space, data, recipes, tasks, training
from jaxnas.recipes import Attentive, Distillation, Fair, Fixed, Progressive, Sandwich, Stratified, Uniform
from jaxnas.recipes.hard import fair
from jaxnas.recipes.recipe import Problem, region_of
from jaxnas.recipes.together import join
from jaxnas.training import Options
from jaxnas.training.step import active_masks, prepare

TASK, NET = dataclasses.replace(task_of("images"), label_smoothing=0.0), perceptron(2, (1, 2, 4))
SPACE, COST = NET.space, jaxnas.cost(NET, TASK.inputs)
RATE = 0.3
SGD = optax.sgd(RATE), optax.constant_schedule(RATE)
TRAINING = training.Training(steps=40, batch_size=8, devices=1)
DEEP = Space(depth=Choice(1, 2, 3), hidden=Choice(4, 8).repeat(3, active="depth"), kernel=Choice(3, 5, 7))


def steps_of(recipe, count=1, *, task=TASK, net=NET, weights=True):
    """The states before and after each step of plain gradient descent, and its metrics and batches."""
    variables = {"params": random_params(NET, TASK.inputs.shape)} if weights else None
    options = Options(optimizer=SGD, variables=variables)
    state, step, batch = prepare(task, net, TRAINING, recipe, options=options)
    found = []
    for number in range(count):
        before, rows = jax.device_get((state, batch(number)))
        state, metrics = step(state, batch(number))
        found.append((before, *jax.device_get((state, metrics)), rows))
    return found


def stepped(recipe, **options):
    """The states before and after one step, its metrics and its batch."""
    return steps_of(recipe, **options)[0]


def problem_of(space, part=None, cost=None):
    part = None if part is None else region_of(space, part)
    return Problem(lambda *given: (jnp.float32(0), ((), ())), space, 10, SGD[1], cost, part=part)


def gradient_of(before, after):
    return jax.tree.map(lambda a, b: (a - b) / RATE, before.params, after.params)


# ---- Distillation.


def test_divergences_are_those_of_pytorch_and_of_their_formulas():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    teacher, student = (np.float32(0.3 * random.normal(size=(12, 4))) for _ in range(2))
    p, log_q = torch.softmax(torch.tensor(teacher), 1), torch.log_softmax(torch.tensor(student), 1)
    entropy = torch.nn.functional.cross_entropy(torch.tensor(student), p, reduction="none")
    np.testing.assert_allclose(recipes.distillation.soft_cross_entropy(teacher, student), entropy, rtol=1e-5)
    kl = torch.nn.functional.kl_div(log_q, p, reduction="none").sum(1).numpy()
    np.testing.assert_allclose(recipes.distillation.kl(teacher, student), kl, rtol=1e-5, atol=1e-6)

    def alpha(x):
        """The formula with alpha = -1, where no ratio is clipped."""
        p, q = jax.nn.softmax(teacher), jax.nn.softmax(x)
        return jnp.maximum((jnp.sum(q**2 / p, axis=1) - 1) / 2, jnp.sum(p * jnp.log(p / q), axis=1))

    def slope(function, x):
        return jax.grad(lambda x: jnp.sum(function(x)))(x)

    own = functools.partial(recipes.distillation.adaptive_alpha, teacher)
    np.testing.assert_allclose(own(student), alpha(student), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(slope(own, student), slope(alpha, student), rtol=1e-3, atol=1e-6)
    # A teacher that finds a class next to impossible does not decide everything.
    sure = functools.partial(recipes.distillation.adaptive_alpha, jnp.array([[20.0, 0.0, 0.0]]))
    assert np.abs(slope(sure, jnp.zeros((1, 3)))).max() <= 5


def test_a_temperature_keeps_the_size_of_gradients_and_labels_are_added():
    logits, teacher = jnp.array([[0.1, 0.2], [0.0, -0.1]]), jnp.array([[0.3, 0.0], [0.1, 0.1]])
    weight = jnp.array([1.0, 0.0])  # the second example does not count
    predictions = tasks.Predictions(logits, weight, jnp.float32(7.0), {})
    expected = float(recipes.distillation.kl(teacher, logits)[0])
    for settings, more, rel in (
        ({}, 0, 1e-5),
        ({"temperature": 10.0}, 0, 0.2),
        ({"label_weight": 0.5}, 3.5, 1e-5),
    ):
        loss = Distillation(divergence="kl", **settings).loss(predictions, teacher)
        assert loss == pytest.approx(expected + more, rel=rel)


# ---- Gradients.


@jit
def by_hand(params, rows, archs):
    """The sandwich's gradients one by one: the first on the labels, the others on its probabilities."""
    pixels = TASK.preprocess(rows)

    def log_probabilities(params, arch):
        return jax.nn.log_softmax(NET.apply({"params": params}, pixels, arch))

    def loss(params, arch, targets):
        return -jnp.mean(jnp.sum(targets * log_probabilities(params, arch), axis=1))

    labels = jax.nn.one_hot(rows["label"], 2)
    one = jax.grad(loss)
    first, *others = [take(archs, i) for i in range(4)]
    soft = jnp.exp(log_probabilities(params, first))
    return one(params, first, labels), [one(params, arch, soft) for arch in others]


def test_the_sandwich_trains_the_largest_on_labels_and_the_others_on_its_predictions():
    before, after, metrics, rows = stepped(Sandwich())
    archs = metrics["archs"]
    assert np.asarray(archs["hidden"])[[0, 3]].tolist() == [[2, 2], [0, 0]]  # the largest, the smallest
    largest, others = by_hand(before.params, rows["train"], archs)
    mean = jax.tree.map(lambda *x: sum(x) / 4, largest, *others)
    assert difference(gradient_of(before, after), mean) < 1e-4
    assert np.isfinite(metrics["largest_loss"]) and np.isfinite(metrics["smallest_loss"])
    # Projected, the largest one's gradient has no part against the others' left, tensor by tensor.
    both = steps_of(Sandwich(project_after=1 / 40), 2)
    for (before, after, metrics, rows), projects in zip(both, (False, True), strict=True):
        largest, others = by_hand(before.params, rows["train"], metrics["archs"])
        total = jax.tree.map(lambda *x: sum(x), *others)
        expected = join(largest, total, 4, jnp.bool_(projects))
        assert difference(gradient_of(before, after), expected) < 1e-4


def test_conflicts_are_projected_away_and_agreement_is_left():
    others = {"a": jnp.array([0.6, 0.0]), "b": jnp.array([0.0, 0.8])}  # of norm 1
    first = {"a": jnp.array([-0.3, 1.0]), "b": jnp.array([2.0, 0.4])}
    joined = join(first, others, 2, jnp.bool_(True))
    np.testing.assert_allclose(joined["a"], [0.3, 0.5], atol=1e-5)  # (0, 1) is left of the first, and others
    np.testing.assert_allclose(joined["b"], [1.0, 0.6], atol=1e-5)  # agrees
    large = jax.tree.map(lambda x: 5 * x, others)  # is limited to a norm of 1
    assert difference(join(first, large, 2, jnp.bool_(True)), joined) < 1e-5


def test_weights_that_no_architecture_of_a_step_uses_stay_bit_for_bit():
    masks, kept = jit(active_masks(NET, TASK.inputs)), 0
    for recipe in (Uniform(architectures=2), Fixed(SPACE.smallest())):
        before, after, metrics, _ = stepped(recipe)
        archs = metrics["archs"]
        each = [masks(take(archs, i)) for i in range(len(archs["hidden"]))]
        used = jax.tree.map(lambda *x: np.any(np.stack(x), axis=0), *each)
        for mask, a, b in zip(*map(jax.tree.leaves, (used, before.params, after.params)), strict=True):
            mask = np.broadcast_to(mask, a.shape)
            np.testing.assert_array_equal(a[~mask].view(np.uint32), b[~mask].view(np.uint32))
            kept += int((~mask).sum())
        assert difference(before.params, after.params) > 1e-4
    assert kept > 20


# ---- A trained teacher.


def test_a_trained_teacher_teaches_without_its_own_dropout():
    arch = SPACE.largest()
    variables = {"params": random_params(NET, TASK.inputs.shape)}
    small = jaxnas.extract(NET, variables, arch, inputs=TASK.inputs)
    teacher = recipes.Teacher(small.net, small.variables)
    before, after, _, rows = stepped(Fixed(SPACE.smallest(), distill=Distillation(teacher=teacher)))
    archs = jax.tree.map(lambda *x: jnp.stack(x), *[arch, *[SPACE.smallest()] * 3])
    _, (expected, *_) = by_hand(before.params, rows["train"], archs)
    assert difference(gradient_of(before, after), expected) < 1e-3
    # The largest of a sandwich learns from it too: here from itself, where its gradient is nothing.
    before, after, *_ = stepped(Sandwich(random=0, distill=Distillation(teacher=teacher)))
    half = jax.tree.map(lambda x: x / 2, expected)
    assert difference(gradient_of(before, after), half) < 1e-3


def test_a_saved_network_is_a_teacher_by_its_folder(tmp_path):
    x = np.random.default_rng(0).normal(size=(90, 4))
    task = tasks.Table(data=data.from_table(x, (x[:, 0] > 0).astype(int)))
    net, folder = net_of("table").clone(num_outputs=2, dropout=0.0), tmp_path / "subnet"
    variables = jaxnas.init(net, jax.random.key(1), task.inputs)
    small = jaxnas.extract(net, variables, net.space.largest(), inputs=task.inputs)
    jaxnas.save_subnet(folder, small.net, small.variables, task.inputs)
    found = []
    for teacher in (recipes.Teacher(small.net, small.variables), str(folder)):
        recipe = Uniform(distill=Distillation(teacher=teacher))
        found.append(stepped(recipe, task=task, net=net, weights=False)[1].params)
    assert difference(*found) == 0
    # The folder is read when a training begins, and not from what was read before.
    zeros = jax.tree.map(jnp.zeros_like, small.variables)
    jaxnas.save_subnet(folder, small.net, zeros, task.inputs)
    assert difference(recipe.loaded(jaxnas.load_subnet).teacher.variables, zeros) == 0


def test_a_teacher_of_other_classes_or_of_another_kind_is_refused(tmp_path):
    other = perceptron().clone(classes=3, space=SPACE.fix(SPACE.largest()))
    teacher = recipes.Teacher(other, jaxnas.init(other, jax.random.key(0), TASK.inputs))
    text, net = task_of("language"), net_of("language")
    untrained = Uniform(distill=Distillation(teacher=recipes.Teacher(NET, {"params": {}})))

    class OwnLoss(tasks.Images):
        def loss(self, call):
            return super().loss(call)

    def case(name, recipe, **more):
        return lambda: stepped(recipe, **more), ValueError, name

    refusals.check(
        case("does not fit", Uniform(distill=Distillation(teacher=teacher))),
        case("has 9 architectures", untrained),
        case("hands a memory from batch", untrained, task=text, net=net, weights=False),
        case("OwnLoss defines `loss` and", Sandwich(), task=OwnLoss(data=TASK.data)),
    )


# ---- What is drawn.


def test_fairness_trains_every_option_equally_often():
    problem = problem_of(DEEP)
    for count, key in ((6, 0), (3, 1), (12, 2), (4, 3)):
        archs = fair(problem, jax.random.key(key), count)
        free = {"depth": archs["depth"], "kernel": archs["kernel"], "hidden": archs["hidden"][:, 0]}
        for name, indices in free.items():
            times = np.bincount(indices, minlength=len(DEEP[name].options))
            assert times.max() - times.min() <= (0 if count % len(times) == 0 else 1)
    # Each element has an order of its own.
    orders = [fair(problem, jax.random.key(i), 3) for i in range(20)]
    assert len({(*map(int, x["depth"]), *map(int, x["kernel"])) for x in orders}) > 10
    _, _, metrics, _ = stepped(Fair())
    assert all(sorted(column) == [0, 1, 2] for column in np.asarray(metrics["archs"]["hidden"]).T)


def test_stratified_sizes_are_even_where_uniform_options_are_not():
    net = perceptron(8, (1, 2, 4, 8))
    cost = jaxnas.cost(net, TASK.inputs)
    problem = problem_of(net.space, cost=cost)
    smallest, largest = (float(cost(arch)["macs"]) for arch in (net.space.smallest(), net.space.largest()))

    def shares(sampler):
        """How often a size is in each fifth of their range."""
        draw = jax.jit(jax.vmap(lambda key: cost(take(sampler.alike(problem, None, key, 1), 0))["macs"]))
        macs = np.asarray(draw(jax.random.split(jax.random.key(0), 2000)))
        return np.histogram(macs, 5, range=(smallest, largest))[0] / len(macs)

    assert max(shares(recipes.Random())[[0, 4]]) < 0.1
    assert np.all(shares(Stratified()) > 0.12) and np.all(shares(Stratified()) < 0.28)
    # Those alike are of one size.
    alike = jit(lambda key: Stratified(candidates=200).alike(problem, None, key, 3))
    for seed in range(5):
        macs = np.asarray(jax.vmap(cost)(alike(jax.random.key(seed)))["macs"], np.float64)
        assert np.ptp(macs) < 0.15 * (largest - smallest)


def test_stratified_sizes_reach_beyond_ends_that_are_not_the_cheapest_and_the_dearest():
    space, macs = Space(kind=Choice("middle", "small", "large", "other")), jnp.array([4.0, 1.0, 9.0, 5.0])
    problem = problem_of(space, cost=lambda arch: {"macs": macs[arch["kind"]]})
    draw = jax.vmap(lambda key: Stratified().alike(problem, None, key, 1)["kind"][0])
    assert set(draw(jax.random.split(jax.random.key(0), 100)).tolist()) == {0, 1, 2, 3}


def test_attentive_sampling_trains_what_has_the_least_or_greatest_loss():
    problem, key = problem_of(SPACE), jax.random.key(0)

    def loss(arch):
        return jnp.sum(arch["hidden"]).astype(jnp.float32)

    candidates = recipes.Random().alike(problem, loss, key, 6)["hidden"].sum(axis=1)
    for pick, chosen in (("best", min(candidates)), ("worst", max(candidates))):
        sampler = Attentive(pick=pick, candidates=6, sampler=recipes.Random())
        assert recipes.samplers.draw(sampler, problem, loss, key, 1)["hidden"].sum() == chosen
    assert min(candidates) < max(candidates)


def test_a_schedule_of_spaces_grows_without_another_program():
    first, second = (SPACE.restrict(hidden=options) for options in (4, (2, 4)))
    recipe = Progressive(phases=((0, first), (3, second), (6, SPACE)), recipe=Sandwich(random=2))
    state, step, batch = prepare(TASK, NET, TRAINING, recipe, options=Options(optimizer=SGD))
    seen = []
    for number in range(9):
        state, metrics = step(state, batch(number))
        archs = np.asarray(SPACE["hidden"].options)[np.asarray(metrics["archs"]["hidden"])]
        seen.append((int(metrics["phase"]), archs.min(), archs.max(), archs[-1].max()))
    phases = [[row[1:] for row in seen if row[0] == phase] for phase in range(3)]
    assert phases == [[(4, 4, 4)] * 3, [(2, 4, 2)] * 3, [(1, 4, 1)] * 3]
    assert step._cache_size() == 1


@pytest.mark.parametrize("sort", [True, False])
def test_a_new_phase_begins_with_sorted_channels_and_moments(sort):
    recipe = Progressive(phases=((0, SPACE.restrict(hidden=4)), (2, SPACE)), sort=sort)
    options = Options(optimizer=(optax.sgd(1e-3, momentum=0.9), SGD[1]))
    state, step, batch = prepare(TASK, NET, TRAINING, recipe, options=options)
    is_sorted = []
    for number in range(3):
        state, _ = step(state, batch(number))
        reads = [np.abs(state.params[f"out_{i}"]["kernel"]).sum(axis=1) for i in range(2)]
        # A step of descent moves them by little.
        is_sorted.append(all(np.all(np.diff(x) < 0.05 * np.max(x)) for x in reads))
    assert is_sorted == [False, False, sort]


def test_a_part_of_a_space_with_fewer_layers_is_a_region_of_it():
    part = DEEP.restrict(depth=(1, 2), kernel=(5, 7))
    region = region_of(DEEP, part)
    sample = jit(lambda key: region.sample(DEEP, key))
    found = [DEEP.to_dict(sample(jax.random.key(i))) for i in range(30)]
    assert {row["depth"] for row in found} == {1, 2} and {row["kernel"] for row in found} == {5, 7}
    assert DEEP.to_dict(DEEP.decode(region.largest))["depth"] == 2
    # Of the whole space it draws what the space draws, bit for bit.
    key = jax.random.key(0)
    whole = region_of(DEEP).sample(DEEP, key)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), whole, DEEP.sample(key)))


# ---- Refusals.

SINGLE = perceptron(1, (2,))
PHASES = ((0, SPACE.restrict(hidden=(2, 4))), (5, SPACE.restrict(hidden=4)))


class Bare(tasks.Task):
    """A task without predictions, which cannot distil."""


def test_what_cannot_be_right_is_refused():
    single_cost = jaxnas.cost(SINGLE, TASK.inputs)
    other = Progressive(phases=((0, perceptron(2, (3, 4)).space),))

    def asked(name, recipe, net=NET, cost=COST):
        return lambda: recipe.check(net.space, cost), ValueError, name

    refusals.check(
        asked("Uniform: the distillation has", Uniform(distill=Distillation())),
        asked("Fair: the distillation has", Fair(distill=Distillation())),
        asked("only one architecture,", Sandwich(), SINGLE),
        asked("'hidden'", Fair(architectures=2)),
        asked("'hidden'", Progressive(phases=PHASES)),
        asked("'depth'", Progressive(phases=((0, DEEP),))),
        asked("has 3 as an option of", other),
        asked("'macs'", Uniform(sampler=Stratified(cost="mac"))),
        asked("'macs'", Sandwich(sampler=Stratified()), cost=None),
        asked("no sizes", Uniform(sampler=Stratified()), SINGLE, single_cost),
        (lambda: Progressive(phases=((2, SPACE),)), ValueError, "the steps [2]"),
        (lambda: Progressive(phases=((0, SPACE), ("x", SPACE))), ValueError, "'x'"),
        (lambda: Uniform(architectures=0), ValueError, "architectures is 0"),
        (lambda: Sandwich(project_after=2.0), ValueError, "project_after is 2.0"),
        (lambda: Attentive(pick="bets"), ValueError, "pick is 'bets'"),
        (lambda: Attentive(candidates=1), ValueError, "candidates is 1"),
        (lambda: Stratified(candidates=1), ValueError, "candidates is 1"),
        (lambda: Distillation(divergence="k"), ValueError, "'k'"),
        (lambda: Distillation(temperature=0.0), ValueError, "temperature is 0.0"),
        (lambda: Bare().predict(tasks.Call(None, None, None, None)), ValueError, "Bare has no method"),
    )
