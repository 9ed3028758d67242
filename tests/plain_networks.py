"""Networks that know nothing of jaxnas, as its users have them, with what their supernets are made of."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import Choice
from jaxnas.tensors import flatten, unflatten

KEY = jax.random.key(0)


class Convolutional(nn.Module):
    """Convolutions with a shortcut, joined channels, batch norm, flattened."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (5, 5))(x)))
        x = nn.max_pool(x, (2, 2), (2, 2))
        y = nn.Conv(12, (3, 3), strides=(2, 2))(x)
        y = nn.relu(nn.BatchNorm(use_running_average=not train)(y)) + nn.Conv(12, (1, 1), strides=(2, 2))(x)
        y = jnp.concatenate([y, nn.Conv(4, (1, 1))(y)], axis=-1)
        y = nn.GroupNorm(num_groups=4)(nn.Conv(16, (3, 3), feature_group_count=4)(y))
        y = nn.Dropout(0.5, deterministic=not train)(nn.relu(nn.Dense(24)(y.reshape(y.shape[0], -1))))
        return nn.Dense(3)(y)


class Pictures(nn.Module):
    """A convolution with batch statistics, dropout and two outputs."""

    size: int
    width: int

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Conv(self.width, (self.size, self.size), name="conv")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x)).mean((1, 2))
        return nn.Dense(2)(nn.Dropout(0.3, deterministic=not train)(x))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        y = nn.RMSNorm()(x)
        q, k, v = jnp.split(nn.Dense(3 * 16)(y), 3, axis=-1)
        q, k, v = (one.reshape(*one.shape[:2], 4, 4) for one in (q, k, v))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0, axis=-1)
        y = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(*x.shape[:2], -1)
        x = x + nn.Dropout(0.1, deterministic=not train)(nn.Dense(x.shape[-1])(y))
        y = nn.LayerNorm()(x)
        return x + nn.Dense(x.shape[-1])(nn.silu(nn.Dense(32)(y)) * nn.Dense(32)(y))


class Attending(nn.Module):
    """Embedded tokens, blocks, the embedding once more as the output."""

    @nn.compact
    def __call__(self, tokens, train=False):
        embed = nn.Embed(11, 16)
        x = embed(tokens) + self.param("positions", nn.initializers.normal(0.1), (6, 16))[None]
        for _ in range(2):
            x = Block()(x, train)
        return embed.attend(nn.LayerNorm()(x))


def by_turn(variables, inputs):
    """A loop over checkpointed layers, each with a number and a condition; weights are transposed before."""

    @jax.checkpoint
    def layer(x, row):
        params, scale = row
        with jax.named_scope("layer"):
            hidden = jax.nn.gelu(x @ params["in"]) * params["gate"][None]
            hidden = hidden / jnp.sqrt(jnp.mean(hidden**2, -1, keepdims=True) + 1e-3)
            hidden = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, hidden)
            return x + scale * (hidden @ params["out"].T), None

    layers = jax.tree.map(lambda x: jnp.swapaxes(x * 2.0, 0, 1), variables["layers"])
    rows = {"in": layers["in"], "out": layers["out"], "gate": layers["gate"]}
    x, _ = jax.lax.scan(layer, inputs @ variables["first"], (rows, jnp.arange(1.0, 4.0)), reverse=True)
    return jnp.cumsum(x, -1).mean(-1)


class Layer(nn.Module):
    train: bool = False

    @nn.compact
    def __call__(self, x, _):
        y = nn.RMSNorm()(x)
        y = nn.MultiHeadDotProductAttention(4, name="attention")(y, y)
        x = x + nn.Dropout(0.1, deterministic=not self.train)(y)
        y = nn.LayerNorm()(nn.gelu(nn.Dense(16, name="up")(x)))
        y = nn.BatchNorm(use_running_average=not self.train)(y)
        return x + nn.Dense(x.shape[-1], name="down")(y), None


class Language(nn.Module):
    """Layers in a scan; batch statistics are by turn, and parameters are stacked along their second axis."""

    @nn.compact
    def __call__(self, tokens, train=False):
        x = nn.Embed(11, 8)(tokens)
        axes, keys = {"params": 1, "batch_stats": 0}, {"params": True, "dropout": True}
        layers = nn.scan(Layer, variable_axes=axes, split_rngs=keys, length=3)(train, name="layers")
        return nn.Dense(11)(nn.LayerNorm()(layers(x, None)[0]))


def pictures(variables, images):
    def layer(x, kernel):
        with jax.named_scope("layer"):
            y = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return x + jnp.tanh(y), None

    x, _ = jax.lax.scan(layer, images, variables["taps"])
    return x.mean((1, 2)) @ variables["out"]


class Unusual(nn.Module):
    """A transposed convolution, a quantized product, experts, and a scan within a scan."""

    @nn.compact
    def __call__(self, x):
        class Quantized(nn.Module):
            @nn.compact
            def __call__(self, x):
                kernel = self.param("kernel", nn.initializers.normal(), (x.shape[-1], 12))
                scale = jnp.max(jnp.abs(kernel), axis=0)[None] / 127
                rounded = jnp.round(kernel / scale).astype(jnp.int8)
                y = jnp.matmul((8 * x).astype(jnp.int8), rounded, preferred_element_type=jnp.int32)
                return y.astype(jnp.float32) * scale

        class Experts(nn.Module):
            @nn.compact
            def __call__(self, x):
                shapes = {"up": (4, x.shape[-1], 10), "down": (4, 10, x.shape[-1])}
                init = nn.initializers.normal()
                up, down = (self.param(name, init, shape) for name, shape in shapes.items())
                gates = jax.nn.softmax(nn.Dense(4, name="gate")(x))
                hidden = nn.relu(jnp.einsum("bd,edf->bef", x, up))
                return x + jnp.einsum("be,bef,efd->bd", gates, hidden, down)

        class Inner(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return x + nn.Dense(x.shape[-1], name="out")(jnp.tanh(nn.Dense(14, name="in")(x))), None

        class Outer(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return scan(Inner, 2)(name="inner")(x, None)[0], None

        def scan(module, length):
            return nn.scan(module, variable_axes={"params": 0}, split_rngs={"params": True}, length=length)

        x = nn.relu(nn.Conv(8, (3, 3), name="down")(x))
        x = nn.relu(nn.ConvTranspose(6, (4, 4), strides=(2, 2), name="up")(x)).mean((1, 2))
        x = Experts(name="experts")(Quantized(name="quantized")(x))
        return nn.Dense(3, name="head")(scan(Outer, 3)(name="outer")(x, None)[0])


def weights(model, inputs):
    """Variables that matter: nowhere zero."""
    draw = np.random.default_rng(0)
    made = {}
    for path, x in flatten(jax.eval_shape(model.init, KEY, inputs)).items():
        positive = x.ndim < 2 or path[0] == "batch_stats"
        values = draw.uniform(0.3, 1, x.shape) if positive else draw.normal(0, 0.3, x.shape)
        made[path] = jnp.asarray(values, x.dtype)
    return unflatten(made)


def every(groups, own):
    """A choice of sizes for every group, and others."""

    def sizes(group):
        if group.kind == "kernel":
            return range(group.size % 2 or 2, group.size + 1, 2)
        return sorted({max(1, group.size // 4), max(1, group.size // 2), group.size})

    return {group.name: Choice(*sizes(group)) for group in groups} | own
