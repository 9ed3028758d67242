"""Training recipes at an equal number of passes: accuracy with inherited weights, and ranking.

  python -m benchmarks.recipes --config=autoformer_digits --data_dir=DIR --seeds=3
  python -m benchmarks.recipes --config=autoformer_digits --data_dir=DIR --time

Every recipe trains its supernet for the same number of forward and backward passes, so a recipe with four
networks in a step makes a quarter of the steps. The same random architectures are measured with the weights
of each supernet, and some of them are trained alone, once. All figures are of the role "search", or of the
part of it that `search.limit` sets; nothing is chosen on it. `--time` measures a step of each recipe
instead, relative to the single path's.

`--out=recipes.json` stores results by recipe and seed: the same command resumes, another adds recipes, and
`--picture=recipes.png` draws what is stored.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import time
from typing import Any

import jax
import numpy as np
from absl import flags
from scipy.stats import kendalltau

from jaxnas import files, training
from jaxnas.experiments import binary
from jaxnas.experiments import config as config_lib
from jaxnas.experiments.config import ConfigError
from jaxnas.experiments.configs import CONFIGS
from jaxnas.recipes import Attentive, Distillation, Fair, Progressive, Sandwich, Stratified, Uniform
from jaxnas.space import Space
from jaxnas.training.alone import make_scorer
from jaxnas.training.keys import stream
from jaxnas.training.step import prepare

_RECIPES = flags.DEFINE_list("recipes", [], "Names of recipes; all by default.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Supernets per recipe.", lower_bound=1)
_PASSES = flags.DEFINE_integer(
    "passes", None, "Passes per training; by default four times the config's steps."
)
_RANDOM = flags.DEFINE_integer("random", 50, "Random architectures to average.", lower_bound=2)
_ALONE = flags.DEFINE_integer("alone", 20, "How many of these to train alone; 0 for none.", lower_bound=0)
_TIME = flags.DEFINE_boolean("time", False, "Measure steps instead.")
_OUT = flags.DEFINE_string("out", None, "JSON file of results, which resumes.")
_PICTURE = flags.DEFINE_string(
    "picture", None, "A PNG of inherited against stand-alone accuracy, with --out."
)

_ALPHA = Distillation(divergence="adaptive_alpha")


def recipes(space: Space, steps: int) -> dict[str, tuple[Any, int]]:
    """The recipes by name, each with its networks in a step; `steps` are of a schedule of spaces."""
    fair = int(space.sizes.max())
    last = {name: choice.options[-1:] for name, choice in space.decisions}
    some = {name: choice.options[-2:] for name, choice in space.decisions}
    phases = ((0, space.restrict(**last)), (steps // 4, space.restrict(**some)), (steps // 2, space))
    return {
        "single path": (Uniform(), 1),
        "four random": (Uniform(architectures=4), 4),
        "stratified": (Uniform(sampler=Stratified()), 1),
        "fair": (Fair(), fair),
        "sandwich on labels": (Sandwich(distill=None), 4),
        "sandwich": (Sandwich(), 4),
        "sandwich, alpha-divergence": (Sandwich(distill=_ALPHA), 4),
        # The gradient of all but the largest is limited, as where it is projected, and never projected.
        "sandwich, limited": (Sandwich(distill=_ALPHA, project_after=1.0), 4),
        "sandwich, projected": (Sandwich(distill=_ALPHA, project_after=0.25), 4),
        "best-up": (Sandwich(sampler=Attentive(pick="best")), 4),
        "worst-up": (Sandwich(sampler=Attentive(pick="worst")), 4),
        "progressive": (Progressive(phases=phases), 1),
    }


def main() -> None:
    """Prints a line for each recipe."""
    config = binary.chosen_config(CONFIGS)
    session = binary.bring_to_life(config)
    task, net, mesh = session.task, session.net, session.mesh
    passes = 4 * config.training.steps if _PASSES.value is None else _PASSES.value
    known = recipes(net.space, passes)
    names = _RECIPES.value or list(known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--recipes: there is no {unknown[0]!r}; choose among {', '.join(known)}")
    chosen = {name: known[name] for name in names}
    if _TIME.value:
        return _measure_steps(task, net, config.training, chosen)
    kept = _read(config, passes)
    archs = net.space.sample(stream(config.seed, "ranking"), _RANDOM.value)
    some = jax.tree.map(lambda x: x[: _ALONE.value], archs)
    ends = jax.tree.map(lambda *x: np.stack(x), net.space.smallest(), net.space.largest())
    evaluate = training.make_evaluator(task, net, "search", mesh=mesh, limit=config.search.limit)
    if _ALONE.value and not kept["alone"]:
        kept["alone"] = [*make_scorer(task, net, config.alone, seed=config.seed)(some)]
        _write(kept)
    if kept["alone"]:
        print(json.dumps({"alone": _spread(kept["alone"]), "steps": config.alone.steps}), flush=True)
    for name, (recipe, networks) in chosen.items():
        settings = dataclasses.replace(config.training, steps=passes // networks)
        done = kept["recipes"].setdefault(name, {})
        for seed in map(str, range(_SEEDS.value)):
            if seed in done:
                continue
            trained = training.fit(task, net, settings, recipe=recipe, seed=int(seed))
            smallest, largest = evaluate.scores(trained.variables, ends).tolist()
            scores = evaluate.scores(trained.variables, archs).tolist()
            done[seed] = {"smallest": smallest, "largest": largest, "random": scores}
            _write(kept)
        rows = [done[str(seed)] for seed in range(_SEEDS.value)]
        found = {
            "smallest": _spread([row["smallest"] for row in rows]),
            "largest": _spread([row["largest"] for row in rows]),
            "mean of random": _spread([np.mean(row["random"]) for row in rows]),
        }
        if alone := kept["alone"]:
            taus = [kendalltau(row["random"][: len(alone)], alone).statistic for row in rows]
            found["kendall_tau"] = _spread(taus)
        print(
            json.dumps({"recipe": name, "steps": settings.steps, "networks": networks, **found}), flush=True
        )
    if _PICTURE.value:
        draw(kept, _PICTURE.value)


def _read(config: config_lib.Config, passes: int) -> dict[str, Any]:
    """The records of --out; empty at first.

    Raises:
      ConfigError: it is of other settings.
    """
    plain = config_lib.to_dict(config)
    said = {name: plain[name] for name in ("seed", "task", "network", "training", "retraining")}
    said |= {"passes": passes, "random": _RANDOM.value, "alone": _ALONE.value, "limit": config.search.limit}
    said = files.plain(said)
    if _OUT.value is None or not pathlib.Path(_OUT.value).exists():
        return {"settings": said, "alone": [], "recipes": {}}
    kept = files.read_json(_OUT.value)
    if other := [name for name, value in said.items() if kept["settings"].get(name) != value]:
        raise ConfigError(f"--out: {_OUT.value} is of other settings ({', '.join(other)}); take another file")
    return kept


def _write(kept: dict[str, Any]) -> None:
    if _OUT.value is not None:
        files.write_json(_OUT.value, kept)


def draw(kept: dict[str, Any], path: str) -> None:
    """Draws, for each recipe, inherited accuracy against that after training alone.

    Args:
      kept: what --out has.
      path: of the PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, alone = list(kept["recipes"]), 100 * np.asarray(kept["alone"])
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.6 * rows), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(panels, names, strict=False):
        taus = []
        for row in kept["recipes"][name].values():
            inherited = 100 * np.asarray(row["random"][: len(alone)])
            taus.append(kendalltau(inherited, alone).statistic)
            panel.plot(alone, inherited, "o", markersize=3)
        panel.set_title(f"{name}\ntau {np.mean(taus):.2f}", fontsize=9)
    figure.supxlabel("accuracy after training alone, %", fontsize=9)
    figure.supylabel("accuracy with inherited weights, %", fontsize=9)
    figure.savefig(path)


def _spread(values: Any) -> dict[str, float]:
    """The mean and the standard deviation."""
    values = np.asarray(values, np.float64)
    return {"mean": float(values.mean()), "deviation": float(values.std(ddof=1)) if len(values) > 1 else 0.0}


def _measure_steps(task: Any, net: Any, settings: Any, chosen: Any) -> None:
    """Prints the median time of a step of each recipe, measured in turns."""
    begun = {name: prepare(task, net, settings, recipe) for name, (recipe, _) in chosen.items()}
    times: dict[str, list[float]] = {name: [] for name in begun}
    for turn in range(8):
        for name, (state, step, batch) in begun.items():
            rows = [batch(5 * turn + i) for i in range(5)]
            start = time.perf_counter()
            for own in rows:
                state, _ = step(state, own)
            jax.block_until_ready(state)
            if turn:  # The first one compiles.
                times[name].append((time.perf_counter() - start) / len(rows))
            begun[name] = state, step, batch
    unit = statistics.median(times[next(iter(times))])
    for name, found in times.items():
        print(json.dumps({"recipe": name, "step": statistics.median(found) / unit}), flush=True)


if __name__ == "__main__":
    binary.define_config_flags(CONFIGS, "autoformer_digits")
    binary.run(main)
