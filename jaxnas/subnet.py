"""Sub-networks: initialise the supernet, extract a network of exactly one architecture, verify it."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.cost import annotations, input_dtype
from jaxnas.supernets.stacking import unstack_layers

Params = dict[str, Any]
TOLERANCE = 1e-5


def init(net: nn.Module, key: jax.Array, input_shape: tuple[int, ...]) -> Params:
    """Initial maximal parameters of a supernet as a plain nested dict of float32 arrays.

    Args:
      net: a supernet.
      key: consumed.
      input_shape: of the input, with a batch dimension.
    """
    inputs = jnp.zeros(input_shape, input_dtype(net))
    # One draw for each parameter, run once: compiling it is all the time that this takes.
    quickly = {"xla_backend_optimization_level": 0}
    variables = jax.jit(lambda key: net.init(key, inputs), compiler_options=quickly)(key)
    return nn.meta.unbox(variables["params"])


def extract(
    net: nn.Module,
    params: Params,
    arch: dict[str, jax.Array],
    *,
    input_shape: tuple[int, ...] | None = None,
    verify: jax.Array | None = None,
) -> Any:
    """The network of one architecture, alone, with its part of the weights.

    Args:
      net: a supernet with a `space`.
      params: its maximal parameters, stacked by layer or not.
      arch: a concrete hard architecture of the space.
      input_shape: of the input, if `verify` isn't given.
      verify: a batch of inputs; if given, both networks are run on it and compared.

    Returns:
      `(small, small_params)`, or `(small, small_params, error)` with `verify`: the module of exactly
      that size, called without an architecture; its parameters; the largest difference of the outputs
      relative to the largest output.

    Raises:
      ValueError: an architecture that isn't in the space; neither or both of `input_shape` and
        `verify`; parameters that aren't the supernet's; outputs that differ by more than 1e-5 (float32)
        or 2e-2 (bfloat16).
    """
    if (input_shape is None) == (verify is None):
        raise ValueError("extract needs either verify=batch, or input_shape=(batch, ...).")
    net.space.check(arch)
    net.space.check_static(arch)
    arch = net.space.canonical(arch)
    params = unstack_layers(nn.meta.unbox(params))
    on_host = {name: np.asarray(value) for name, value in arch.items()}
    shape = tuple(verify.shape if verify is not None else input_shape)
    recorded = annotations(net, shape)
    stored = flax.traverse_util.flatten_dict(params)
    expected = flax.traverse_util.flatten_dict(nn.meta.unbox(recorded.shapes))
    check_tensors(stored, expected, "the supernet's parameters")
    active = {
        # Sliced on the host: on the device every new shape would be compiled.
        path: jnp.asarray(spec.active(np.asarray(stored[path]), on_host))
        for path, spec in recorded.specs.items()
        if spec.gate.at_host(on_host)
    }
    small_params = flax.traverse_util.unflatten_dict(active)
    small = net.clone(space=net.space.fix(arch))
    if verify is None:
        return small, small_params
    error = _difference(net, params, arch, small, small_params, verify)
    tolerance = TOLERANCE if jnp.dtype(net.dtype) == jnp.float32 else 2e-2
    if not error <= tolerance:
        raise ValueError(
            f"The extracted network differs from the supernet by {error:.2e} (relative), more than "
            f"{tolerance:.0e}; one of them was given other parameters or has a defect."
        )
    return small, small_params, error


def _difference(net: Any, params: Any, arch: Any, small: Any, small_params: Any, batch: Any) -> float:
    large_out = predictions(jax.jit(net.apply)({"params": params}, batch, arch))
    small_out = predictions(jax.jit(small.apply)({"params": small_params}, batch))
    large_out, small_out = (np.asarray(x, np.float64) for x in (large_out, small_out))
    scale = max(float(np.max(np.abs(large_out))), 1e-30)
    return float(np.max(np.abs(large_out - small_out))) / scale


def predictions(outputs: Any) -> jax.Array:
    """What a network tells, without the memory that a recurrent one returns beside it."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def check_tensors(given: dict, expected: dict, what: str) -> None:
    """Compares names and shapes of tensors.

    Raises:
      ValueError: names the missing, unexpected and misshapen tensors.
    """
    missing = sorted("/".join(p) for p in expected.keys() - given.keys())
    extra = sorted("/".join(p) for p in given.keys() - expected.keys())
    misshapen = [
        f"{'/'.join(path)} {tuple(given[path].shape)} instead of {tuple(leaf.shape)}"
        for path, leaf in sorted(expected.items())
        if path in given and tuple(given[path].shape) != tuple(leaf.shape)
    ]
    problems = [
        f"{label}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
        for label, names in (("missing", missing), ("unexpected", extra), ("misshapen", misshapen))
        if names
    ]
    if problems:
        raise ValueError(f"These tensors don't fit {what}. " + "; ".join(problems) + ".")
