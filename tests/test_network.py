"""Any network: the contract, counts of plain Flax layers, and what is refused rather than silently wrong."""

import functools

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import promises
import pytest
import refusals
import user_networks
from small_nets import CONV, TABLE, TEXT, normal, setting
from small_tasks import perceptron, task_of
from user_networks import IMAGES, MIXER, Deep, Elastic, ElasticMlp

import jaxnas
from jaxnas import Choice, Space, elastic, runs, training
from jaxnas.annotations import annotations
from jaxnas.elastic import Decisions, Dense, Mixture, fixed, record_choice, width
from jaxnas.testing import check_network

FEATURES = {
    "features": normal(2, 6, 3),
    "nodes": jnp.asarray(np.random.default_rng(0).integers(0, 6, (2, 6)), jnp.int32),
}
NETWORKS = {
    "mixer": (user_networks.Mixer(MIXER), normal(*IMAGES)),
    "operations": (user_networks.Operations(user_networks.OPERATIONS), normal(*IMAGES)),
    "elastic operations": (user_networks.ElasticOperations(user_networks.ELASTIC_OPERATIONS), FEATURES),
    "rows": (TABLE, normal(2, 6)),
    "pictures": (CONV, normal(2, 12, 12, 3)),
    "texts": (TEXT, {"tokens": FEATURES["nodes"][:, :5], "mask": jnp.ones((2, 5), bool)}),
}
KEY = jax.random.key(0)
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


@functools.cache
def variables_of(name):
    net, inputs = NETWORKS[name]
    rng = np.random.default_rng(0)
    variables = jax.eval_shape(lambda key: jaxnas.init(net, key, inputs), KEY)
    return jax.tree.map(lambda x: jnp.asarray(rng.uniform(0.2, 1, x.shape), x.dtype), variables)


class Base(Elastic):
    """Its body is given rows of three numbers, also of pictures, and its decisions."""

    space: Space = Space(hidden=Choice(4, 8))

    def body(self, x, decisions, train):
        return self.rows(x.reshape(x.shape[0], -1)[:, :3], *(decisions[name] for name in self.space))


@pytest.mark.hlo
@pytest.mark.parametrize("name, seed", [*((name, 0) for name in NETWORKS), ("operations", 1)])
def test_costs_are_those_of_xla_and_extraction_is_exact(name, seed):
    """P3 and P7; costs ask for the shapes and types of inputs alone."""
    net, inputs = NETWORKS[name]
    arch = net.space.sample(jax.random.key(seed))
    small, variables = promises.check_extracted(net, variables_of(name), arch, inputs)
    costs = jaxnas.cost(net, jax.eval_shape(lambda: inputs))(arch)
    assert jaxnas.cost(small, inputs)(small.space.smallest()) == costs


class LowRank(Base):
    def rows(self, x, decision):
        def low_rank(key, shape, dtype=jnp.float32):
            left, right = jax.random.normal(key, (2, max(shape), 2), dtype)
            return left[: shape[0]] @ right[: shape[1]].T

        return nn.Dense(5, kernel_init=low_rank)(ElasticMlp()(x, width(int, decision)))


def test_products_of_an_initialization_are_none_of_the_network():
    check_network(LowRank(), (1, 3))
    costs = jaxnas.cost(LowRank(), (1, 3))({"hidden": jnp.arange(2)})
    assert costs["macs"].tolist() == [2 * 3 * hidden + 3 * 5 for hidden in (4, 8)]


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_what_an_architecture_uses(name):
    net, inputs = NETWORKS[name]
    specs, variables = annotations(net, inputs).specs, variables_of(name)

    @jax.jit
    @jax.grad
    def gradient(params, arch):
        outputs = net.apply({**variables, "params": params}, inputs, arch)
        return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(outputs))

    for seed in range(4):
        arch = net.space.sample(jax.random.key(seed))
        for path, leaf in flax.traverse_util.flatten_dict(gradient(variables["params"], arch)).items():
            assert not np.any(np.where(specs[path].mask(arch), 0, leaf)), path


class Shortcut(Base):
    """Projects where widths differ, which each of its networks alone sees in another way."""

    space: Space = Space(first=Choice(4, 8), second=Choice(4, 8))

    def rows(self, x, *decisions):
        first, second = (width(int, decision) for decision in decisions)
        y = Dense(name="in")(x, fixed(3), first)
        z = Dense(name="between")(y, first, second)
        if not (first.is_fixed and first.maximum == second.maximum):
            y = Dense(name="project")(y, first, second)
        return Dense(name="out")(y + z, second, fixed(2))


