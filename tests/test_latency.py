"""Measured latency as a cost."""

import dataclasses
import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import small_tasks
import user_networks

import jaxnas
from jaxnas import Choice, Space, latency, runs, search, spaces, supernets, tasks
from jaxnas.elastic import Dense, Mixture, fixed, width
from jaxnas.experiments.configs.par import measure_blocks
from jaxnas.report import findings

SPACE = spaces.par(3)
KINDS = ("identity", "feed_forward", "attention")
BLOCKS = [latency.Block({f"block[{position}]": KINDS}, (0, 300, 1000)) for position in range(3)]
TABLE = latency.LatencyTable(BLOCKS, "cpu", {"batch": 2})


class Wide(user_networks.Elastic):
    def body(self, inputs, decisions, train):
        hidden = width(int, decisions["hidden"])
        x = nn.BatchNorm(use_running_average=not train)(inputs["x"])
        y = Dense(name="in")(x, fixed(512), hidden)
        y = Dense(name="out")(y, hidden, fixed(512))
        return Mixture({"identity": user_networks.Identity(), "dense": nn.Dense(512)})(decisions["last"], y)


def test_the_latency_of_an_architecture_is_the_sum_of_its_blocks():
    cost = TABLE.cost(SPACE)
    arch = SPACE.from_dict({"block": ["attention", "identity", "feed_forward"]})
    assert cost(arch) == {"latency_ms": 1300e-6}
    batch = SPACE.enumerate()
    one_by_one = [cost(jax.tree.map(lambda x, i=i: x[i], batch))["latency_ms"] for i in range(27)]
    np.testing.assert_allclose(jax.jit(jax.vmap(cost))(batch)["latency_ms"], one_by_one, rtol=1e-6)
    # Expected, and differentiable, for a soft one.
    weights = {"block": jnp.full((3, 3), 1 / 3)}
    assert float(cost(weights)["latency_ms"]) == pytest.approx(1300e-6)
    gradient = jax.grad(lambda w: cost(w)["latency_ms"])(weights)["block"]
    np.testing.assert_allclose(gradient, [[0, 300e-6, 1000e-6]] * 3, rtol=1e-6)
    fixed_space = SPACE.fix(arch)  # of the network that was found
    assert TABLE.cost(fixed_space)(fixed_space.smallest()) == {"latency_ms": 1300e-6}


def test_blocks_are_measured_on_the_device_and_kept(tmp_path):
    sizes = dict(vocabulary=5, width=64, num_heads=2, head_dim=8, hidden=512, memory_length=16)
    net = supernets.TransformerXL(SPACE, **sizes)
    table = measure_blocks(net, tasks.Language(data="tiny_shakespeare", length=64), 4)
    added = table.blocks[0].nanoseconds
    assert len(table.blocks) == 3 and added[0] == 0 < added[1]
    assert table.device == jax.devices()[0].device_kind and table.setting["memory_length"] == 16
    table.save(tmp_path / "latency.json")
    assert latency.load(tmp_path / "latency.json") == table


def test_any_network_is_measured():
    """With batch statistics and a pytree of inputs; the larger network takes longer."""
    net = Wide(Space(hidden=Choice(1, 2048), last=Choice("identity", "dense")))
    inputs = {"x": jax.ShapeDtypeStruct((128, 512), jnp.float32)}
    variables = jaxnas.init(net, jax.random.key(0), inputs)
    archs = {"small": net.space.smallest(), "large": net.space.largest()}
    found = latency.measure(net, variables, inputs, archs, repeats=5)
    assert 0 < found["small"][1] < found["large"][1]
    table = latency.table(net, variables, inputs, repeats=5)
    assert table.setting["inputs"] == "{'x': float32[128, 512]}"
    cost = table.cost(net.space)
    assert 0 < cost(net.space.smallest())["latency_ms"] < cost(net.space.largest())["latency_ms"]
    checked = latency.check(table, net, variables, inputs, networks=4, repeats=5)
    assert checked.median_error <= checked.largest_error and -1 <= checked.rank_correlation <= 1


def seconds_of(net, inputs, archs):
    """Times of a device whose blocks take their products and a start each."""
    macs, depth = jaxnas.cost(net, inputs), net.space["depth"].options
    return {
        name: (1e-3 + 1e-9 * macs(arch)["macs"] + 5e-5 * depth[int(arch["depth"])],) * 3
        for name, arch in archs.items()
    }


VIT = supernets.ViT(spaces.vit((16, 48), (1, 4), (2, 4), (1, 4)), 8, 4, 10, head_dim=8)
IMAGES = (1, 8, 8, 1)


