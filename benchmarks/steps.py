"""Compile time and step time of a supernet, relative to the networks that it contains.

  python -m benchmarks.steps --network=convolutions --size=64
  python -m benchmarks.steps --network=swin --size=28 --kind=forward --kind=gradient
  python -m benchmarks.steps --config=dartformer_listops_small --batch=32

"convolutions" has four MBConv blocks with 3 kernel sizes, 3 expansions and 3 widths, and batch
normalization. "swin" is S3's supernet and "hybrid" that of convolutions and Transformers, each with its
space for small images. `--config` takes the network of a config and a batch of its data. The program
measures a forward pass, or a gradient in training: the processor time of compiling it, over that of the
largest extracted network, and the time of a call, over that of the network extracted at the same
architecture. Calls alternate in one process. The output shows medians over repeats, wall time and processor
time; only processor time is meaningful on a busy machine, and only for CPUs. For AutoFormer's networks use
`benchmarks.elastic`.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import flags

import jaxnas
from jaxnas import Choice, Space, elastic, spaces, subnet, supernets
from jaxnas.experiments import binary
from jaxnas.experiments.configs import CONFIGS
from jaxnas.supernets import hybrid

_NETWORK = flags.DEFINE_enum("network", None, ["convolutions", "swin", "hybrid"], "Network, unless --config.")
_KINDS = flags.DEFINE_multi_enum("kind", ["gradient"], ["forward", "gradient"], "Measured passes.")
_ARCHITECTURES = flags.DEFINE_integer("architectures", 6, "Number of samples, besides the smallest.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Timed calls of each network.")
_BATCH = flags.DEFINE_integer("batch", 16, "Images, or rows of the data.")
_SIZE = flags.DEFINE_integer("size", 32, "Image size; MBConv blocks see maps of half that size.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of architectures, weights and images.")

BLOCKS = 4
SPACE = Space(
    width=Choice(16, 24, 32),
    kernel=Choice(3, 5, 7).repeat(BLOCKS),
    expansion=Choice(2, 3, 4).repeat(BLOCKS),
)


class Network(nn.Module):
    """A stem, residual MBConv blocks (Sandler et al., CVPR 2018, section 3.3) and a head."""

    space: Space

    @nn.compact
    def __call__(self, images: jax.Array, arch: Any = None, *, train: bool = False) -> jax.Array:
        decisions = elastic.Decisions(self.space, arch, initializing=self.is_initializing())
        width, one, three = elastic.width(int, decisions["width"]), elastic.fixed(1), elastic.fixed(3)

        def norm(x: jax.Array, channels: elastic.Width, name: str) -> jax.Array:
            return elastic.BatchNorm(name=name)(x, channels, train=train)

        convolution = functools.partial(elastic.Conv, use_bias=False)
        x = nn.relu(norm(convolution((2, 2), name="stem")(images, three, width, three), width, "stem_norm"))
        for i in range(BLOCKS):
            hidden = elastic.width(lambda size, n: size * n, decisions["width"], decisions["expansion", i])
            size = elastic.width(int, decisions["kernel", i])
            y = convolution(name=f"expand_{i}")(x, width, hidden, one)
            y = nn.relu(norm(y, hidden, f"expand_norm_{i}"))
            y = convolution(name=f"depthwise_{i}", depthwise=True)(y, hidden, hidden, size)
            y = nn.relu(norm(y, hidden, f"depthwise_norm_{i}"))
            x = x + norm(convolution(name=f"project_{i}")(y, hidden, width, one), width, f"norm_{i}")
        return elastic.Dense(name="head")(x.mean(axis=(1, 2)), width, elastic.fixed(10))


def network(key: jax.Array) -> tuple[nn.Module, Any]:
    """The supernet that was asked for, and a batch of what it takes."""
    if flags.FLAGS.config is not None:
        config = binary.chosen_config(CONFIGS)
        task = config.task.load(flags.FLAGS.data_dir)
        batch = jax.tree.map(jnp.asarray, task.batches("train", _BATCH.value, _SEED.value).at(0))
        return config.network, task.preprocess(batch)
    shape = (_BATCH.value, _SIZE.value, _SIZE.value)
    if _NETWORK.value == "convolutions":
        return Network(SPACE), jax.random.normal(key, (*shape, 3))
    images = jax.random.normal(key, (*shape, 1))
    if _NETWORK.value == "hybrid":
        return supernets.Hybrid(spaces.hybrid_small(), num_classes=10, **hybrid.SMALL), images
    space = spaces.s3_small_images(_SIZE.value)
    return supernets.Swin(space, _SIZE.value, 1 if _SIZE.value == 28 else 2, num_classes=10), images


def compiled(kind: str, net: nn.Module, *given: Any) -> tuple[Callable[..., Any], float]:
    """A pass of a network, in training if it is a gradient, and the processor seconds of its compilation."""

    def loss(params: Any, rest: Any, inputs: Any, *arch: Any) -> jax.Array:
        rngs = {"dropout": jax.random.key(0)}
        variables = {"params": params, **rest}
        logits, _ = net.apply(variables, inputs, *arch, train=True, rngs=rngs, mutable=list(rest))
        return jnp.mean(jnp.square(logits))

    def forward(params: Any, rest: Any, inputs: Any, *arch: Any) -> Any:
        return net.apply({"params": params, **rest}, inputs, *arch)

    jax.clear_caches()  # what was traced for one network is not there for the next: each is the first
    start = time.process_time()
    program = jax.jit(jax.grad(loss) if kind == "gradient" else forward).lower(*given).compile()
    return program, time.process_time() - start


def median_seconds(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds of each call by the clock and of the processor, as medians over turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            begun = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            if turn:  # the first calls find nothing in the caches
                times[name].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    medians = {
        name: [statistics.median(x) for x in zip(*pairs, strict=True)] for name, pairs in times.items()
    }
    return {name: (clock, processor) for name, (clock, processor) in medians.items()}


def measure(kind: str) -> None:
    """Prints a line for each architecture, and means over those that were sampled."""
    weights_key, inputs_key, key = jax.random.split(jax.random.key(_SEED.value), 3)
    net, inputs = network(inputs_key)
    space: Space = net.space  # pyrefly: ignore[missing-attribute]
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    variables = jaxnas.init(net, weights_key, shapes)

    def split(variables: Any) -> tuple[Any, Any]:
        return variables["params"], {name: x for name, x in variables.items() if name != "params"}

    def extracted(arch: Any) -> tuple[nn.Module, tuple[Any, ...]]:
        _, small, small_variables = subnet.alone(net, variables, arch, shapes)
        return small, (*split(small_variables), inputs)

    largest, given = extracted(space.largest())
    _, base = compiled(kind, largest, *given)
    supernet, seconds = compiled(kind, net, *split(variables), inputs, space.largest())
    print(f"{kind}: compile {seconds:.1f} s, {seconds / base:.1f} x {base:.1f} s of the largest network")
    ratios = []
    sampled = [space.sample(arch_key) for arch_key in jax.random.split(key, _ARCHITECTURES.value)]
    for arch in (*sampled, space.smallest()):
        small, given = extracted(arch)
        alone, _ = compiled(kind, small, *given)
        calls = {
            "supernet": functools.partial(supernet, *split(variables), inputs, arch),
            "extracted": functools.partial(alone, *given),
        }
        times = median_seconds(calls, _REPEATS.value)
        pairs = zip(times["supernet"], times["extracted"], strict=True)
        clock, processor = (ours / own for ours, own in pairs)
        ratios.append((clock, processor))
        shown = ", ".join(f"{name} {1e3 * x:.1f} ms ({1e3 * y:.1f})" for name, (x, y) in times.items())
        print(f"{space.to_dict(arch)}: {shown}, {clock:.2f} x ({processor:.2f})", flush=True)
    clock, processor = (statistics.mean(column) for column in zip(*ratios[:-1], strict=True))
    print(
        f"{kind}: mean {clock:.2f} x by the clock, {processor:.2f} x of processor time, without the smallest"
    )


def main() -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    for kind in _KINDS.value:
        measure(kind)


if __name__ == "__main__":
    binary.define_config_flags(CONFIGS)
    flags.mark_flags_as_mutual_exclusive(["network", "config"], required=True)
    binary.run(main)
