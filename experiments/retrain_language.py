"""Trains one architecture of the PAR space alone, and measures its perplexity.

  python -m experiments.retrain_language --config=wikitext2 --workdir=runs/par --architecture=found
  python -m experiments.retrain_language --config=wikitext2 --workdir=runs/par --architecture=interleaved
  python -m experiments.retrain_language --config=wikitext2 --workdir=runs/par --architecture=random:3 \\
      --set seed=1
  python -m experiments.retrain_language ... --architecture=found --weights=inherited

Goes into workdir/retrained/<architecture>-<weights>-<seed>, resumes there, and is entered in the page of
the search, if there is one. Training uses all of the training text, that held out of the search too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

import jaxnas
from experiments import config as config_lib
from experiments.language_configs import CONFIGS
from experiments.language_setup import (
    LanguageSetup,
    blocks_of,
    build,
    describe,
    describe_text,
    figures,
    new_state,
    optimizer,
    pick,
    unused,
)
from experiments.setup import define_data_flags, versions
from jaxnas import report
from jaxnas.data import ContiguousBatches
from jaxnas.latency import median_times
from jaxnas.training.language import LanguageState, language_loss, make_language_step
from jaxnas.training.loop import LoopSettings, fit
from jaxnas.training.step import shard_batch
from jaxnas.training.workdir import open_workdir, write_json_atomic


def initial_state(setup: LanguageSetup, net: Any, inherited: pathlib.Path | None) -> LanguageState:
    """The state at step 0, on the mesh; with the weights of a saved network, or new ones."""
    if inherited is None:
        params = jaxnas.init(net, setup.key("retraining_init"), setup.segment)["params"]
    else:
        saved, variables = jaxnas.load_subnet(inherited)
        params = variables["params"]
        if saved != net.clone(dropout=saved.dropout, attention_dropout=saved.attention_dropout):
            raise ValueError(
                f"--weights=inherited: {inherited} holds another network, {saved}; only "
                "--architecture=found, with the model of the search, has weights to inherit."
            )
    return new_state(setup, net, params, setup.config.retraining)


def retrain(
    setup: LanguageSetup, net: Any, inherited: pathlib.Path | None, workdir: pathlib.Path
) -> tuple[LanguageState, bool, dict[str, float]]:
    """Trains to the end; the state, whether that is complete, and the time of a step."""
    config, settings = setup.config, setup.config.retraining
    state = initial_state(setup, net, inherited)
    loss = language_loss(net, by_document=config.data.by_document)
    step = make_language_step(loss, *optimizer(settings), setup.mesh, state)
    text = setup.corpus.train.require("train")
    batches = ContiguousBatches(text, settings.batch_size, settings.length, seed=config.seed)
    evaluate = setup.evaluator(net, "validation")

    def watch(state: LanguageState) -> dict[str, Any]:
        return {"split": "validation", "nats": float(evaluate(state.params))}

    state, complete = fit(
        state,
        step,
        batches,
        workdir,
        LoopSettings(settings.steps, settings.log_every, settings.evaluate_every, settings.checkpoint_every),
        mesh=setup.mesh,
        watch=watch,
        config={**config_lib.to_dict(config), "architecture": blocks_of(net)},
        may_differ=unused(config, "search", "training"),
    )
    times = measure(setup, net, step, state, batches) if complete else {}
    return state, complete, times


def measure(setup: LanguageSetup, net: Any, step: Any, state: Any, batches: Any) -> dict[str, float]:
    """Median milliseconds of a training step, and tokens a second at inference; not reproducible."""
    batch = shard_batch(batches.at(0), setup.mesh)
    copies = [jax.tree.map(jnp.copy, state)]  # a step consumes its state

    def train() -> Any:
        copies[0], metrics = step(copies[0], batch)
        return metrics

    memory = net.empty_memory(batch["tokens"].shape[0])
    score = jax.jit(
        lambda params, batch, memory: net.apply(
            {"params": params}, {"tokens": batch["tokens"], "targets": batch["targets"], "memory": memory}
        )
    )
    seconds = median_times({"train": train, "infer": lambda: score(state.params, batch, memory)}, repeats=20)
    return {
        "training_step_ms": 1e3 * seconds["train"],
        "inference_tokens_per_second": batch["tokens"].size / seconds["infer"],
    }


def label_of(text: str, weights: str, seed: int) -> str:
    """The folder of a retraining: what was trained, from which weights, with which seed."""
    name = text.replace(":", "_")
    if not re.fullmatch(r"\w{1,40}", name):
        name = "given_" + hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{name}-{weights}-{seed}"


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    config, path = config_lib.from_flags(CONFIGS)
    root, text, weights = pathlib.Path(path), flags.FLAGS.architecture, flags.FLAGS.weights
    with open_workdir(root / "retrained" / label_of(text, weights, config.seed)) as workdir:
        # Nothing is held out any more.
        whole = dataclasses.replace(config.data, search_fraction=0.0)
        setup = build(
            dataclasses.replace(config, data=whole),
            config.retraining,
            flags.FLAGS.data_dir,
            flags.FLAGS.source_dir,
        )
        cost = setup.cost(root, measure=False)
        arch = pick(setup, text, root, cost)
        net = setup.net.clone(space=setup.net.space.fix(arch))
        described = describe(setup, cost, arch)
        print(f"{text}: {' '.join(described['architecture']['block'])}", flush=True)
        inherited = root / "subnet" if weights == "inherited" else None
        started = time.monotonic()
        state, complete, times = retrain(setup, net, inherited, workdir)
        if not complete:
            print("stopped and saved; the same command goes on from here", flush=True)
            return
        params = jax.device_get(state.params)
        result = {
            "config": config_lib.to_dict(config),
            "name": text,
            "weights": weights,
            "data": describe_text(setup.corpus, net),
            "tokens": int(state.step) * config.retraining.batch_size * config.retraining.length,
            **described,
            **{
                role: figures(float(setup.evaluator(net, role)(params)), getattr(setup.corpus, role))
                for role in ("validation", "test")
            },
            "versions": versions(),
            "device": jax.devices()[0].device_kind,
        }
        jaxnas.save_subnet(workdir / "subnet", net, {"params": params}, setup.segment)
        write_json_atomic(workdir / "result.json", result)
        # Apart from the result, which a run that was killed and resumed gives bit for bit.
        write_json_atomic(workdir / "times.json", {**times, "seconds": time.monotonic() - started})
    if (root / "result.json").is_file():
        report.write_language(root)
    for role in ("validation", "test"):
        print(
            f"{role}: perplexity {result[role]['perplexity']:.2f}, "
            f"{result[role]['bits_per_byte']:.3f} bits per byte",
            flush=True,
        )


if __name__ == "__main__":
    config_lib.define_flags(CONFIGS)
    define_data_flags()
    flags.DEFINE_string(
        "architecture", "found", "found, interleaved, par_rule, random:K, or option values as JSON."
    )
    flags.DEFINE_enum("weights", "scratch", ["scratch", "inherited"], "What to start from.")
    config_lib.run(main)
