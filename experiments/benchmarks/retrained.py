"""Step time and inference time of the networks that were retrained in a workdir, all in turn.

  python -m experiments.benchmarks.retrained --config=wikitext2_small --workdir=runs/par \\
      --out=retrained.json

One network of each architecture; ratios of medians to the interleaved one, which must be among them.
"""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import jax
import optax
from absl import app, flags
from jaxnas.training.language import language_loss

import jaxnas
from experiments import config as config_lib
from experiments.benchmarks.language import random_batch
from experiments.language_configs import CONFIGS
from experiments.language_setup import blocks_of, letters
from jaxnas import spaces
from jaxnas.latency import median_times

flags.DEFINE_integer("repeats", 15, "Timed calls of each.")
flags.DEFINE_string("out", None, "A JSON file for the figures.")


def gradient_step(loss: Any, params: Any, batch: Any, memory: Any) -> Any:
    """Loss, gradient and a step of plain descent: the optimizer is not what is compared."""
    key = jax.random.key(0)
    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params, None, batch, memory, key)
    return value, new, optax.apply_updates(params, jax.tree.map(lambda g: -1e-3 * g, grads))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    config, path = config_lib.from_flags(CONFIGS)
    rows, length = config.retraining.batch_size, config.retraining.length
    networks: dict[str, Any] = {}
    for folder in sorted(pathlib.Path(path).glob("retrained/*/subnet")):
        net, variables = jaxnas.load_subnet(folder)
        networks.setdefault(letters(blocks_of(net)), (net, variables["params"]))
    interleaved = spaces.par(config.model.blocks).to_dict(spaces.interleaved(config.model.blocks))
    base = letters(interleaved["block"])
    if base not in networks:
        raise ValueError(f"{path} has no retrained interleaved network, only {list(networks)}.")
    vocabulary = networks[base][0].vocabulary
    batch = random_batch(rows, length, vocabulary)
    calls = {}
    for name, (net, params) in networks.items():
        memory = net.empty_memory(rows)
        train = jax.jit(functools.partial(gradient_step, language_loss(net)))

        @jax.jit
        def infer(params: Any, batch: Any, memory: Any, net: Any = net) -> Any:
            inputs = {"tokens": batch["tokens"], "targets": batch["targets"], "memory": memory}
            return net.apply({"params": params}, inputs)

        calls[name, "training"] = functools.partial(train, params, batch, memory)
        calls[name, "inference"] = functools.partial(infer, params, batch, memory)
    times = median_times(calls, warmup=2, repeats=flags.FLAGS.repeats)
    record = []
    print(f"{'network':{config.model.blocks}}  training     ratio  inference    ratio")
    for name in networks:
        line: dict[str, Any] = {"network": name, "device": jax.devices()[0].device_kind}
        text = f"{name:{config.model.blocks}}"
        for kind in ("training", "inference"):
            seconds, ratio = times[name, kind], times[name, kind] / times[base, kind]
            line |= {f"{kind}_ms": 1e3 * seconds, f"{kind}_ratio": ratio}
            text += f"  {1e3 * seconds:7.1f} ms  {ratio:6.2f}"
        record.append(line)
        print(text, flush=True)
    if flags.FLAGS.out:
        pathlib.Path(flags.FLAGS.out).write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    config_lib.define_flags(CONFIGS)
    config_lib.run(main)
