"""Compares search strategies on a table of real networks, over many seeds.

  python -m experiments.compare --benchmark=nasbench201 --seeds=1000 --evaluations=500 \\
      --strategies=random,regularized_evolution,reinforce_transformer --workdir=runs/compare

Strategies see the search metric (validation) only; reported is another metric (test) of the incumbent.
A strategy of your own is module:function, from (table, evaluations) to a strategy. What is done is
kept in the workdir: the same command goes on, and another one with more strategies adds them. Ends
with a table, comparison.json and report.html.
"""

from __future__ import annotations

import functools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments import config as config_lib
from experiments import strategies as strategies_lib
from jaxnas import search, stats, tabular
from jaxnas.report import comparison
from jaxnas.tabular.anytime import anytime
from jaxnas.training.progress import Progress
from jaxnas.training.workdir import open_workdir, read_json, write_json_atomic

_BENCHMARK = flags.DEFINE_string("benchmark", "nasbench201", "Name of the table.")
_STRATEGIES = flags.DEFINE_list(
    "strategies",
    ["random", "local", "regularized_evolution"],
    f"Names, or module:function. There are: {', '.join(strategies_lib.STRATEGIES)}.",
)
_SEEDS = flags.DEFINE_integer("seeds", 1000, "Searches of each strategy.", lower_bound=1)
_EVALUATIONS = flags.DEFINE_integer("evaluations", 500, "Of each search.", lower_bound=1)
_CHUNK = flags.DEFINE_integer("chunk", 200, "Searches that run at once.", lower_bound=1)
_METRIC = flags.DEFINE_string("metric", "validation_accuracy", "What the strategies see.")
_REPORT = flags.DEFINE_string("report_metric", "test_accuracy", "What is reported.")
_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the first search; the others follow.")


def evaluator(table: tabular.Table, metric: str) -> Any:
    """From a batch of architectures to scores, higher is better."""
    table.best(metric)  # raises if there is none, or no objective
    sign = 1.0 if table.objectives[metric] == "max" else -1.0
    look_up = table.metric(metric)
    return lambda archs: sign * jax.vmap(look_up)(archs)