@pytest.fixture(scope="module")
def vit_table():
    """A table of a network whose depth and widths multiply."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "measure", lambda net, _, inputs, archs, **kw: seconds_of(net, inputs, archs))
        made = latency.table(VIT, {}, IMAGES)
        checked = latency.check(made, VIT, {}, IMAGES)
    return made, checked


def test_a_table_knows_blocks_that_interact(vit_table, tmp_path):
    table, checked = vit_table
    assert checked.largest_error < 0.02 and checked.rank_correlation > 0.99
    table.save(tmp_path / "latency.json")
    assert latency.load(tmp_path / "latency.json") == table
    for found in (VIT.space.smallest(), VIT.space.sample(jax.random.key(5))):  # of one block, and of any
        alone = VIT.space.fix(found)
        assert table.cost(alone)(alone.smallest()) == pytest.approx(table.cost(VIT.space)(found))


def test_a_compiled_search_keeps_a_budget_of_latency(vit_table):
    """One program: whole searches, over keys, none of whose architectures is above the budget."""
    space, cost = VIT.space, vit_table[0].cost(VIT.space)
    least, most = search.reachable(space, cost)["latency_ms"]
    bounds = {"latency_ms": (None, (least + most) / 2)}
    strategy = search.RandomSearch(space, cost=cost, bounds=bounds, evaluations=16, batch=8)

    def evaluate(archs):
        return jax.vmap(cost)(archs)["latency_ms"]

    compiled = jax.jit(jax.vmap(lambda key: search.scan(strategy, evaluate, key)))
    states = compiled(jax.random.split(jax.random.key(0), 2))
    assert states.size.tolist() == [16, 16]
    told = [float(cost(space.decode(code))["latency_ms"]) for code in states.codes.reshape(-1, space.length)]
    np.testing.assert_allclose(told, states.scores.reshape(-1), rtol=1e-6)
    assert least * 0.999 < min(told) and max(told) < bounds["latency_ms"][1] * 1.001


def test_calls_are_made_in_turn():
    made = []
    calls = {name: functools.partial(made.append, name) for name in "ab"}
    assert latency.median_times(calls, warmup=1, repeats=3).keys() == {"a", "b"}
    assert made == ["a", "b"] * 4


def test_mistakes_are_refused(tmp_path):
    blocks = dataclasses.replace(TABLE, blocks=[*BLOCKS, latency.Block({"width": ("1", "2")}, (3, 4))])
    fewer = dataclasses.replace(TABLE, blocks=BLOCKS[:2])
    there = dataclasses.replace(TABLE, device="TPU v4")
    renamed = latency.Block({"block[0]": ("identity", "attention")}, (0, 5))
    other = dataclasses.replace(TABLE, blocks=[renamed, *BLOCKS[1:]])

    def loaded(text):
        def load():
            (tmp_path / "latency.json").write_text(text)
            latency.load(tmp_path / "latency.json")

        return load, ValueError, "latency.json"

    refusals.check(
        (lambda: other.cost(SPACE), ValueError, "'feed_forward'", "'block[0]'", "'identity'"),
        (lambda: fewer.cost(SPACE), ValueError, "'block[2]'", "another space"),
        (lambda: blocks.cost(SPACE), ValueError, "'width'", "another space"),
        (lambda: there.check_device(), ValueError, "TPU v4", jax.devices()[0].device_kind, "Lab(cost="),
        *map(loaded, ("{}", json.dumps({"format": 1}), '{"format": 2, "choice": "block"}', "3", "{")),
        (lambda: latency.load(tmp_path / "none.json"), FileNotFoundError, "none.json"),
    )


def test_a_search_that_asks_for_latency_times_what_it_found(tmp_path):
    task, net = small_tasks.task_of("images"), small_tasks.perceptron(1, (1, 4))
    variables = jaxnas.init(net, jax.random.key(0), task.inputs)
    strategy = search.RandomSearch(net.space, evaluations=2, batch=1)
    settings = runs.Search(runs.ByStrategy(strategy), latency=4, budget="latency_ms", most=1e3)
    result = runs.search_and_finish(task, net, variables, settings, runs.Lab(tmp_path))
    assert 0 < result.found.costs["latency_ms"] < 1e3
    timed = findings.read_run(tmp_path).timed
    assert timed["rows"] == 4 and set(timed["milliseconds"]) == {"found", "smallest", "largest"}
    assert all(0 < low <= middle <= high for low, middle, high in timed["milliseconds"].values())
    # The table of another batch, and that of another device, are not taken.
    path, own = tmp_path / "latency.json", runs.Lab(tmp_path)
    larger = dataclasses.replace(settings, latency=8)
    refusals.check(
        (lambda: runs.search_space(task, net, variables, larger, own), ValueError, "float32[4", "float32[8"),
    )
    dataclasses.replace(latency.load(path), device="TPU v4").save(path)
    refusals.check((lambda: runs.search_space(task, net, variables, settings, own), ValueError, "TPU v4"))
