"""Candidates of a search, each trained alone for a while: what a supernet cannot tell of them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from experiments.language_setup import LanguageSetup, letters, new_params, new_state, optimizer
from jaxnas.data import ContiguousBatches
from jaxnas.training.language import language_loss, make_language_step
from jaxnas.training.step import shard_batch
from jaxnas.training.workdir import write_json_atomic


def train_alone(
    setup: LanguageSetup, archs: list[Any], evaluate: Any, path: pathlib.Path
) -> list[float]:
    """Trains architectures one after the other from new weights; their losses on the search text.

    Args:
      setup: of the search; each is trained for `search.trial_steps` steps, by one compiled program.
      archs: hard architectures.
      evaluate: from parameters and an architecture to its loss; see `LanguageSetup.evaluator`.
      path: a JSON file of those that are done, which are not trained again.

    Returns:
      The loss of each, in nats per token.
    """
    config, net = setup.config, setup.net
    rows, steps = config.training.batch_size, config.search.trial_steps
    warmup = min(config.training.warmup_steps, steps // 10)
    training = dataclasses.replace(config.training, steps=steps, warmup_steps=warmup)
    text = setup.corpus.train.require("train")
    batches = ContiguousBatches(text, rows, training.length, seed=config.seed)
    how = {
        "steps": steps,
        "segments": config.search.segments,
        "evaluation": dataclasses.asdict(config.evaluation),
    }
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    losses = stored["nats"] if stored.get("how") == how else {}

    params = new_params(setup, "retraining_init")
    start = new_state(setup, net, params, training, archs[0])
    loss = language_loss(net, by_document=config.data.by_document)
    step = make_language_step(loss, *optimizer(training), setup.mesh, start)
    names = [letters(net.space.to_dict(arch)["block"]) for arch in archs]
    for number, (name, arch) in enumerate(zip(names, archs, strict=True), 1):
        if name not in losses:
            # In a copy, since a step consumes its state.
            state = jax.tree.map(jnp.copy, dataclasses.replace(start, arch=arch))
            for at in range(steps):
                state, _ = step(state, shard_batch(batches.at(at), setup.mesh))
            losses[name] = float(evaluate(state.params, arch))
            write_json_atomic(path, {"how": how, "nats": losses})
        print(f"trial {number}/{len(archs)}  {name}  search loss {losses[name]:.4f}", flush=True)
    return [losses[name] for name in names]