def run_strategy(
    strategy: Any, evaluate: Any, seeds: int, chunk: int, folder: pathlib.Path, label: str
) -> dict[str, np.ndarray]:
    """All searches of one strategy, chunk by chunk, each kept as soon as it is done.

    Returns:
      codes int32 [S, N, L], scores float32 [S, N], seconds float64 [chunks] without compiling.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts, program = [], None
    many = jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluate)))
    with Progress(seeds, label=label) as progress:
        for first in range(0, seeds, chunk):
            size = min(chunk, seeds - first)
            path = folder / f"{_SEED.value + first}-{size}.npz"
            if not path.exists():
                numbers = jnp.arange(first, first + size) + _SEED.value
                keys = jax.vmap(jax.random.key)(numbers)
                if program is None or size != chunk:
                    program = many.lower(keys).compile()
                start = time.perf_counter()
                state = jax.block_until_ready(program(keys))
                seconds = time.perf_counter() - start
                part = path.with_suffix(".part")
                with open(part, "wb") as file:
                    np.savez(file, codes=state.codes, scores=state.scores, seconds=seconds)
                part.replace(path)
            with np.load(path, allow_pickle=False) as file:
                parts.append({name: file[name] for name in file.files})
            progress.update(first + size)
    joined = {name: np.concatenate([p[name] for p in parts]) for name in ("codes", "scores")}
    return joined | {"seconds": np.asarray([p["seconds"] for p in parts])}


def summarise(name: str, table: tabular.Table, ran: dict[str, np.ndarray]) -> dict[str, Any]:
    """The curves and figures of one strategy, for the table, the page and the JSON file."""
    curves = anytime(table, ran["codes"], ran["scores"], _METRIC.value, _REPORT.value)
    seeds, evaluations = curves.found.shape
    # As many points as a curve can show.
    at = np.unique(np.geomspace(1, evaluations, 120).round().astype(int)) - 1
    if np.isnan(curves.reported[:, at]).any(axis=0).all():
        raise ValueError(f"{name}: no search found an architecture that the table has.")

    def band(values: np.ndarray) -> dict[str, list[float]]:
        low, high = jax.vmap(
            lambda column: jnp.stack(
                stats.bootstrap_interval(jax.random.key(0), column, samples=400)
            ),
            in_axes=1,
            out_axes=1,
        )(jnp.asarray(values))
        return {
            "mean": np.mean(values, axis=0).tolist(),
            "low": np.asarray(low).tolist(),
            "high": np.asarray(high).tolist(),
        }

    reached = np.isfinite(curves.to_best)
    return {
        "name": name,
        "seeds": seeds,
        "evaluations": (at + 1).tolist(),
        "found": band(curves.found[:, at]),
        "reported": band(curves.reported[:, at]),
        "final": {
            "mean": float(np.mean(curves.reported[:, -1])),
            "std": float(np.std(curves.reported[:, -1])),
            "found_mean": float(np.mean(curves.found[:, -1])),
        },
        "networks": float(np.mean(curves.queried[:, -1])),
        "reached_best": float(np.mean(reached)),
        "queries_to_best": float(np.mean(curves.to_best[reached])) if reached.any() else None,
        "seconds_per_search": float(np.sum(ran["seconds"]) / seeds),
        "_at_points": curves.reported[:, at],
    }


def rank(summaries: list[dict[str, Any]], larger_is_better: bool) -> None:
    """Adds to each summary its mean rank among the strategies, search by search; 1 is best."""
    values = np.stack([s.pop("_at_points") for s in summaries])  # [strategies, seeds, points]
    values = -values if larger_is_better else values
    ranks = np.asarray(jax.vmap(jax.vmap(stats.ranks, 1, 1), 1, 1)(jnp.asarray(values)))
    for summary, mean in zip(summaries, ranks.mean(axis=1), strict=True):
        summary["rank"] = mean.tolist()


def show(result: dict[str, Any]) -> str:
    """The table that is printed."""
    lines = [
        f"{result['benchmark']}, {result['evaluations']} evaluations, {result['seeds']} seeds: "
        f"{result['report_metric']} of the best by {result['metric']} "
        f"(best of the table {result['best']['reported']:.4g})",
        f"{'strategy':32s} {'mean':>9s} {'std':>8s} {'networks':>9s} {'found best':>10s} "
        f"{'queries':>8s} {'ms/search':>10s}",
    ]
    for s in result["strategies"]:
        queries = "-" if s["queries_to_best"] is None else f"{s['queries_to_best']:.0f}"
        lines.append(
            f"{s['name']:32s} {s['final']['mean']:9.4f} {s['final']['std']:8.4f} "
            f"{s['networks']:9.0f} {100 * s['reached_best']:9.0f}% {queries:>8s} "
            f"{1e3 * s['seconds_per_search']:10.2f}"
        )
    return "\n".join(lines)


def check_same(workdir: pathlib.Path, settings: dict[str, Any]) -> None:
    """Refuses a workdir that holds another comparison; writes down which one this is."""
    path = workdir / "settings.json"
    if path.exists():
        before = read_json(path)
        changed = [
            f"{name} (there {before.get(name)}, now {value})"
            for name, value in settings.items()
            if before.get(name) != value
        ]
        if changed:
            raise ValueError(
                f"{workdir} holds a comparison with other settings: {'; '.join(changed)}. "
                "Choose another workdir."
            )
    write_json_atomic(path, settings)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    if not flags.FLAGS.workdir:
        raise app.UsageError("--workdir is missing. It is the directory that the run writes to.")
    made = {name: strategies_lib.find(name) for name in _STRATEGIES.value}
    table = tabular.load(_BENCHMARK.value, _DATA.value)
    evaluate = evaluator(table, _METRIC.value)
    evaluator(table, _REPORT.value)
    settings = dict(
        benchmark=_BENCHMARK.value,
        metric=_METRIC.value,
        evaluations=_EVALUATIONS.value,
        chunk=_CHUNK.value,
        seed=_SEED.value,
    )
    with open_workdir(flags.FLAGS.workdir) as workdir:
        check_same(workdir, settings)
        summaries = []
        for name, make in made.items():
            folder = workdir / "searches" / name.replace(":", "-")
            ran = run_strategy(
                make(table, _EVALUATIONS.value), evaluate, _SEEDS.value, _CHUNK.value, folder, name
            )
            summaries.append(summarise(name, table, ran))
        objective = table.objectives[_REPORT.value]
        rank(summaries, objective == "max")
        found_best, best_row = table.best(_METRIC.value)[1], table.best(_METRIC.value)[0]
        result = settings | {
            "seeds": _SEEDS.value,
            "report_metric": _REPORT.value,
            "objective": objective,
            "networks": table.unique,
            "best": {
                "found": found_best,
                "reported": table.best(_REPORT.value)[1],
                "reported_of_found": float(table.metric(_REPORT.value)(best_row)),
            },
            "device": jax.devices()[0].device_kind,
            "strategies": summaries,
        }
        write_json_atomic(workdir / "comparison.json", result)
        comparison.write(workdir / "report.html", result)
        print(show(result), f"Open {workdir / 'report.html'}", sep="\n")


if __name__ == "__main__":
    config_lib.define_run_flags()
    config_lib.run(main)