def test_extraction_counts_the_architecture_at_hand():
    net, x = Shortcut(), normal(2, 3)
    variables, arch = jaxnas.init(net, KEY, x), net.space.from_dict({"first": 4, "second": 8})
    assert jaxnas.extract(net, variables, arch, inputs=x).variables["params"]["project"]
    equal = net.space.smallest()
    extract = functools.partial(jaxnas.extract, net, variables, equal)
    refusals.check((lambda: extract(inputs=x), ValueError, "project/kernel", "'first': 4"))


class Recorded(Base):
    """Operations that a gate leaves out of all networks or of one, and a pooling that is chosen by hand."""

    def rows(self, x, decision):
        record_choice(self, decision)
        gates = (width(lambda size: 0, decision), width(lambda size: int(size > 4), decision))
        added = [elastic.run(lambda x: x + 1, "rows three -> rows three", {}, x, gate=gate) for gate in gates]
        dense = Dense(name="dense")(x, fixed(3), fixed(3), gate=gates[0])
        is_mean = jnp.asarray([option == 8 for option in decision.options])[decision.value]
        pooled = jnp.where(is_mean, x.mean(axis=1, keepdims=True), x.max(axis=1, keepdims=True))
        return jnp.concatenate([*added, dense, pooled], axis=1)


def test_a_gate_that_is_always_0_leaves_an_operation_out_and_a_choice_by_hand_is_recorded():
    net, x = Recorded(), normal(2, 3)
    variables = jax.tree.map(lambda leaf: leaf + 1, jaxnas.init(net, KEY, x))
    for index, pool in enumerate((np.max, np.mean)):
        arch = {"hidden": jnp.int32(index)}
        expected = np.concatenate([0 * x, index * (x + 1), 0 * x, pool(x, axis=1, keepdims=True)], axis=1)
        np.testing.assert_allclose(net.apply(variables, x, arch), expected, rtol=1e-6)
        assert jaxnas.extract(net, variables, arch, verify=x).error <= 1e-6


BY_HAND = {
    "flatten": lambda y, hidden, i: jnp.stack([y, 2 * y], axis=1).reshape(y.shape[0], -1),
    "concatenation": lambda y, hidden, i: jnp.concatenate([y, 3 * y], axis=1),
    "softmax": lambda y, hidden, i: jax.nn.softmax(y),
    "norm": lambda y, hidden, i: y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=1, keepdims=True) + 1e-6),
    "table": lambda y, hidden, i: y * jnp.asarray([2.0, 3.0])[i],
    "mask": lambda y, hidden, i: y * jnp.float32(jnp.arange(hidden.maximum) < jnp.asarray([2, 8])[i])[None],
    # A softmax is not maskable.
    "maskable": lambda y, hidden, i: softmax(y, hidden, maskable=("hidden",), max_branches=1),
    "right": lambda y, hidden, i: softmax(y, hidden),
    "beside": lambda y, hidden, i: softmax(y, hidden),  # a second output reads the zeros behind it
}


def softmax(y, hidden, **options):
    return elastic.run(jax.nn.softmax, "rows hidden -> rows hidden", {"hidden": hidden}, y, **options)


class Between(Base):
    """Something made by hand between two elastic layers, which no count sees."""

    by_hand: str = "right"

    def rows(self, x, decision):
        hidden = width(int, decision)
        y = Dense(name="first")(x, fixed(3), hidden)
        y = BY_HAND[self.by_hand](y, hidden, decision.value)
        times = y.shape[1] // hidden.maximum
        outputs = Dense(name="readout")(y, width(lambda size: times * size, decision), fixed(2))
        if self.by_hand == "beside":
            return outputs, {"beside": jnp.sum(jnp.exp(y), axis=1)}
        return (outputs, {"beside": hidden.mask()}) if self.by_hand == "right" else outputs


def test_an_extracted_network_that_computes_something_else_is_refused_before_training():
    nets = [Between(by_hand=by_hand) for by_hand in BY_HAND if by_hand not in ("right", "beside")]
    check_network(Between(), (2, 3))
    refusals.check(
        *((lambda net=net: check_network(net, (2, 3)), ValueError, "'hidden'", "readout") for net in nets),
        (lambda: check_network(Between(by_hand="beside"), (2, 3)), ValueError, "'hidden'"),
        (lambda: training.fit(task_of("images"), nets[2], 1), ValueError, "'hidden'", "readout"),
    )


