"""Candidates of a search, each trained alone for a while: what a supernet cannot tell of them."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from jaxnas.training.language import language_loss, make_language_step

from experiments.language_setup import LanguageSetup, letters, new_params, new_state, optimizer
from jaxnas import files
from jaxnas.data import ContiguousBatches
from jaxnas.training.step import shard_batch


def race(
    setup: LanguageSetup, archs: list[Any], evaluate: Any, path: pathlib.Path
) -> tuple[int, list[list[float]]]:
    """Successive halving of architectures, each trained alone; see `search.trial_steps` and `search.eta`.

    As `search.SuccessiveHalving`, but of architectures that are given, which that strategy would draw. Every
    rung trains from new weights, so that its learning rate has come down when it is judged.

    Args:
      setup: of the search.
      archs: hard architectures.
      evaluate: from parameters and an architecture to its loss; see `LanguageSetup.evaluator`.
      path: a JSON file of the trials that are done, which are not run again.

    Returns:
      The number of the best, and for each the losses of the rungs that it ran, in nats per token.

    Raises:
      ValueError: all losses of a rung are no numbers.
    """
    settings = setup.config.search
    losses: list[list[float]] = [[] for _ in archs]
    rung = list(range(len(archs)))
    for steps in settings.trial_steps:
        trained = train_alone(setup, [archs[row] for row in rung], steps, evaluate, path)
        for row, loss in zip(rung, trained, strict=True):
            losses[row].append(loss)
        goes_on = max(len(rung) // settings.eta, 1)
        rung = [row for row in rung if math.isfinite(losses[row][-1])]
        if not rung:
            raise ValueError(
                f"None of {len(trained)} trials of {steps} steps has a loss that is a number; lower "
                "training.learning_rate or training.clip."
            )
        rung = sorted(rung, key=lambda row: losses[row][-1])[:goes_on]
        if len(rung) == 1:
            break
    return rung[0], losses


def train_alone(
    setup: LanguageSetup, archs: list[Any], steps: int, evaluate: Any, path: pathlib.Path
) -> list[float]:
    """Trains architectures one after the other from new weights; their losses on the search text.

    Args:
      setup: of the search.
      archs: hard architectures, all trained by one compiled program.
      steps: of each.
      evaluate: from parameters and an architecture to its loss; see `LanguageSetup.evaluator`.
      path: a JSON file of those that are done, which are not trained again; what was evaluated in another
        way is forgotten.

    Returns:
      The loss of each, in nats per token.
    """
    config, net = setup.config, setup.net
    rows = config.training.batch_size
    warmup = min(config.training.warmup_steps, steps // 10)
    training = dataclasses.replace(config.training, steps=steps, warmup_steps=warmup)
    text = setup.corpus.train.require("train")
    batches = ContiguousBatches(text, rows, training.length, seed=config.seed)
    how = {
        "segments": config.search.segments,
        "evaluation": dataclasses.asdict(config.evaluation),
    }
    stored = files.read_json(path) if path.is_file() else {}
    nats = stored["nats"] if stored.get("how") == how else {}
    losses = nats.setdefault(str(steps), {})

    params = new_params(setup, "retraining_init")
    start = new_state(setup, net, params, training, archs[0])
    loss = language_loss(net, by_document=config.data.by_document)
    step = make_language_step(loss, *optimizer(training), setup.mesh, start)
    names = [letters(net.space.to_dict(arch)["block"]) for arch in archs]
    found = []
    for number, (name, arch) in enumerate(zip(names, archs, strict=True), 1):
        if name not in losses:
            # In a copy, since a step consumes its state.
            state = jax.tree.map(jnp.copy, dataclasses.replace(start, arch=arch))
            for at in range(steps):
                state, _ = step(state, shard_batch(batches.at(at), setup.mesh))
            losses[name] = float(evaluate(state.params, arch))
            files.write_json(path, {"how": how, "nats": nats})
        trial = f"trial {number}/{len(archs)} of {steps} steps"
        # JSON has no NaN.
        found.append(math.nan if losses[name] is None else losses[name])
        print(f"{trial}  {name}  search loss {found[-1]:.4f}", flush=True)
    return found
