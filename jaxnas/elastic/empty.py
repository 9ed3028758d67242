"""Arrays that nobody has written yet, on CPUs too.

`lax.empty` is one on GPU and TPU; for CPUs, XLA makes an array of zeros of it. What a loop over layers
keeps is allocated for the largest network, so that these zeros are a tenth of a gradient. A foreign
function that does nothing leaves its result as it was allocated. This one is written in Python, so that
nothing has to be compiled when jaxnas is installed.
"""

from __future__ import annotations

import ctypes
import pathlib
import re
from typing import Any

import jax
import numpy as np
from jax import lax

_TARGET = "jaxnas_empty"


def empty(like: Any, after: jax.Array) -> Any:
    """Arrays whose contents are whatever their memory held: write before reading.

    Args:
      like: a tree with shapes and dtypes.
      after: an array that is computed in the same turn of whatever loop this is in. XLA moves what
        depends on nothing out of the loop, and copies it in each turn.

    Returns:
      The arrays, in a tree as `like`.
    """
    if not _REGISTERED:
        return jax.tree.map(lambda one: lax.empty(one.shape, one.dtype), like)
    # A number of it: several devices would have to gather the whole of an argument.
    number = lax.stop_gradient(after[(0,) * after.ndim])
    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, [_one(*pair, number) for pair in enumerate(leaves)])


def _one(index: int, like: Any, number: jax.Array) -> jax.Array:
    """The index tells it from others: XLA would make one array of equal calls, and then copies of it."""
    foreign = jax.ffi.ffi_call(
        _TARGET, jax.ShapeDtypeStruct(like.shape, like.dtype), vmap_method="broadcast_all"
    )
    return lax.platform_dependent(
        number,
        cpu=lambda number: foreign(number, index=np.int32(index)),
        default=lambda _: lax.empty(like.shape, like.dtype),
    )


# The beginnings of three structures of XLA's interface for foreign functions (xla/ffi/api/c_api.h).


class _Metadata(ctypes.Structure):
    """XLA_FFI_Metadata; the version is for the function to fill."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version_struct_size", ctypes.c_size_t),
        ("version_extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _Extension(ctypes.Structure):
    """XLA_FFI_Metadata_Extension."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


class _CallFrame(ctypes.Structure):
    """XLA_FFI_CallFrame; it has an extension only where XLA asks for the version."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("extension", ctypes.POINTER(_Extension)))


def _version() -> tuple[int, int]:
    """Of the interface that the installed JAX has; -1 where it came without its headers."""
    path = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    header = path.read_text(encoding="utf-8") if path.exists() else ""
    major, minor = (
        int([*re.findall(rf"^#define XLA_FFI_API_{part} (\d+)", header, re.MULTILINE), "-1"][0])
        for part in ("MAJOR", "MINOR")
    )
    return major, minor


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))
def _do_nothing(frame: Any) -> None:
    if extension := frame.contents.extension:
        metadata = extension.contents.metadata.contents
        metadata.major, metadata.minor = _VERSION


_VERSION = _version()
# Another major version may have other structures: then, or if none is known, XLA fills the array.
_REGISTERED = _VERSION[0] == 0
if _REGISTERED:
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(_do_nothing), platform="cpu")
