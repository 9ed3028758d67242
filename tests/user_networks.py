"""Networks as users of the package would write them, with public names only."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas import Choice, Space
from jaxnas.elastic import BatchNorm, Conv, Decisions, Dense, Mixture, fixed, width

MIXER = Space(hidden=Choice(4, 8).repeat(2), tokens=Choice(3, 6))
OPERATIONS = Space(op=Choice("identity", "dense", "deep", "conv").repeat(2), tail=Choice("dense", "shared"))
ELASTIC_OPERATIONS = Space(op=Choice("identity", "mlp"), hidden=Choice(4, 8).when("op", "mlp"))
MASKED = Space(hidden=Choice(4, 8), width=Choice(2, 5))
MBCONV = Space(
    width=Choice(4, 6, 8),
    depth=Choice(2, 3, 4),
    kernel=Choice(3, 5, 7).repeat(4, active="depth"),
    expansion=Choice(2, 3, 4).repeat(4, active="depth"),
)
IMAGES = (2, 6, 6, 3)


class Elastic(nn.Module):
    """A network whose `body` is given its decisions."""

    space: Space

    @nn.compact
    def __call__(self, inputs, arch=None, *, train=False):
        return self.body(inputs, Decisions(self.space, arch, initializing=self.is_initializing()), train)


class ElasticMlp(nn.Module):
    """Two elastic dense layers with a hidden width that is chosen."""

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
    def __call__(self, x):
        return x


class Operations(Elastic):
    """Mixtures of plain Flax blocks, all made within the compact method; one is used outside of them too."""

    def body(self, images, decisions, train):
        x = nn.Conv(8, (3, 3), strides=3)(images)
        shared = nn.Dense(8)
        for i in range(2):
            blocks = {
                "identity": Identity(),
                "dense": nn.Dense(8),
                "deep": Deep(nn.Dense(16), train),
                "conv": nn.Conv(8, (3, 3), feature_group_count=2),
            }
            x = Mixture(blocks)(decisions["op", i], x)
            if i == 0:
                x = shared(x)
        return Mixture({"dense": nn.Dense(8), "shared": shared})(decisions["tail"], x).mean(axis=(1, 2))


class ElasticOperations(Elastic):
    """A mixture whose block has an elastic width itself."""

    def body(self, inputs, decisions, train):
        hidden = width(int, decisions["hidden"], axis="mlp")
        x = nn.Dense(8)(inputs["features"])  # [B, N, 8]
        x = Mixture({"identity": Second(), "mlp": nn.remat(ElasticMlp)()})(decisions["op"], x, hidden)
        sums = jax.ops.segment_sum(x.reshape(-1, 8), inputs["nodes"].reshape(-1), 6)
        return {"features": x, "sums": sums}


class Second(nn.Module):
    """Leaves its first argument as it is."""

    def __call__(self, x, hidden):
        return x


class Masked(Elastic):
    """Masked by hand: costs and extraction cannot see what `hidden` does."""

    def body(self, images, decisions, train):
        size = jnp.asarray([4, 8])[decisions["hidden"].value]
        y = nn.Dense(8)(images.reshape(images.shape[0], -1))
        y = jnp.where(jnp.arange(8) < size, y, jnp.zeros_like(y))
        return Dense()(y, fixed(8), width(int, decisions["width"]))


class MBConv(nn.Module):
    """An inverted residual block: expand, depthwise, project, each with batch normalisation."""

    train: bool

    @nn.compact
    def __call__(self, x, channels, hidden, size, gate):
        x = Conv(use_bias=False, name="expand")(x, channels, hidden, fixed(1), gate=gate)
        x = nn.relu(BatchNorm(name="expand_norm")(x, hidden, train=self.train, gate=gate))
        x = Conv(depthwise=True, use_bias=False, name="depthwise")(x, hidden, hidden, size, gate=gate)
        x = nn.relu(BatchNorm(name="depthwise_norm")(x, hidden, train=self.train, gate=gate))
        x = Conv(use_bias=False, name="project")(x, hidden, channels, fixed(1), gate=gate)
        return BatchNorm(name="project_norm")(x, channels, train=self.train, gate=gate)


class MBConvNet(Elastic):
    """A stem and residual MBConv blocks, with choices of width, depth, expansions and kernel sizes."""

    classes: int = 5

    def body(self, images, decisions, train):
        channels = width(int, decisions["width"])
        x = Conv((2, 2), use_bias=False, name="stem")(images, fixed(images.shape[-1]), channels, fixed(3))
        x = nn.relu(BatchNorm(name="stem_norm")(x, channels, train=train))
        for i in range(max(self.space.choices["depth"].options)):
            gate = width(lambda depth, i=i: int(i < depth), decisions["depth"])
            hidden = width(lambda size, times: size * times, decisions["width"], decisions["expansion", i])
            size = width(int, decisions["kernel", i])
            x = x + MBConv(train, name=f"block_{i}")(x, channels, hidden, size, gate)
        return Dense(name="head")(x.mean(axis=(1, 2)), channels, fixed(self.classes), rows=1)
