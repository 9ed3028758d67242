"""The settings of a run as plain values: what result.json, checkpoints and pages say of a config."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jaxnas import files, search
from jaxnas.space import Space


def to_dict(value: Any) -> Any:
    """A config, a network or other settings as nested plain values that JSON can hold."""
    if isinstance(value, Space):
        return value.to_json()
    if is_dtype(value):
        return jnp.dtype(value).name
    if not isinstance(value, type) and hasattr(value, "described"):
        return to_dict(value.described())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: to_dict(getattr(value, name)) for name in field_names(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(name): to_dict(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [to_dict(part) for part in value]
        if len(parts) <= 64:
            return parts
        return f"{len(parts)} values sha256:{files.digest(json.dumps(parts).encode())}"
    if value is None or isinstance(value, (bool, int, float, str, os.PathLike)):
        return files.plain(value)
    if isinstance(value, np.ndarray) or hasattr(value, "dtype"):
        array = np.asarray(value)
        if array.size <= 64:
            return files.plain(array)
        content = array if array.dtype.kind == "O" else array.tobytes()  # objects are addresses in memory
        return f"{array.dtype}{list(array.shape)} sha256:{files.digest(content)}"
    return getattr(value, "__qualname__", type(value).__qualname__)


def field_names(value: Any) -> list[str]:
    """The fields of an object that its user sets; those of a strategy's that are the run's are not."""
    hidden: tuple[str, ...] = ("parent", "name") if isinstance(value, nn.Module) else ()
    if isinstance(value, search.Strategy):
        hidden = ("space", "cost", "bounds")
    return [field.name for field in dataclasses.fields(value) if field.init and field.name not in hidden]


def is_dtype(value: Any) -> bool:
    """Whether a value is a floating-point type that networks compute in."""
    return isinstance(value, (type, np.dtype)) and value in (jnp.float32, jnp.bfloat16, jnp.float16)
