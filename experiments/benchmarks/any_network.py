"""What a plain Flax ViT costs as a supernet, beside our elastic layers and the networks in it.

  python -m experiments.benchmarks.any_network --space=tiny
  python -m experiments.benchmarks.any_network --space=wide --architectures=4

The ViT is AutoFormer-T's, as a plain module (`experiments/benchmarks/plain_vit.py`). Timed are gradients
of the logits' mean square, in turns in one process: of both forms of `jaxnas.supernet`, of `supernets.ViT`
with unrolled layers, and of the largest plain network; compiled once. The unit is the extracted network,
compiled for its architecture alone. Medians over repeats, averaged over architectures; compile time apart.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import jaxnas
from experiments import binary
from experiments.benchmarks.elastic import make_space
from experiments.benchmarks.plain_vit import supernet
from jaxnas.latency import median_times
from jaxnas.supernets import ViT


def main() -> None:
    """Times all forms."""
    space = make_space(flags.FLAGS.space)
    images = jnp.asarray(
        np.random.default_rng(0).standard_normal((flags.FLAGS.batch, 224, 224, 3)), jnp.float32
    )
    ours = ViT(space, image_size=224, patch_size=16, num_classes=1000)
    nets = {
        form: supernet(space, form, images, num_classes=1000, patch_size=16) for form in ("masked", "switch")
    }
    nets["elastic layers"] = ours, jaxnas.init(ours, jax.random.key(0), images.shape)

    def gradient(net: Any, *arch: Any) -> Any:
        return jax.jit(jax.grad(lambda variables, *a: jnp.mean(net.apply(variables, images, *a) ** 2)))

    rows: dict[str, list[float]] = {name: [] for name in (*nets, "largest network")}
    compiled, compile_time = {}, {}
    for name, (net, variables) in nets.items():
        start = time.perf_counter()
        compiled[name] = gradient(net).lower(variables, net.space.largest()).compile()
        compile_time[name] = time.perf_counter() - start
    plain = nets["masked"][0].groups.model
    start = time.perf_counter()
    largest = jax.jit(jax.grad(lambda v: jnp.mean(plain.call(v, images, jax.random.key(0), False)[0] ** 2)))
    largest = largest.lower(nets["masked"][1]).compile()
    compile_time["largest network"] = time.perf_counter() - start
    for number in range(flags.FLAGS.architectures):
        arch = space.sample(jax.random.key(number))
        named = {("block_*" if name == "depth" else name): value for name, value in arch.items()}
        net, variables = nets["masked"]
        small, small_variables, _ = jaxnas.extract(net, variables, named, inputs=images)
        alone = gradient(small).lower(small_variables).compile()
        calls = {
            "alone": functools.partial(alone, small_variables),
            "largest network": functools.partial(largest, variables),
        }
        for name, (_, own) in nets.items():
            given = arch if name == "elastic layers" else named
            calls[name] = functools.partial(compiled[name], own, given)
        times = median_times(calls, repeats=flags.FLAGS.repeats)
        for name in rows:
            rows[name].append(times[name] / times["alone"])
    for name, ratios in rows.items():
        print(f"| {name} | {np.mean(ratios):.2f} | {compile_time[name]:.1f} s |")
    print(f"mean products of the space: {nets['masked'][0].mean_products():.2f} of the largest network's")


if __name__ == "__main__":
    binary.run(main)
