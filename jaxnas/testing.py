"""Checks of what users write: a network against its contract and its own extracted networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import network, products
from jaxnas.annotations import Annotations
from jaxnas.calibration import STATISTICS
from jaxnas.elastic.decisions import static
from jaxnas.inputs import describe, one_example
from jaxnas.space import Arch, Space
from jaxnas.tensors import Path, check_tensors, flatten, unflatten

_SAMPLES = 2  # random architectures, beside the smallest and the largest
_COMPARED = 2  # of them are compiled and run, since compiling is what a check costs
_LARGE = 200  # parameters, as arrays, of a network that compiles for so long that one is enough
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 5e-2  # of networks with random variables, relative


@dataclasses.dataclass(frozen=True)
class _Values:
    """Inputs to run a network on, None for random ones; all are equal, so that they are in no cache's key."""

    inputs: Any = dataclasses.field(compare=False)


def check_network(net: Any, inputs: Any) -> None:
    """Checks that a network agrees with its extracted networks.

    The smallest, the largest and two random architectures are extracted by shape, and their parameters and
    products are counted. The smallest is run, too, with random variables, and its outputs are compared with
    the supernet's; so is a random one, unless the network is large. `jaxnas.training.fit` and
    `jaxnas.extract(verify=...)` call this; so should the tests of a user-defined network. A second call with
    the same network and inputs costs nothing.

    Args:
      net: the network.
      inputs: a pytree of arrays or `jax.ShapeDtypeStruct` with a leading batch axis, or a tuple of ints for
        one float32 array; the batch size does not matter. Networks run on the first example of arrays, and
        on random numbers where there are none: normal floats, and integers of 0 and 1.

    Raises:
      TypeError: a network that does not keep the contract; see `jaxnas.network`.
      ValueError: inputs that it cannot take; a decision of the space that changes nothing that could be
        counted; counts or outputs that differ from those of an extracted network.
    """
    network.check_contract(net)
    example = one_example(inputs)
    leaves = jax.tree.leaves(inputs)
    concrete = all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves) and not any(
        isinstance(leaf, jax.core.Tracer) or not len(leaf) for leaf in leaves
    )
    values = jax.tree.map(lambda x: np.asarray(x[:1]), inputs) if concrete else None
    network.cached(_check, net, example, _Values(values))


def _check(net: nn.Module, example: Any, values: _Values) -> None:
    recorded = network.annotated(net, example)
    compared = 1 if len(recorded.specs) > _LARGE else _COMPARED
    if net.space.cardinality == 1:  # it is its own extracted network
        compared = 0
    for number, arch in enumerate(_samples(net.space)):
        small, _ = check_counts(net, example, recorded, arch)
        if number < compared:
            _check_outputs(net, small, example if values.inputs is None else values.inputs, recorded, arch)


def check_collections(net: nn.Module, inputs: Any) -> None:
    """Refuses collections that a network writes in training, which `jaxnas.training.fit` would not keep."""
    example = one_example(inputs)
    variables = nn.meta.unbox(network.annotated(net, example).variables)
    others = sorted(variables.keys() - {"params", STATISTICS})
    if not others:
        return

    def run(key: jax.Array, variables: Any, inputs: Any) -> Any:
        arch = static(net.space)
        return net.apply(variables, inputs, arch, train=True, mutable=[*others, STATISTICS], rngs=key)[1]

    key = jax.eval_shape(lambda: jax.random.key(0))
    program, shapes = jax.make_jaxpr(run, return_shape=True)(key, variables, example)
    names = [path[0].key for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]]
    written = {
        name
        for name, value in zip(names, program.jaxpr.outvars, strict=True)
        if name in others and not any(value is given for given in program.jaxpr.invars)
    }
    if written:
        raise ValueError(
            f"{type(net).__name__} writes the collection {', '.join(sorted(written))} in training, and a "
            "training step keeps parameters alone: it would never change. Compute it from the batch and the "
            "parameters, or make it a parameter with a loss of its own."
        )


def _samples(space: Space) -> list[Arch]:
    draw = np.random.default_rng(0)
    with jax.ensure_compile_time_eval():  # within a caller's jit too
        random = [space.decode(draw.integers(0, space.sizes)) for _ in range(_SAMPLES)]
        archs = [space.canonical(arch) for arch in (space.smallest(), *random, space.largest())]
        return list({np.asarray(space.encode(arch)).tobytes(): arch for arch in archs}.values())


