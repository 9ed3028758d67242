"""Measured latency as a cost."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnas import latency, spaces, supernets

SPACE = spaces.par(3)
ADDED = {"block": {"identity": 0, "feed_forward": 300, "attention": 1000}}
TABLE = latency.LatencyTable(0, ADDED, "cpu", {"batch": 2})


def test_the_latency_of_an_architecture_is_the_sum_of_its_blocks():
    cost = TABLE.cost(SPACE)
    arch = SPACE.from_dict({"block": ["attention", "identity", "feed_forward"]})
    assert cost(arch) == {"latency_ns": 1300}
    batch = SPACE.enumerate()
    one_by_one = [int(cost(jax.tree.map(lambda x, i=i: x[i], batch))["latency_ns"]) for i in range(27)]
    np.testing.assert_array_equal(jax.jit(jax.vmap(cost))(batch)["latency_ns"], one_by_one)
    # Expected, and differentiable, for a soft one.
    weights = {"block": jnp.full((3, 3), 1 / 3)}
    assert float(cost(weights)["latency_ns"]) == pytest.approx(1300)
    gradient = jax.grad(lambda w: cost(w)["latency_ns"])(weights)["block"]
    np.testing.assert_allclose(gradient, [[0, 300, 1000]] * 3)
    # Also of the network that was found, whose options are fixed.
    assert TABLE.cost(SPACE.fix(arch))(SPACE.fix(arch).smallest()) == {"latency_ns": 1300}


def test_blocks_are_measured_on_the_device_and_kept(tmp_path):
    net = supernets.TransformerXL(
        SPACE, vocabulary=5, width=64, num_heads=2, head_dim=8, hidden=512, memory_length=16
    )
    tables = [latency.measure_blocks(net, 4, 64, train=train, repeats=5) for train in (False, True)]
    for table in tables:
        assert table.nanoseconds["identity"] == 0 < table.nanoseconds["feed_forward"]
        assert table.device == jax.devices()[0].device_kind and table.setting["memory_length"] == 16
    tables[0].save(tmp_path / "latency.json")
    assert latency.load(tmp_path / "latency.json") == tables[0]


def test_calls_are_made_in_turn():
    made = []
    times = latency.median_times(
        {name: lambda name=name: made.append(name) for name in "ab"}, warmup=1, repeats=3
    )
    assert made == ["a", "b", "a", "b", "a", "b", "a", "b"] and set(times) == {"a", "b"}


def test_clear_errors(tmp_path):
    other = latency.LatencyTable("block", {"identity": 0, "attention": 5}, "cpu", {})
    with pytest.raises(ValueError, match=r"for cpu has no \['feed_forward'\], only \['identity'"):
        other.cost(SPACE)
    path = tmp_path / "latency.json"
    for text in ("{", "{}", json.dumps({"format": 2}), '{"format": 1, "choice": "block"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a latency table"):
            latency.load(path)
    with pytest.raises(FileNotFoundError):
        latency.load(tmp_path / "none.json")
