"""The inputs of a network as a specification: a pytree of shapes and dtypes, batch in front."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def specification(inputs: Any) -> Any:
    """Inputs as a pytree of `jax.ShapeDtypeStruct`.

    Args:
      inputs: a pytree of arrays or `jax.ShapeDtypeStruct`, batch in front; a plain tuple of ints is one
        float32 array of that shape.

    Raises:
      TypeError: a leaf that is no array.
      ValueError: no array at all, or one without a batch axis.
    """
    if isinstance(inputs, tuple) and inputs and all(isinstance(size, (int, np.integer)) for size in inputs):
        return jax.ShapeDtypeStruct(inputs, jnp.float32)
    leaves, structure = jax.tree.flatten(inputs)
    wrong = [leaf for leaf in leaves if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype")]
    if wrong:
        raise TypeError(
            f"Inputs are a pytree of arrays or jax.ShapeDtypeStruct, or a tuple of ints for one float32 "
            f"array; got {wrong[0]!r} of type {type(wrong[0]).__name__}."
        )
    if not leaves or any(len(leaf.shape) == 0 for leaf in leaves):
        raise ValueError(f"Inputs are arrays with the batch in front; got {describe(inputs)}.")
    return jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves])


def with_batch(inputs: Any, batch: Any) -> Any:
    """The specification of inputs with another size of the batch."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype), specification(inputs)
    )


def one_example(inputs: Any) -> Any:
    """The specification of inputs with a batch of one, for which costs are counted."""
    return with_batch(inputs, 1)


def check_ranks(name: str, inputs: Any, before: Any) -> None:
    """Raises ValueError unless inputs are as many arrays, of as many axes, as those that were analyzed."""
    ranks, expected = ([len(x.shape) for x in jax.tree.leaves(one)] for one in (inputs, before))
    if ranks != expected:
        raise ValueError(
            f"{name} was analyzed with the inputs {describe(before)}, and is called with {describe(inputs)}: "
            "expected as many arrays, of as many axes."
        )


def describe(tree: Any) -> str:
    """Shapes and dtypes of a pytree, as "float32[8, 3]" or "{'tokens': int32[8, 64]}"."""

    def one(leaf: Any) -> Any:
        return _Text(f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}")

    return str(jax.tree.map(one, tree))


@contextlib.contextmanager
def calling(name: str, inputs: Any) -> Iterator[None]:
    """Turns what a network raises when it is traced with these inputs into a ValueError that names both."""
    try:
        yield
    except jax.errors.ConcretizationTypeError as error:
        raise ValueError(
            f"{name} depends on values, so it has no jaxpr: {error}. Use jax.numpy.where or jax.lax.cond."
        ) from error
    except Exception as error:  # whatever the network says
        raise ValueError(
            f"{name} cannot be called with the inputs {describe(inputs)}: {type(error).__name__}: {error}"
            f"{mistaken(error, inputs)}"
        ) from error


def mistaken(error: Exception, inputs: Any) -> str:
    """A further sentence, where a network fails as if it took a dict for an array, or an array for a dict."""
    text = str(error)
    if isinstance(inputs, dict) and "'dict' object" in text:
        names = ", ".join(map(repr, sorted(inputs)))
        return f". The inputs are a dict of {names}; it seems to expect one array."
    if hasattr(inputs, "shape") and "string indexing" in text:
        return ". The inputs are one array; it seems to expect a dict of arrays."
    return ""


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