def with_product(x):
    return x @ jnp.ones((3, 8))


WRONG = {
    "plain": lambda self, x, y: nn.Dense(2)(y),
    "product": lambda self, x, y: y @ y.T,
    "branches": lambda self, x, y: y + jax.lax.cond(x.sum() > 0, with_product, lambda x: jnp.ones((1, 8)), x),
    # Whether a product is in a program that cannot be looked into, nothing says.
    "opaque": lambda self, x, y: jax.pure_callback(lambda y: y, y, y),
}


class Wrong(Base):
    how: str = "plain"

    def rows(self, x, decision):
        return WRONG[self.how](self, x, Dense()(x, fixed(3), width(int, decision)))


class Understated(Base):
    def rows(self, x, decision):
        hidden = width(int, decision)
        y = Dense()(x, fixed(3), hidden)
        elastic.record_macs(self, hidden.table)
        return (y @ y.T @ y)[:, :2]


class Mistyped(Base):
    def rows(self, x, decision):
        return x * Decisions(self.space, None, initializing=True)["hiden"].value


class SharedByAll(Elastic):
    space: Space = Space(op=Choice("identity", "dense").repeat(20))

    def body(self, x, decisions, train):
        blocks = {"identity": user_networks.Identity(), "dense": nn.Dense(3)}
        for i in range(20):
            x = Mixture(blocks)(decisions["op", i], x)
        return x


CALLS = {
    "NoArchitecture": lambda self, x, *, train=False: x,
    "NoTrain": lambda self, x, arch=None: x,
    "TwoInputs": lambda self, x, arch, mask, train=False: x,
    "Nothing": lambda self, x, arch=None, *, train=False: {},
}


def test_networks_that_break_the_contract_are_refused_and_named():
    def case(net, inputs, error, *names):
        return lambda: check_network(net, inputs), error, *names

    def calls(name, error, *names):
        return case(type(name, (Base,), {"__call__": CALLS[name]})(), (2, 3), error, *names)

    masked, mixer = user_networks.Masked(user_networks.MASKED), user_networks.Mixer(MIXER)
    kernel = "Dense_1/kernel (4, 2) instead of (8, 2)"
    refusals.check(
        case(masked, IMAGES, ValueError, "Masked", "hidden"),  # masked by hand, which nothing records
        case(Wrong(), (2, 3), ValueError, "{'hidden': 4}", kernel),
        case(Wrong(how="product"), (2, 3), ValueError, "20", "16"),
        case(Understated(), (2, 3), ValueError, "16", "20"),
        case(Wrong(how="branches"), (2, 3), ValueError, "Wrong", "lax.cond"),
        case(SharedByAll(), (2, 3), ValueError, "Dense_0", "20"),
        case(3, (2, 3), TypeError, "int"),
        case(user_networks.Identity(), (2, 3), TypeError, "Identity"),  # without a space
        calls("NoArchitecture", TypeError, "NoArchitecture"),
        calls("NoTrain", TypeError, "`train`", "x, arch"),
        calls("TwoInputs", TypeError, "'mask'"),
        calls("Nothing", ValueError, "Nothing"),
        case(Mistyped(), (2, 3), ValueError, "'hiden'", "'hidden'"),
        case(mixer, {"image": IMAGES}, TypeError, "2", "int"),
        case(setting("narrow").net, (2, 9, 9, 1), ValueError, "9, 9, 1", "[B, 8, 8"),
        case(mixer, jnp.float32(3), ValueError, "float32"),
        # Costs need no extracted network, but annotations that are complete.
        (lambda: jaxnas.cost(masked, IMAGES), ValueError, "Masked", "hidden"),
        (lambda: jaxnas.cost(Wrong(how="branches"), (2, 3)), ValueError, "Wrong", "lax.cond"),
        (lambda: jaxnas.cost(Wrong(how="opaque"), (2, 3)), ValueError, "Wrong", "pure_callback"),
    )


def test_fit_and_verified_extraction_check_a_network_once(tmp_path, monkeypatch):
    net, x, task = Understated(), normal(2, 3), task_of("images")
    variables = jaxnas.init(net, KEY, x)
    refusals.check(
        (lambda: jaxnas.extract(net, variables, net.space.smallest(), verify=x), ValueError, "16", "20"),
        (lambda: training.fit(task, net, 3), ValueError, "16", "20"),
    )
    checked = []
    monkeypatch.setitem(training.fit.__globals__, "check_network", lambda net, inputs: checked.append(net))
    for _ in range(2):  # the second call finds the training complete
        options = training.Options(optimizer=(optax.sgd(0.1), lambda step: 0.1))
        training.fit(task, perceptron(), 1, workdir=tmp_path, options=options)
    assert checked == [perceptron()]


