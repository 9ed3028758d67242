"""A switch whose backward pass is a switch too.

Autodiff through `lax.switch` keeps what the backward pass of every branch would need, with zeros for the
branches that did not run. Here the operands alone are kept, and the backward pass runs the chosen branch
again, so that neither memory nor time grows with the number of branches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def switch_branches(index: jax.Array, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Runs one of several functions, and for its gradient that one again.

    Args:
      index: of the function, int32 [].
      branches: functions of the operands, which return floating-point arrays, or pytrees of them, of the same
        shapes and dtypes. They take all that needs a gradient from their operands.
      *operands: pytrees of arrays. Those that are no floating-point arrays, such as indices and keys, get no
        gradient.

    Returns:
      What the function returns. It can be differentiated in reverse mode once.
    """
    leaves, structure = jax.tree.flatten(operands)
    floating = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]

    def joined(trained: Sequence[Any], others: Sequence[Any]) -> Any:
        parts = {True: iter(trained), False: iter(others)}
        return jax.tree.unflatten(structure, [next(parts[one]) for one in floating])

    @jax.custom_vjp
    def run(index: jax.Array, trained: Any, others: Any) -> Any:
        return lax.switch(index, branches, *joined(trained, others))

    def forward(index: jax.Array, trained: Any, others: Any) -> Any:
        return run(index, trained, others), (index, trained, others)

    def backward(residuals: Any, cotangents: Any) -> Any:
        index, trained, others = residuals

        def gradients(branch: Callable[..., Any], trained: Any, others: Any, cotangents: Any) -> Any:
            pull_back = jax.vjp(lambda trained: branch(*joined(trained, others)), trained)[1]
            return pull_back(cotangents)[0]

        of_branches = [functools.partial(gradients, branch) for branch in branches]
        return None, lax.switch(index, of_branches, trained, others, cotangents), None

    run.defvjp(forward, backward)
    trained = [leaf for leaf, is_one in zip(leaves, floating, strict=True) if is_one]
    others = [leaf for leaf, is_one in zip(leaves, floating, strict=True) if not is_one]
    return run(index, trained, others)
