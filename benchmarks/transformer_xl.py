"""Gradient time of the PAR supernet, hard, scanned and soft, relative to extracted networks.

  python -m benchmarks.transformer_xl --out=transformer_xl.json

Calls of one architecture alternate. The output shows ratios of medians to the network extracted at the same
architecture and compiled alone, averaged over architectures. Tokens are random: no data needed.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

import jaxnas
from jaxnas import files, spaces, supernets
from jaxnas.experiments import binary
from jaxnas.latency import median_times

flags.DEFINE_integer("archs", 8, "Random architectures, beside the interleaved one.")
flags.DEFINE_integer("blocks", 12, "Blocks of the supernet.")
flags.DEFINE_integer("width", 128, "Width of the residual stream; heads have a quarter of it.")
flags.DEFINE_integer("vocabulary", 8000, "Number of tokens.")
flags.DEFINE_integer("batch", 32, "Rows.")
flags.DEFINE_integer("length", 64, "Tokens of a segment, and of the memory.")
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Computation dtype.")
flags.DEFINE_integer("repeats", 7, "Timed calls of each form.")
flags.DEFINE_string("out", None, "A JSON file for the figures.")
FLAGS = flags.FLAGS


def random_batch(rows: int, length: int, vocabulary: int) -> dict[str, jax.Array]:
    """Tokens and targets, int32 [rows, length].

    Low numbers come more often, as frequent words do in texts: an adaptive softmax then has what to
    leave out.
    """
    largest = jnp.log(float(vocabulary))
    ranks = jax.random.uniform(jax.random.key(1), (rows, length), maxval=largest)
    tokens = jnp.exp(ranks).astype(jnp.int32) % vocabulary
    return {"tokens": tokens, "targets": jnp.roll(tokens, -1, axis=1)}


def loss_of(net: Any) -> Any:
    """From parameters, architecture, batch and memory to the mean loss and the next memory."""

    def loss(params: Any, arch: Any, batch: dict[str, jax.Array], memory: Any) -> tuple[jax.Array, Any]:
        scores, memory = net.apply({"params": params}, {**batch, "memory": memory}, arch, train=True)
        return -jnp.mean(scores), memory

    return loss


def main() -> None:
    space = spaces.par(FLAGS.blocks)
    net = supernets.TransformerXL(
        space,
        vocabulary=FLAGS.vocabulary,
        width=FLAGS.width,
        num_heads=4,
        head_dim=FLAGS.width // 4,
        hidden=4 * FLAGS.width,
        memory_length=FLAGS.length,
        cutoffs=(FLAGS.vocabulary // 16, FLAGS.vocabulary // 4),
        div_value=2,
        dropout=0.0,
        dtype=jnp.dtype(FLAGS.dtype),
        init_std=0.05,
    )
    tokens = jax.ShapeDtypeStruct((1, FLAGS.length), jnp.int32)
    params = jaxnas.init(net, jax.random.key(0), tokens)["params"]
    batch = random_batch(FLAGS.batch, FLAGS.length, FLAGS.vocabulary)

    def compiled(net: Any, params: Any, arch: Any) -> tuple[Any, float]:
        memory = net.empty_memory(FLAGS.batch)
        call = jax.jit(jax.value_and_grad(loss_of(net), has_aux=True))
        start = time.perf_counter()
        program = call.lower(params, arch, batch, memory).compile()
        seconds = time.perf_counter() - start
        return lambda params, arch: program(params, arch, batch, memory), seconds

    random = space.sample(jax.random.key(3), FLAGS.archs)
    archs = [space.from_dict({"block": spaces.interleaved_blocks(FLAGS.blocks)})]
    archs += [jax.tree.map(lambda x, i=i: x[i], random) for i in range(FLAGS.archs)]
    forms = {}
    for name, module, soft in (
        ("unrolled", net, False),
        ("scanned", net.clone(scan_blocks=True), False),
        ("soft, unrolled", net, True),
        ("soft, scanned", net.clone(scan_blocks=True), True),
    ):
        arch = space.soften(archs[0]) if soft else archs[0]
        call, seconds = compiled(module, params, arch)
        forms[name] = (call, soft, seconds)
    rows, compile_alone = [], []
    for arch in archs:
        small, variables, _ = jaxnas.extract(net, {"params": params}, arch, inputs=tokens)
        small_params = variables["params"]
        alone, seconds = compiled(small, small_params, None)
        compile_alone.append(seconds)
        calls = {"extracted": functools.partial(alone, small_params, None)}
        for name, (call, soft, _) in forms.items():
            calls[name] = functools.partial(call, params, space.soften(arch) if soft else arch)
        times = median_times(calls, warmup=1, repeats=FLAGS.repeats)
        rows.append({"block": space.to_dict(arch)["block"], **times})
        ratios = "  ".join(f"{name} {times[name] / times['extracted']:.2f}" for name in forms)
        kinds = "".join(name[0] for name in rows[-1]["block"])
        print(f"{kinds}  extracted {1e3 * times['extracted']:.0f} ms  {ratios}", flush=True)
    record: dict[str, Any] = {"device": jax.devices()[0].device_kind, "rows": rows, "ratios": {}}
    print(f"{'form':16}{'gradient':>10}{'compile':>10}")
    for name, (_, _, seconds) in forms.items():
        mean = statistics.mean(row[name] / row["extracted"] for row in rows)
        compiling = seconds / statistics.mean(compile_alone)
        record["ratios"][name] = {"gradient": mean, "compile": compiling}
        print(f"{name:16}{mean:10.2f}{compiling:10.2f}")
    # A soft mixture runs all blocks whatever its weights: compare with the most expensive network.
    largest = max(rows, key=lambda row: row["extracted"])
    print(f"soft over the slowest extracted network: {largest['soft, scanned'] / largest['extracted']:.2f}")
    if FLAGS.out:
        files.write_json(FLAGS.out, record)


if __name__ == "__main__":
    binary.run(main)
