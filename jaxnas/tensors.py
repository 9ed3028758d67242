"""Named tensors: whether they are those of a network, and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np

Path = tuple[str, ...]
# From nested dicts to leaves by their paths.
flatten: Callable[..., dict[Path, Any]] = flax.traverse_util.flatten_dict
unflatten: Callable[[dict[Path, Any]], dict[str, Any]] = flax.traverse_util.unflatten_dict


def name_of(path: Path) -> str:
    """The name of a tensor in a file; slashes in a part, as Haiku's modules have them, are escaped."""
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in path)


def path_of(name: str) -> Path:
    """The path of a tensor by its name in a file."""
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in name.split("/"))


def without_sown(variables: Any) -> Any:
    """Variables without what modules `sow`, which Flax collects in tuples; boxes stay."""
    return unflatten({path: leaf for path, leaf in flatten(variables).items() if not isinstance(leaf, tuple)})


def check_tensors(given: dict[Path, Any], expected: dict[Path, Any], what: str, advice: str = "") -> None:
    """Raises ValueError with the missing, unexpected and misshapen tensors, which ends with the advice."""
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
        raise ValueError(f"These tensors don't fit {what}. {'; '.join(problems)}. {advice}".rstrip())


def check_finite(tensors: dict[Path, Any], what: str) -> None:
    """Raises ValueError with the names of floating and complex tensors that hold NaN or an infinity."""
    wrong = [
        "/".join(path)
        for path, leaf in sorted(tensors.items())
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(np.asarray(leaf)).all()
    ]
    if wrong:
        raise ValueError(
            f"There are NaN or infinite values in {what}: {', '.join(wrong[:8])}. A network that has "
            "diverged is not searched, saved, loaded or exported; resume from its last good state."
        )