def test_mistakes_with_decisions_and_variables_are_refused():
    decisions, (net, inputs) = Decisions(MIXER, MIXER.smallest()), NETWORKS["mixer"]
    assert decisions["tokens"].options == (3, 6) and decisions["hidden", 1].name == ("hidden", 1)
    broken, smallest = jax.tree.map(lambda x: x * jnp.nan, variables_of("mixer")), net.space.smallest()
    refusals.check(
        (lambda: decisions["token"], KeyError, "'token'", "'tokens'"),
        (lambda: decisions["hidden"], KeyError, "decisions['hidden', i]"),
        (lambda: decisions["hidden", 2], KeyError, "0 to 1", "2"),
        (lambda: decisions["tokens", 0], KeyError, "decisions['tokens']"),
        (lambda: jaxnas.extract(net, broken, smallest, verify=inputs), ValueError, "NaN", "`verify`"),
        (lambda: jaxnas.extract(net, broken["params"], smallest, inputs=inputs), ValueError, "'params'"),
    )


class ElasticStatistics(Base):
    """Running means at an elastic width, annotated or not."""

    annotated: bool = True

    def rows(self, x, decision):
        hidden = width(int, decision)
        y = Dense()(x, fixed(3), hidden)
        mean = self.variable("batch_stats", "mean", jnp.zeros, hidden.maximum)
        if self.annotated:
            elastic.annotate(self, "mean", (hidden,))
        return jnp.sum(y - mean.value[None] * hidden.mask()[None], axis=1)


def test_other_collections_are_cut_too():
    net, inputs = ElasticStatistics(), normal(5, 3)
    variables = jaxnas.init(net, KEY, inputs) | {"batch_stats": {"mean": jnp.arange(8.0)}}
    for index, size in enumerate((4, 8)):
        small = jaxnas.extract(net, variables, {"hidden": jnp.int32(index)}, verify=inputs)
        np.testing.assert_array_equal(small.variables["batch_stats"]["mean"], np.arange(size))
    extract = functools.partial(jaxnas.extract, net.clone(annotated=False), variables, net.space.smallest())
    refusals.check((lambda: extract(inputs=inputs), ValueError, "batch_stats/mean"))


class Normalized(Elastic):
    """Flax's batch normalization at momenta that differ, in the blocks of a mixture too."""

    space: Space = Space(op=Choice("narrow", "wide"))

    def body(self, x, decisions, train):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train)
        x = norm(momentum=0.99, name="norm")(x)
        blocks = {"narrow": Deep(nn.Dense(4), train), "wide": Deep(nn.Dense(16), train)}
        x = nn.Dropout(0.2, deterministic=not train)(Mixture(blocks, name="choice")(decisions["op"], x))
        return norm(momentum=0.5, name="last")(x)


def test_calibration_is_the_statistics_of_all_data():
    """Against NumPy on the inputs, under jit, vmap and lax.map, and for architectures of a supernet."""
    net, data = Normalized(), 3 * normal(4, 6, 8) + 5
    variables, arch = jaxnas.init(net, KEY, data[0]), {"op": jnp.int32(1)}
    calibrate = functools.partial(jaxnas.calibrate, net, variables, batches=data)
    compiled, archs = jax.jit(calibrate), net.space.enumerate()
    found = [compiled({"op": jnp.int32(i)}) for i in range(2)]
    rows = np.asarray(data, np.float64).reshape(-1, 8)
    for one in found:
        statistics = one["batch_stats"]["norm"]
        np.testing.assert_allclose(statistics["mean"], rows.mean(axis=0), rtol=2e-5)
        np.testing.assert_allclose(statistics["var"], rows.var(axis=0), rtol=1e-4)
        assert one["params"] is not None
    last = [one["batch_stats"]["last"] for one in found]
    assert not np.allclose(last[0]["mean"], last[1]["mean"])
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *last)
    for mapped in (jax.vmap(calibrate), lambda archs: jax.lax.map(calibrate, archs)):
        jax.tree.map(assert_close, jax.jit(mapped)(archs)["batch_stats"]["last"], stacked)
    # A network leaves its supernet with statistics that some data gave, and is calibrated as its supernet is.
    extract = functools.partial(jaxnas.extract, net, variables, arch)
    refusals.check((lambda: extract(verify=data[0]), ValueError, "calibrate", "batches"))
    small, cut, _ = extract(verify=data[0], batches=data)
    np.testing.assert_allclose(cut["batch_stats"]["norm"]["mean"], rows.mean(axis=0), rtol=2e-5)
    again = jaxnas.calibrate(small, cut, None, data)["batch_stats"]
    jax.tree.map(assert_close, again, cut["batch_stats"])


