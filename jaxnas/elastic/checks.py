"""Checks of what a network is made with."""

from __future__ import annotations

import flax.linen as nn


def check_at_least_one(module: nn.Module, *names: str) -> None:
    """Checks that attributes of a module, such as its sizes, are at least 1.

    Args:
      module: a network, in its `__post_init__`.
      names: of the attributes.

    Raises:
      ValueError: names the module, the first attribute that is less, and its value.
    """
    for name in names:
        if (value := getattr(module, name)) < 1:
            raise ValueError(f"{type(module).__name__}: {name} is {value}, expected at least 1.")
