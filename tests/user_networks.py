"""Networks as users of the package would write them, with public names only."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas import Choice, Space
from jaxnas.elastic import Decisions, Dense, Mixture, fixed, width

MIXER = Space(hidden=Choice(4, 8).repeat(2), tokens=Choice(3, 6))
OPERATIONS = Space(op=Choice("identity", "dense", "deep", "conv").repeat(2), tail=Choice("dense", "shared"))
ELASTIC_OPERATIONS = Space(op=Choice("identity", "mlp"), hidden=Choice(4, 8).when("op", "mlp"))
MASKED = Space(hidden=Choice(4, 8), width=Choice(2, 5))
IMAGES = (2, 6, 6, 3)


class Elastic(nn.Module):
    """A network whose `body` is given its decisions."""

    space: Space

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        return self.body(inputs, Decisions(self.space, arch, initializing=self.is_initializing()), train)


class ElasticMlp(nn.Module):
    @nn.compact
    def __call__(self, x, hidden):
        rows, channels = x.reshape(-1, x.shape[-1]), fixed(x.shape[-1])
        per_example = rows.shape[0] // x.shape[0]
        y = Dense(name="in")(rows, channels, hidden, rows=per_example)
        return Dense(name="out")(nn.relu(y), hidden, channels, rows=per_example).reshape(x.shape)


class Mixer(nn.Module):
    """An MLP-Mixer: elastic MLPs over channels and over tokens, plain layer norms and a plain head."""

    space: Space
    classes: int = 5
    dtype: type = jnp.float32

    @nn.compact
    def __call__(self, images, arch=None, *, train=False):
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        x = nn.Conv(8, (3, 3), strides=3, name="stem")(images)
        x = x.reshape(x.shape[0], -1, 8)  # [B, T, 8]
        across = width(int, decisions["tokens"], axis="mlp")
        for i in range(2):
            hidden = width(int, decisions["hidden", i], axis="mlp")
            mixed = ElasticMlp(name=f"tokens_{i}")(nn.LayerNorm()(x).transpose(0, 2, 1), across)
            x = x + mixed.transpose(0, 2, 1)
            x = x + ElasticMlp(name=f"channels_{i}")(nn.LayerNorm()(x), hidden)
        return nn.Dense(self.classes, name="head")(x.mean(axis=1))


class Deep(nn.Module):
    """A block around a layer that was made elsewhere, with batch statistics."""

    inner: nn.Module
    train: bool = False

    @nn.compact
    def __call__(self, x):
        y = self.inner(nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(x))
        return nn.Dense(8)(nn.relu(y))


class Identity(nn.Module):
    def __call__(self, x, *others, **options):
        return x


class Operations(Elastic):
    """Mixtures of plain Flax blocks, all made within the compact method; one is used outside of them too."""

    def body(self, images, decisions, train):
        x = nn.Conv(8, (3, 3), strides=3)(images)
        shared = nn.Dense(8)
        for i in range(2):
            blocks = {"identity": Identity(), "dense": nn.Dense(8), "deep": Deep(nn.Dense(16), train)}
            blocks["conv"] = nn.Conv(8, (3, 3), feature_group_count=2)
            x = Mixture(blocks)(decisions["op", i], x)
            if i == 0:
                x = shared(x)
        return Mixture({"dense": nn.Dense(8), "shared": shared})(decisions["tail"], x).mean(axis=(1, 2))


class ElasticOperations(Elastic):
    """A mixture whose block has an elastic width itself."""

    def body(self, inputs, decisions, train):
        hidden = width(int, decisions["hidden"], axis="mlp")
        x = nn.Dense(8)(inputs["features"])  # [B, N, 8]
        x = Mixture({"identity": Identity(), "mlp": nn.remat(ElasticMlp)()})(decisions["op"], x, hidden)
        sums = jax.ops.segment_sum(x.reshape(-1, 8), inputs["nodes"].reshape(-1), 6)
        return {"features": x, "sums": sums}


class Masked(Elastic):
    """Masked by hand: costs and extraction cannot see what `hidden` does."""

    def body(self, images, decisions, train):
        size = jnp.asarray([4, 8])[decisions["hidden"].value]
        y = nn.Dense(8)(images.reshape(images.shape[0], -1))
        y = jnp.where(jnp.arange(8) < size, y, jnp.zeros_like(y))
        return Dense()(y, fixed(8), width(int, decisions["width"]))
