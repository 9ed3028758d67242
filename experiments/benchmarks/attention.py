"""What attention mechanisms take as sequences grow: operations, memory and time of a gradient.

  python -m experiments.benchmarks.attention --out=attention.json

For each mechanism and length: the floating-point operations and the temporary memory of the forward and
backward pass, which are the compiler's own figures, and the median time of calls in turns. Shown are the
slopes of lines through them in log-log scale (1 is linear in the length, 2 quadratic), and ratios to
softmax attention at the shortest and the longest length. Random inputs: no data needed.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import binary
from jaxnas import files
from jaxnas.latency import median_times
from jaxnas.supernets import attention

_LENGTHS = flags.DEFINE_list("lengths", ["512", "1024", "2048", "4096"], "Lengths of the sequences.")
_HEADS = flags.DEFINE_integer("heads", 2, "Number of heads.")
_DIM = flags.DEFINE_integer("head_dim", 16, "Channels of a head; the input has those of all heads.")
_BATCH = flags.DEFINE_integer("batch", 1, "Sequences.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Timed calls of each mechanism.")
_FORMS = flags.DEFINE_boolean(
    "forms", False, "Softmax and the other forms of the mechanisms, as causal ones."
)
_OUT = flags.DEFINE_string("out", None, "A JSON file for the figures.")

_FIGURES = ("flops", "bytes", "seconds")


def mechanisms(length: int) -> dict[str, attention.Attention]:
    """The mechanisms, blocks and windows of 64; the Sparse Transformer's block is the root of the length."""
    sizes: dict[str, Any] = dict(num_heads=_HEADS.value, head_dim=_DIM.value)
    own: dict[str, dict[str, Any]] = {
        "local": dict(block=64),
        "longformer": dict(window=64, num_global=1),
        "sparse_transformer": dict(block=math.isqrt(length), summary=1),
        "bigbird": dict(block=64, num_random=3),
        "linformer": dict(max_length=length, num_projected=64),
        "performer": dict(num_features=64),
        "reformer": dict(chunk=64, num_buckets=32),
        "sinkhorn": dict(max_length=length, block=64),
        "synthesizer": dict(max_length=length),
    }
    blocks = {name: kind(**sizes, **own.get(name, {})) for name, kind in attention.MECHANISMS.items()}
    if not _FORMS.value:
        return blocks
    others = {
        "performer, ReLU": blocks["performer"].clone(kernel="relu"),
        "synthesizer, random": blocks["synthesizer"].clone(kind="random"),
        "synthesizer, dense": blocks["synthesizer"].clone(kind="dense"),
    }
    # Linformer and BigBird have no causal form.
    names = [name for name in blocks if name not in ("linformer", "bigbird")]
    causal = {f"{name}, causal": blocks[name].clone(causal=True) for name in names}
    return {"softmax": blocks["softmax"], **others, **causal}


def compiled(block: Any, length: int) -> tuple[Any, dict[str, float]]:
    """A call that computes the gradient of a block, and the compiler's figures of it."""
    x = jax.random.normal(jax.random.key(0), (_BATCH.value, length, _HEADS.value * _DIM.value))
    mask = jnp.ones(x.shape[:2], bool)
    variables = nn.meta.unbox(jax.jit(block.init)(jax.random.key(1), x, mask))

    def total(variables: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(block.apply(variables, x, mask, train=True) ** 2)

    program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(variables, x).compile()
    # In casts: the analyses are None only on platforms that have none.
    flops, memory = cast(Any, program.cost_analysis())["flops"], cast(Any, program.memory_analysis())
    call = functools.partial(program, variables, x)
    return call, {"flops": flops, "bytes": memory.temp_size_in_bytes}


def measure(lengths: list[int]) -> dict[str, dict[str, list[float]]]:
    """The figures of each mechanism, one for each length."""
    figures: dict[str, dict[str, list[float]]] = {}
    for length in lengths:
        calls = {}
        for name, block in mechanisms(length).items():
            calls[name], found = compiled(block, length)
            of_block = figures.setdefault(name, {figure: [] for figure in _FIGURES})
            for figure, value in found.items():
                of_block[figure].append(value)
        for name, seconds in median_times(calls, repeats=_REPEATS.value).items():
            figures[name]["seconds"].append(seconds)
        print(f"measured {length} positions", flush=True)
    return figures


def show(lengths: list[int], figures: dict[str, dict[str, list[float]]]) -> str:
    """The table that is printed: slopes, and ratios to softmax attention at both ends."""
    heads = ("operations", "memory", "time")
    ends = f"x softmax at {lengths[0]} and {lengths[-1]}"
    columns = ["mechanism", *(f"{head}, {what}" for head in heads for what in ("slope", ends))]
    rows = [columns, ["---"] * len(columns)]
    for name, found in figures.items():
        row = [name]
        for figure in _FIGURES:
            slope = np.polyfit(np.log(lengths), np.log(found[figure]), 1)[0]
            ratios = [found[figure][i] / figures["softmax"][figure][i] for i in (0, -1)]
            row += [f"{slope:.2f}", ", ".join(f"{ratio:.2g}" for ratio in ratios)]
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    lengths = [int(length) for length in _LENGTHS.value]
    figures = measure(lengths)
    print(show(lengths, figures))
    if _OUT.value is not None:
        device = jax.devices()[0].device_kind
        files.write_json(_OUT.value, {"device": device, "lengths": lengths, "figures": figures})


if __name__ == "__main__":
    binary.run(main)
