"""Sub-networks: initialize the supernet, extract a network of exactly one architecture, verify it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import display, network, testing
from jaxnas.calibration import calibrate_one, check_calibrated
from jaxnas.inputs import one_example, specification
from jaxnas.network import Variables
from jaxnas.space import Arch
from jaxnas.tensors import check_tensors, flatten, unflatten
from jaxnas.transform.rebuild import rebuilt

TOLERANCE = 1e-5  # of the verification, relative, in float32
HALF_TOLERANCE = 2e-2  # the same of a network that computes in bfloat16 or float16
# Of a network that amplifies rounding: a multiple of what one unit in the last place changes, up to a limit.
ROUNDINGS, MOST_ROUNDING = 10, 1e-3


class Subnet(NamedTuple):
    """The network of one architecture.

    Attributes:
      net: the module of exactly that size, called without an architecture.
      variables: its variables, by collection.
      error: the largest difference of its predictions from the supernet's, relative to the largest one;
        None where it was not verified.
    """

    net: Any
    variables: Variables
    error: float | None = None

    def _repr_html_(self) -> str:
        space = self.net.space
        rows = [{"choice": name, "chosen": x} for name, x in space.to_dict(space.smallest()).items()]
        count = sum(x.size for x in jax.tree.leaves(self.variables["params"]))
        error = "" if self.error is None else f", extracted with an error of {self.error:.1g}"
        return display.table(rows, f"{type(self.net).__name__}, {count:,} parameters{error}", most=len(rows))


def init(net: Any, key: jax.Array, inputs: Any) -> Variables:
    """Initial maximal variables of a network; under `jax.jit` too, so that they can be made sharded.

    Args:
      net: any Flax module with a `space`.
      key: consumed.
      inputs: a pytree of arrays or `jax.ShapeDtypeStruct`, batch in front, or a tuple of ints for one
        float32 array; values are not used.

    Returns:
      Flax's collections as plain nested dicts, `{"params": ...}` and others that the network has.

    Raises:
      TypeError, ValueError: a network that does not keep the contract, or no inputs; see `jaxnas.network`.

    Example:
      >>> net = supernets.TableMlp(spaces.mlp((8, 16), (1,), (8, 16)), num_outputs=1)
      >>> variables = jaxnas.init(net, jax.random.key(0), (1, 4))
      >>> list(variables)
      ['params']
    """
    network.check_contract(net)
    shapes = specification(inputs)

    def make(key: jax.Array) -> Variables:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return network.initial(net, key, zeros)

    if isinstance(key, jax.core.Tracer):
        return make(key)
    # One draw for each parameter, run once: compiling it is all the time that this takes.
    return jax.jit(make, compiler_options={"xla_backend_optimization_level": 0})(key)


def extract(
    net: Any,
    variables: Any,
    arch: Arch,
    *,
    inputs: Any = None,
    verify: Any = None,
    batches: Any = None,
    rebuild: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Subnet:
    """The network of one architecture, alone, with its part of the weights.

    Args:
      net: any Flax module with a `space`, or a network of `jaxnas.supernet`.
      variables: its maximal variables, by collection.
      arch: a concrete hard architecture of the space.
      inputs: see `init`; not needed with `verify`.
      verify: a batch of inputs; if given, both networks are run on it and compared.
      batches: training inputs from which batch statistics are made first; see `jaxnas.calibrate`. A network
        whose statistics nothing has made, as after `jaxnas.training.fit`, needs them.
      rebuild: of a network of `jaxnas.supernet`, from the sizes of its groups by name (a tuple in a scan, 0
        or 1 for a module, options of the module's own decisions) to a module of its own class, which is
        returned with the weights (of NNX in evaluation mode) and compared with the supernet; needs `verify`.

    Returns:
      The network, its variables and, with `verify`, the error.

    Raises:
      ValueError: an architecture that isn't in the space; neither or both of `inputs` and `verify`;
        variables that aren't the supernet's, or that cannot be cut; predictions that are NaN or that differ
        by more than 1e-5 (float32) or 2e-2 (half precision), unless rounding the weights changes them as
        much (up to 1e-3); parameters or products that are not those
        that its annotations count; batch statistics that have their initial values; with `verify`, a network
        that `jaxnas.testing.check_network` refuses.

    Example:
      >>> net = supernets.TableMlp(spaces.mlp((8, 16), (1,), (8, 16)), num_outputs=1)
      >>> inputs = jax.random.normal(jax.random.key(1), (5, 4))
      >>> variables = jaxnas.init(net, jax.random.key(0), inputs)
      >>> small, small_variables, error = jaxnas.extract(net, variables, net.space.smallest(), verify=inputs)
      >>> small.apply(small_variables, inputs).shape, error < 1e-5
      ((5, 1), True)
    """
    if rebuild is not None and (verify is None or not hasattr(net, "annotations")):
        raise ValueError("extract(rebuild=...) needs verify=batch, and a network that jaxnas.supernet made.")
    if (inputs is None) == (verify is None):
        raise ValueError("extract needs either verify=batch, or inputs=: arrays, shapes, or (batch, ...).")
    if verify is not None:
        testing.check_network(net, verify)
    if batches is not None:
        net.space.check(arch)
        variables = calibrate_one(net, variables, arch, batches)
    given = verify if inputs is None else inputs
    variables, small, small_variables = alone(net, variables, arch, given)
    check_calibrated(small, small_variables)
    if verify is None:
        return Subnet(small, small_variables)
    arch, apply = net.space.canonical(arch), small.apply
    if rebuild is not None:
        small, small_variables, apply = rebuilt(small, small_variables, rebuild, verify)
    error = _verified(net, variables, arch, apply, small_variables, verify)
    tolerance = HALF_TOLERANCE if network.annotated(net, verify).half_precision else TOLERANCE
    if error > tolerance == TOLERANCE:
        tolerance = max(tolerance, min(ROUNDINGS * _rounding(apply, small_variables, verify), MOST_ROUNDING))
    if not error <= tolerance:
        which, reason = "extracted network", "one of them was given other parameters or has a defect"
        if rebuild is not None:
            which, reason = (
                "rebuilt module",
                "its parameters fit, so a number that it computes, such as a scale or num_groups, doesn't "
                "follow the sizes; without rebuild= the extracted network is compared",
            )
        raise ValueError(
            f"The {which} differs from the supernet by {error:.2e} (relative), more than {tolerance:.1g}: "
            f"{reason}."
        )
    return Subnet(small, small_variables, error)


def alone(net: nn.Module, variables: Variables, arch: Arch, inputs: Any) -> tuple[Variables, Any, Variables]:
    """`extract` of a network that is trained or timed: nothing is run, and any batch statistics will do.

    Returns:
      The supernet's variables as its layers read them one after another; the network of the architecture,
      whose parameters and products have been counted; and its variables.
    """
    network.check_contract(net)
    net.space.check(arch)
    net.space.check_static(arch)
    recorded, arch = network.annotated(net, inputs), net.space.canonical(arch)
    variables = network.check_variables(net, variables, inputs)
    small, shapes = testing.check_counts(net, one_example(inputs), recorded, arch)
    active = testing.cut(flatten(variables), recorded, arch)
    check_tensors(
        active,
        shapes,
        f"the extracted {type(small).__name__}",
        "Say how large each is in an architecture by jaxnas.elastic.annotate, where the module makes it.",
    )
    return variables, small, unflatten({path: jnp.asarray(x) for path, x in active.items()})


def _verified(
    net: Any, variables: Variables, arch: Arch, apply: Any, small_variables: Variables, batch: Any
) -> float:
    # Some accelerators multiply float32 in less than that unless told so.
    with jax.default_matmul_precision("float32"):
        large_out = jax.jit(net.apply)(variables, batch, arch)
        small_out = jax.jit(apply)(small_variables, batch)
    predicted = jax.tree.leaves([network.predictions(large_out), network.predictions(small_out)])
    if any(jnp.issubdtype(x.dtype, jnp.inexact) and bool(jnp.isnan(x).any()) for x in predicted):
        raise ValueError(
            "The predictions of the supernet or of the extracted network are NaN on the batch of `verify`, "
            "so they cannot be compared. The weights have diverged, or the batch is not valid."
        )
    error = testing.difference(type(net).__name__, large_out, small_out)
    if error is None:
        raise ValueError(f"{type(net).__name__} predicts no floating numbers, so nothing can be compared.")
    return error


def _rounding(apply: Any, variables: Variables, batch: Any) -> float:
    """The relative change of a network's outputs when each weight moves by one unit in the last place."""
    draw = np.random.default_rng(0)

    def moved(leaf: Any) -> Any:
        ends = draw.choice([-np.inf, np.inf], leaf.shape) if leaf.dtype == jnp.float32 else None
        return leaf if ends is None else np.nextafter(np.asarray(leaf), ends, dtype=np.float32)

    with jax.default_matmul_precision("float32"):
        run = jax.jit(apply)
        outputs = run(variables, batch), run(jax.tree.map(moved, variables), batch)
    return testing.difference("the extracted network", *outputs) or 0.0
