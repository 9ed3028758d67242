"""Convolutions whose channels and kernel size are chosen at call time.

The kernel is stored at its largest size. A smaller one is its center or, if asked for, the center after a
learned transformation (Once-for-All, Cai et al., ICLR 2020, section 3.2).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxnas.elastic.layers import Initializer
from jaxnas.elastic.parameter import parameter, record_macs
from jaxnas.elastic.switch import run
from jaxnas.elastic.width import Width, combine, constant, fixed

Pair = tuple[int, int]
Padding = str | tuple[Pair, Pair]
_Shape = tuple[int, ...]
_Static = tuple[Pair, Padding, int]  # strides, padding and groups of features


def center(kernel: jax.Array, size: int) -> jax.Array:
    """The center [size, size, ...] of a kernel [largest, largest, ...]."""
    start = (kernel.shape[0] - size) // 2
    return kernel[start : start + size, start : start + size]


# Inside of a `lax.switch` XLA:CPU has a fast convolution for one layout alone, the one below; outside of it
# XLA rearranges others by itself. Autodiff makes gradients in other layouts, which ran 40 times as long. So
# arrays are transposed here such that every gradient is a convolution in that layout. A convolution and its
# two gradients are linear in both operands, and the gradients of each are the other two: they are fast of any
# order.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def convolve(static: _Static, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution of x [B, H, W, in] with a kernel [height, width, in / groups, out]."""
    return _convolve(static, x, kernel, ("NHWC", "HWIO", "NHWC"))


def _convolve(static: _Static, x: jax.Array, kernel: jax.Array, layout: tuple[str, str, str]) -> jax.Array:
    strides, padding, groups = static
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=layout, feature_group_count=groups
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _of_x(static: _Static, shape: _Shape, gradient: jax.Array, kernel: jax.Array) -> jax.Array:
    """The gradient of x, which has a shape."""
    if static[-1] == 1:
        kernel, layout = kernel.transpose(0, 1, 3, 2), ("NHWC", "HWOI", "NHWC")
    else:  # rearranged by the transposition itself
        layout = ("NHWC", "HWIO", "NHWC")
    x = jax.ShapeDtypeStruct(shape, gradient.dtype)
    return jax.linear_transpose(lambda x: _convolve(static, x, kernel, layout), x)(gradient)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _of_kernel(static: _Static, shape: _Shape, x: jax.Array, gradient: jax.Array) -> jax.Array:
    """The gradient of a kernel, which has a shape."""
    swapped, layout = x.transpose(3, 1, 2, 0), ("CHWN", "IHWO", "HWNC")
    kernel = jax.ShapeDtypeStruct(tuple(shape[i] for i in (2, 0, 1, 3)), x.dtype)
    transposed = jax.linear_transpose(lambda kernel: _convolve(static, swapped, kernel, layout), kernel)
    return transposed(gradient.transpose(1, 2, 0, 3))[0].transpose(1, 2, 0, 3)


def _given(function: Any) -> Any:
    """The forward pass of a function of two arrays, which are kept."""
    return lambda *arguments: (function(*arguments), arguments[-2:])


