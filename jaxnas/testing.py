"""Checks of what users write: a network against its contract and its own extracted networks."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import network, products
from jaxnas.annotations import Annotations
from jaxnas.inputs import one_example
from jaxnas.space import Arch, Space
from jaxnas.tensors import check_tensors, flatten

_SAMPLES = 2  # random architectures, beside the smallest and the largest


def check_network(net: nn.Module, inputs: Any) -> None:
    """Checks that a network's annotations agree with its extracted networks.

    The smallest, the largest and two random architectures are extracted by shape, never compiled, and their
    parameters and products are counted. `jaxnas.training.fit` and `jaxnas.extract(verify=...)` call this; so
    should the tests of a user-defined network. A second call with the same network and inputs costs nothing.

    Args:
      net: the network.
      inputs: a pytree of arrays or `jax.ShapeDtypeStruct` with a leading batch axis, or a tuple of ints for
        one float32 array; the batch size does not matter.

    Raises:
      TypeError: a network that does not keep the contract; see `jaxnas.network`.
      ValueError: inputs that it cannot take; a decision of the space that changes nothing that could be
        counted; counts that differ from those of an extracted network.
    """
    network.check_contract(net)
    network.cached(_check, net, one_example(inputs))


def _check(net: nn.Module, example: Any) -> None:
    recorded = network.annotated(net, example)
    for arch in _samples(net.space):
        _check_counts(net, example, recorded, arch)


def _samples(space: Space) -> list[Arch]:
    draw = np.random.default_rng(0)
    with jax.ensure_compile_time_eval():  # within a caller's jit too
        random = [space.decode(draw.integers(0, space.sizes)) for _ in range(_SAMPLES)]
        archs = [space.canonical(arch) for arch in (space.smallest(), space.largest(), *random)]
        return list({np.asarray(space.encode(arch)).tobytes(): arch for arch in archs}.values())


def _check_counts(net: nn.Module, example: Any, recorded: Annotations, arch: Arch) -> None:
    space, name = net.space, type(net).__name__
    host = {key: np.asarray(value) for key, value in arch.items()}
    with jax.ensure_compile_time_eval():
        small = net.clone(space=space.fix(arch))
        what = f"{name} at the architecture {space.to_dict(arch)}"
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        # Traced apart from the initialisation, whose own products are none of the network's.
        variables = jax.eval_shape(small.init, key, example)
        program = jax.make_jaxpr(small.apply)(variables, example)
    except Exception as error:
        raise ValueError(
            f"{what} cannot be extracted: with the space of this architecture alone, and called without "
            f"one, the network fails with {type(error).__name__}: {error}"
        ) from error
    stored = flatten(nn.meta.unbox(variables).get("params", {}))
    shapes = {path: spec.shape(host) for path, spec in recorded.specs.items()}
    expected = {path: jax.ShapeDtypeStruct(x, jnp.float32) for path, x in shapes.items() if x is not None}
    check_tensors(
        stored,
        expected,
        f"the annotations of {what}",
        "They are the extracted network's. Whatever depends on a decision must be declared by a layer of "
        "jaxnas.elastic or by jaxnas.elastic.parameter, or be in a block of a Mixture.",
    )
    macs = sum(table.at_host(host) for table in recorded.macs)
    least, most = products.total(program.jaxpr)
    if not least <= macs <= most:
        found = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        raise ValueError(
            f"{what} has {macs:,} multiply-accumulates by its annotations, and the program of the extracted "
            f"network has {found}. A product whose size depends on a decision must be in a layer of "
            "jaxnas.elastic, or be recorded by jaxnas.elastic.record_macs in the module that computes it, "
            "with all other products of that module."
        )