def check_counts(
    net: nn.Module, example: Any, recorded: Annotations, arch: Arch
) -> tuple[nn.Module, dict[Path, Any]]:
    """Counts the parameters and products of the network of one architecture, which is traced by shape.

    Args:
      net: the supernet.
      example: the specification of its inputs.
      recorded: its annotations.
      arch: a concrete hard architecture.

    Returns:
      The network of that architecture and the shapes of its variables, by collection and path.

    Raises:
      ValueError: a network that fails, or other counts than the annotations'.
    """
    space, name = net.space, type(net).__name__
    host = {key: np.asarray(value) for key, value in arch.items()}
    with jax.ensure_compile_time_eval():
        small = net.clone(space=space.fix(arch))
        what = f"{name} at the architecture {space.to_dict(arch)}"
    try:
        # Traced apart from the initialization, whose own products are none of the network's.
        variables = network.variable_shapes(small, example)
        program = jax.make_jaxpr(small.apply)(variables, example)
    except Exception as error:
        raise ValueError(
            f"{what} cannot be extracted: with the space of this architecture alone, and called without "
            f"one, the network fails with {type(error).__name__}: {error}"
        ) from error
    stored = flatten(variables)
    shapes = {path: spec.shape(host) for path, spec in recorded.specs.items()}
    expected = {
        path: jax.ShapeDtypeStruct(x, jnp.float32)
        for path, x in flatten(unflatten(shapes)).items()
        if x is not None
    }
    check_tensors(
        {path[1:]: leaf for path, leaf in stored.items() if path[0] == "params"},
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
    return small, stored


def cut(variables: dict[Path, Any], recorded: Annotations, arch: Arch) -> dict[Path, Any]:
    """The part of a supernet's variables that one architecture uses, by collection and path."""
    host = {key: np.asarray(value) for key, value in arch.items()}
    specs = {("params", *path): spec for path, spec in recorded.specs.items()} | recorded.state
    parts = {
        # Sliced on the host: on the device every new shape would be compiled.
        path: spec.active(np.asarray(variables[path]), host)
        for path, spec in specs.items()
        if spec.shape(host) is not None
    }
    return flatten(unflatten(parts))  # a part may be several arrays


def difference(name: str, large: Any, small: Any) -> float | None:
    """The largest difference of the outputs of two networks, relative to the largest value of an array.

    Of what a network returns beside its predictions, arrays are compared that both have in one shape: a
    memory has one entry for each block that there is. NaN equals NaN. None where no output is floating.

    Raises:
      ValueError: predictions of other shapes or types.
    """
    predicted, expected = map(describe, map(network.predictions, (small, large)))
    if predicted != expected:
        raise ValueError(
            f"The predictions of {name} are {expected}, and those of the extracted network {predicted}: no "
            "decision may change their shapes or types."
        )
    found = _differences(large, small, whole=True)
    return max(found) if found else None


def _differences(large: Any, small: Any, whole: bool = False) -> list[float]:
    """Of each pair of floating arrays, of one shape or else (unless `whole`) along the first entries."""
    if jax.tree.structure(large) != jax.tree.structure(small):
        large, small = network.predictions(large), network.predictions(small)
    return [
        _relative(x[tuple(map(slice, y.shape))], y)
        for x, y in zip(map(_wide, jax.tree.leaves(large)), map(_wide, jax.tree.leaves(small)), strict=True)
        if x is not None and y is not None and x.ndim == y.ndim
        if x.shape == y.shape or not whole and np.all(np.less_equal(y.shape, x.shape))
    ]


def _wide(x: Any) -> np.ndarray | None:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return None
    return np.asarray(x, np.complex128 if jnp.issubdtype(x.dtype, jnp.complexfloating) else np.float64)


def _relative(x: np.ndarray, y: np.ndarray) -> float:
    same = (x == y) | (np.isnan(x) & np.isnan(y))  # infinities too
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0, np.abs(x - y))
    finite = np.abs(x[np.isfinite(x)])
    largest = np.max(np.nan_to_num(differences, nan=np.inf), initial=0)
    return float(largest) / max(float(np.max(finite, initial=0)), 1e-30)