def _convolve_backward(static: _Static, operands: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    return _of_x(static, x.shape, gradient, kernel), _of_kernel(static, kernel.shape, x, gradient)


def _of_x_backward(
    static: _Static, shape: _Shape, operands: Any, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    gradient, kernel = operands
    return convolve(static, x, kernel), _of_kernel(static, kernel.shape, x, gradient)


def _of_kernel_backward(
    static: _Static, shape: _Shape, operands: Any, kernel: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, gradient = operands
    return _of_x(static, x.shape, gradient, kernel), convolve(static, x, kernel)


convolve.defvjp(_given(convolve), _convolve_backward)
_of_x.defvjp(_given(_of_x), _of_x_backward)
_of_kernel.defvjp(_given(_of_kernel), _of_kernel_backward)


def convolve_as(parameters: Mapping[str, Any], x: jax.Array, kernel: jax.Array) -> jax.Array | None:
    """`convolve` by the parameters of a `conv_general_dilated`; None where it is another operation."""
    (rows, channels, *places), (outs, ins, *window), out = parameters["dimension_numbers"]
    dilated = any(step > 1 for name in ("lhs_dilation", "rhs_dilation") for step in parameters[name])
    others = parameters["batch_group_count"] > 1 or parameters["precision"] is not None
    if len(places) != 2 or dilated or others or parameters["preferred_element_type"] is not None:
        return None
    static = parameters["window_strides"], parameters["padding"], parameters["feature_group_count"]
    y = convolve(static, x.transpose(rows, *places, channels), kernel.transpose(*window, ins, outs))
    return y.transpose(np.argsort((out[0], *out[2:], out[1])))


@dataclasses.dataclass(frozen=True)
class _Convolve:
    """A convolution of x [B, H, W, in] at one kernel size, as a function for `run`.

    The other operands are the kernel [largest, largest, in, out], or [largest, largest, 1, out] if it is
    depthwise, then the bias [out] if there is one, then the transformation matrices.
    """

    strides: Pair
    depthwise: bool
    symmetric: bool
    bias: bool
    transformed: tuple[int, ...]
    dtype: Any

    def __call__(self, x: jax.Array, kernel: jax.Array, *others: jax.Array, size: int) -> jax.Array:
        kernel = self._kernel(kernel, others[self.bias :], size).astype(self.dtype)
        padding = ((size // 2, (size - 1) // 2),) * 2 if self.symmetric else "SAME"
        static = self.strides, padding, x.shape[3] if self.depthwise else 1
        y = convolve(static, x.astype(self.dtype), kernel)
        return y + others[0].astype(self.dtype)[None, None, None] if self.bias else y

    def _kernel(self, kernel: jax.Array, matrices: tuple[jax.Array, ...], size: int) -> jax.Array:
        """The kernel [size, size, in, out]: the center, transformed at each size on the way to it."""
        for smaller, matrix in zip(self.transformed[1:], matrices, strict=True):
            if smaller >= size:
                kernel = center(kernel, smaller)
                kernel = (matrix @ kernel.reshape(smaller**2, -1)).reshape(kernel.shape)
        return center(kernel, size)


class Conv(nn.Module):
    """A weight-entangled convolution of images, elastic in its channels and in its kernel size.

    Example, a depthwise convolution in the `compact` method of a network with a choice of kernel sizes:

        size = elastic.width(int, decisions["kernel_size"])  # of Choice(3, 5, 7)
        x = elastic.Conv(depthwise=True, name="depthwise")(x, hidden, hidden, size)

    Attributes:
      strides: down and across.
      depthwise: whether each channel is convolved by itself; widths in and out are the same then.
      symmetric: whether both sides of an image are padded by size // 2, as networks in PyTorch do. Otherwise
        the padding is that of Flax's "SAME". The two differ where a stride leaves a part of an image over.
      transformed: all kernel sizes of the space, as (3, 5, 7), if smaller kernels are to be transformed by
        learned matrices, which begin as the identity (Once-for-All, section 3.2). An extracted network keeps
        the matrices that its kernel depends on, and computes the kernel from them. So its costs count them.
      use_bias: whether to add a bias.
      dtype: of the computation; parameters are float32.
      kernel_init, bias_init: initializers; the default is that of Flax.
    """

    strides: Pair = (1, 1)
    depthwise: bool = False
    symmetric: bool = False
    transformed: tuple[int, ...] = ()
    use_bias: bool = True
    dtype: Any = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        width_in: Width,
        width_out: Width,
        size: Width,
        *,
        gate: Width | None = None,
        max_branches: int | None = None,
    ) -> jax.Array:
        """Maps x [B, H, W, in maximum] to [B, ceil(H / stride), ceil(W / stride), out maximum].

        Args:
          x: images with zeros beyond `width_in`.
          width_in, width_out: active channels.
          size: of the kernel, which is square. All sizes are odd, or all are even.
          gate: 0 where the layer is skipped, which gives zeros.
          max_branches: see `run`; None is three for each kernel size.

        Returns:
          Images in `dtype`, zero beyond `width_out`.

        Raises:
          ValueError: sizes of which one isn't the center of the other; other widths in and out for a
            depthwise convolution.
        """
        self._check(width_in, width_out, size)
        # The sizes from the largest to the smallest of this layer: a matrix leads from each to the next.
        chain = sorted((k for k in self.transformed if k >= min(size.table.values)), reverse=True)
        # A transformed kernel depends on all taps of the first size at which a matrix is applied to it.
        stored = combine(lambda k: k if k == max(chain, default=k) else max(k, *chain[1:2]), size.table)
        taps = Width(stored, size.values)
        inner = fixed(1) if self.depthwise else width_in
        axes = (taps, taps, inner, width_out)
        operands = [parameter(self, "kernel", self.kernel_init, axes, gate=gate, centered=(0, 1))]
        names = ["tall wide one out" if self.depthwise else "tall wide in out"]
        if self.use_bias:
            operands.append(parameter(self, "bias", self.bias_init, (width_out,), gate=gate))
            names.append("out")
        used = constant(1) if gate is None else gate.table
        products = []  # of the transformations, for each channel of the kernel
        for larger, smaller in itertools.pairwise(chain):
            on = combine(lambda k, g, smaller=smaller: g * (k <= smaller), size.table, used)
            in_use = Width(on, {**size.values, **(gate.values if gate is not None else {})})
            taps_of = fixed(smaller**2)
            name = f"from_{larger}_to_{smaller}"
            operands.append(parameter(self, name, _identity, (taps_of, taps_of), gate=in_use))
            names.append("...")
            products.append(combine(lambda on, smaller=smaller: on * smaller**4, on))
        static = self.strides, self.depthwise, self.symmetric, self.use_bias, tuple(chain), self.dtype
        widths = {"out": width_out} if self.depthwise else {"in": width_in, "out": width_out}
        y = run(
            _Convolve(*static),
            f"batch rows columns {next(iter(widths))}, {', '.join(names)} -> batch rows columns out",
            widths | {"size": size},
            x,
            *operands,
            gate=gate,
            maskable=tuple(widths),
            max_branches=3 * len(set(size.table.values)) if max_branches is None else max_branches,
        )
        places = y.shape[1] * y.shape[2]

        def macs(g: int, k: int, i: int, o: int, *transforms: int) -> int:
            return i * o * (g * places * k * k + sum(transforms))

        record_macs(self, combine(macs, used, size.table, inner.table, width_out.table, *products))
        return y

    def _check(self, width_in: Width, width_out: Width, size: Width) -> None:
        name, sizes = self.name or type(self).__name__, sorted(set(size.table.values))
        every = sorted({*sizes, *self.transformed})
        if len({one % 2 for one in every}) > 1:
            raise ValueError(
                f"{name} has kernels of the sizes {every}. A smaller kernel is the center of a larger one, "
                "so give only odd sizes or only even ones."
            )
        if self.transformed and not set(sizes) <= set(self.transformed):
            raise ValueError(f"{name} has kernels of the sizes {sizes}, but transformed={self.transformed}.")
        if self.depthwise and width_in.table != width_out.table:
            raise ValueError(
                f"{name} is depthwise, so it has as many channels out as in: give the same width twice."
            )


def _identity(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return jnp.eye(*shape, dtype=dtype)
