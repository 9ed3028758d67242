"""Arrays that nobody has written yet, on CPUs too.

`lax.empty` is one on GPU and TPU; for CPUs, XLA makes an array of zeros of it. What a loop over layers
keeps is allocated for the largest network, so that these zeros are a tenth of a gradient. A foreign
function that does nothing leaves its result as it was allocated. This one is written in Python, so that
nothing has to be compiled when jaxnas is installed.
"""

from __future__ import annotations

import ctypes
from typing import Any

import jax
from jax import lax

_TARGET = "jaxnas_empty"


class _Extension(ctypes.Structure):
    """The start of XLA_FFI_Metadata_Extension, in XLA's `ffi/api/c_api.h`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.c_void_p),
    )


class _Metadata(ctypes.Structure):
    """The start of XLA_FFI_Metadata: XLA_FFI_Api_Version within, for the handler to fill."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version_struct_size", ctypes.c_size_t),
        ("version_extension_start", ctypes.c_void_p),
        ("major_version", ctypes.c_int),
        ("minor_version", ctypes.c_int),
    )


class _CallFrame(ctypes.Structure):
    """The start of XLA_FFI_CallFrame."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("extension", ctypes.POINTER(_Extension)))


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))
def _do_nothing(frame: Any) -> None:
    # XLA calls once with an extension, to ask for which version of the interface this is written.
    if extension := frame.contents.extension:
        metadata = _Metadata.from_address(extension.contents.metadata)
        metadata.major_version, metadata.minor_version = 0, 1


jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(_do_nothing), platform="cpu")


def empty(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An array whose contents are whatever its memory held: write before reading."""
    return lax.platform_dependent(
        cpu=jax.ffi.ffi_call(_TARGET, jax.ShapeDtypeStruct(shape, dtype)),
        default=lambda: lax.empty(shape, dtype),
    )