def _check_outputs(net: nn.Module, small: nn.Module, values: Any, recorded: Annotations, arch: Arch) -> None:
    """Runs a supernet and the network of one architecture with random variables."""
    draw = np.random.default_rng(0)
    inputs = jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else _random_input(draw, x), values)
    stored = {
        path: _random_weights(draw, leaf)
        for path, leaf in sorted(flatten(nn.meta.unbox(recorded.variables)).items())
    }
    given = unflatten(stored), unflatten(cut(stored, recorded, arch)), inputs
    tolerance = _HALF_TOLERANCE if recorded.half_precision else _TOLERANCE
    host = {key: np.asarray(value) for key, value in arch.items()}  # static, so that no branches are compiled

    def run(variables: Any, small_variables: Any, inputs: Any, **options: Any) -> Any:
        large = net.apply(variables, inputs, host, **options)
        return large, small.apply(small_variables, inputs, **options)

    name = type(net).__name__
    error = difference(name, *_once(run, *given))
    if error is None or error <= tolerance:
        return
    differs = (
        f"{name} at the architecture {net.space.to_dict(arch)} differs from its extracted network by "
        f"{error:.2g} (relative, with random variables)"
    )
    if not isinstance(net, nn.Module):
        raise ValueError(f"{differs}{_which(net, stored, inputs, recorded, tolerance)}.")
    raise ValueError(
        f"{differs}{_where(run, given, tolerance)}. Activations are "
        "stored at their largest width with zeros behind the active channels. What joins an elastic axis "
        "with another (a reshape, a concatenation) or reads all of it (a softmax, a mean, a norm, a table) "
        "must run at the active size: in a layer of jaxnas.elastic, as LayerNorm, or in a function that "
        "jaxnas.elastic.run calls. Or multiply by the `mask()` of the width, and divide by the active size."
    )


def _once(run: Callable[..., Any], *given: Any) -> Any:
    """The outputs of a function that is run once, so that compiling it is all that it costs."""
    # Some accelerators multiply float32 in less than that unless told so.
    with jax.default_matmul_precision("float32"):
        options = {"xla_backend_optimization_level": 0}
        return jax.jit(run, compiler_options=options).lower(*given).compile()(*given)


def _where(run: Callable[..., Any], given: Any, tolerance: float) -> str:
    """Names the first module whose outputs differ; empty if none is found."""
    order: list[Path] = []

    def log(call: Callable, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        outputs = call(*args, **kwargs)
        order.append(context.module.path)
        return outputs

    def captured(*given: Any) -> Any:
        with nn.intercept_methods(log):
            return run(*given, capture_intermediates=True, mutable=["intermediates"])

    try:
        large, small = (flatten(state["intermediates"]) for _, state in _once(captured, *given))
    except Exception:  # a network that cannot be captured
        return ""
    for path in dict.fromkeys(order):
        key = (*path, "__call__")
        if path and key in large and key in small:
            found = _differences(large[key], small[key])
            if found and max(found) > tolerance:
                return f"; {'/'.join(path)} is the first module whose output differs, by {max(found):.2g}"
    return ""


def _which(net: Any, stored: Any, inputs: Any, recorded: Annotations, tolerance: float) -> str:
    """Names the groups of a transformed network that differ when one decision alone is not the largest."""
    largest = {key: np.asarray(value) for key, value in net.space.largest().items()}
    places = net.described()["places"] if hasattr(net, "described") else {}
    for key, value in largest.items():
        for place in np.ndindex(value.shape):
            arch = {**largest, key: np.array(value)}
            arch[key][place] = 0
            small = net.clone(space=net.space.fix(arch))
            part = unflatten(cut(stored, recorded, net.space.canonical(arch)))
            outputs = _once(lambda v, x, arch=arch: net.apply(v, x, arch), unflatten(stored), inputs)
            error = difference(type(net).__name__, outputs, _once(small.apply, part, inputs))
            if error is not None and error > tolerance:
                element = key, next(iter(place), None)
                names = [name for name, one in places.items() if element in one["decisions"]]
                return f"; {' and '.join(names) or key} differs by itself: leave it out of the choices"
    return ""


def _random_weights(draw: np.random.Generator, leaf: Any) -> np.ndarray:
    """Numbers that matter: positive ones of scales, biases and statistics, and kernels by their inputs."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return np.zeros(leaf.shape, leaf.dtype)
    if leaf.ndim < 2:
        return draw.uniform(0.3, 1, leaf.shape).astype(leaf.dtype)
    inputs = leaf.shape[-2] if leaf.ndim < 4 else np.prod(leaf.shape[:-1])
    return (draw.standard_normal(leaf.shape, np.float32) / np.sqrt(max(inputs, 1))).astype(leaf.dtype)


def _random_input(draw: np.random.Generator, leaf: Any) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return draw.standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
    if leaf.dtype == bool:
        return np.ones(leaf.shape, bool)
    return draw.integers(0, 2, leaf.shape).astype(leaf.dtype)