class Kept(Base):
    """What no batch makes, in "batch_stats" beside a batch normalization, and in a collection of its own."""

    written: str = "batch_stats"

    def rows(self, x, decision):
        record_choice(self, decision)
        train = self.is_mutable_collection("batch_stats")
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        average = self.variable(self.written, "average", lambda: jnp.full(3, 5.0))
        if self.is_mutable_collection(self.written) and not self.is_initializing():
            average.value = 0.9 * average.value + 0.1 * jnp.mean(x, axis=0)
        return nn.Dense(2)(x + average.value[None])


def test_calibration_leaves_what_is_no_mean_and_variance_and_needs_batches_and_statistics():
    net, x, (mixer, images) = Kept(), normal(2, 5, 3), NETWORKS["mixer"]
    variables, smallest = jaxnas.init(net, KEY, x[0]), net.space.smallest()
    found = jaxnas.calibrate(net, variables, smallest, x)["batch_stats"]
    np.testing.assert_array_equal(found["average"], [5, 5, 5])
    assert np.all(np.asarray(found["norm"]["mean"]) != 0)
    without = (mixer, variables_of("mixer"), MIXER.smallest(), images[None])
    wide = {**variables, "params": jax.tree.map(lambda x: jnp.repeat(x, 2, axis=-1), variables["params"])}
    misshapen = "Kept", "Dense_0/bias", "(4,)", "(2,)"
    refusals.check(
        (lambda: jaxnas.calibrate(net, wide, smallest, x), ValueError, *misshapen),
        (lambda: training.fit(task_of("images"), Kept(written="codebook"), 1), ValueError, "codebook"),
        (lambda: jaxnas.calibrate(net, variables, smallest, x[:0]), ValueError, "[0, 5, 3]"),
        (lambda: jaxnas.calibrate(*without), ValueError, "Mixer"),
    )


def zeros(net, inputs):
    shapes = jax.eval_shape(lambda key: jaxnas.init(net, key, inputs), KEY)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def test_variables_of_another_network_are_refused_by_the_arrays_that_differ():
    task, net = task_of("images"), perceptron()
    wide = zeros(perceptron(options=(1, 2, 8)), task.inputs)
    short, long = (zeros(perceptron(n), task.inputs) for n in (1, 3))
    evaluate, arch = training.make_evaluator(task, net, "search"), net.space.largest()
    misshapen = "Perceptron", "params/in_0/kernel", "(16, 8)", "(16, 4)"

    def fit(variables):
        return training.fit(task, net, 1, options=training.Options(variables=variables))

    refusals.check(
        (lambda: evaluate(wide, arch), ValueError, *misshapen),
        (lambda: evaluate.with_errors(short, arch), ValueError, "missing", "params/in_1/kernel"),
        (lambda: evaluate(wide["params"], arch), ValueError, "'params'", "in_0"),
        (lambda: jaxnas.extract(net, wide, arch, inputs=task.inputs), ValueError, *misshapen),
        (lambda: runs.search_space(task, net, wide), ValueError, *misshapen),
        (lambda: fit(wide), ValueError, *misshapen),
        (lambda: fit(long), ValueError, "unexpected", "params/in_2/kernel"),
    )


class Sowing(Base):
    def rows(self, x, decision):
        hidden = width(int, decision)
        x = Dense(name="in")(x, fixed(3), hidden)
        self.sow("losses", "square", jnp.mean(x**2))
        return Dense(name="out")(x, hidden, fixed(2))


def test_what_a_network_sows_is_none_of_its_variables():
    net, images = Sowing(), jnp.ones((2, 4, 4, 1))
    variables = jaxnas.init(net, KEY, images)
    assert variables.keys() == {"params"}
    small = jaxnas.extract(net, variables, net.space.smallest(), verify=images)
    _, state = small.net.apply(small.variables, images, mutable=["losses"])
    assert state["losses"]["square"][0] > 0
    assert training.fit(task_of("images"), net, 1).variables.keys() == {"params"}
