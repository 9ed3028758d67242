"""Compares search strategies on a table of real networks, over many seeds.

  jaxnas compare --benchmark=nasbench201 --seeds=1000 --evaluations=500 \\
      --strategies=random,regularized_evolution,reinforce_transformer --workdir=runs/compare

Strategies see the search metric (validation) only; reported is another metric (test) of the incumbent.
A strategy of your own is module:function, from (table, evaluations) to a strategy. A table of your own
is module:function, without arguments, or a CSV file. --objectives names the metrics of such a file, and
each other column is a choice.

  PYTHONPATH=examples jaxnas compare --benchmark=own_table:table --seeds=200 \\
      --evaluations=30 --strategies=random,own_strategy:marginals --workdir=runs/own

Results are kept in the workdir: the same command resumes, and one with more strategies adds them.
Where the code of a strategy has changed, its searches are run again. Ends with a table,
comparison.json, report.html, and where the time of this command went, in times.json too.

With a strategy that races over fidelities (hyperband, successive_halving) all are compared at equal
simulated seconds: its budget is the time of so many mean full trainings, each evaluation costs what
the table says, and the incumbent is of the highest fidelity.

  jaxnas compare --seeds=200 --evaluations=200 --at=20,50,100,200 \\
      --strategies=random,regularized_evolution,hyperband --workdir=runs/seconds

Chunks of searches are independent jobs. They run one after another here, on processes of this machine, or
on a cluster of Ray, with the same results, by --executor. A chunk of 50 searches with a Gaussian process
takes about 3 GB of memory for 100 evaluations, and 11 GB for 500.

  jaxnas compare --strategies=random,gaussian_process --executor=processes --workers=2 \\
      --seeds=200 --evaluations=40 --chunk=50 --workdir=runs/guided
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
import scipy.stats
from absl import flags, logging

from jaxnas import display, executors, files, tabular
from jaxnas.experiments import binary, tables
from jaxnas.experiments import searches as searches_lib
from jaxnas.experiments import strategies as strategies_lib
from jaxnas.experiments.config import ConfigError
from jaxnas.experiments.searches import Searches
from jaxnas.report import comparison, words
from jaxnas.report.page import write as write_page
from jaxnas.tabular.anytime import Anytime, anytime, at_seconds, spent_seconds
from jaxnas.training.progress import Clock, Progress, times_line
from jaxnas.training.workdir import open_workdir

_BENCHMARK = flags.DEFINE_string(
    "benchmark", "nasbench201", "Name of the table, path/to/my.csv, or module:function."
)
_OBJECTIVES = flags.DEFINE_list(
    "objectives", [], "The metrics of a CSV file: accuracy=max,seconds=min. Each other column is a choice."
)
_IGNORE = flags.DEFINE_list("ignore", [], "Columns of a CSV file that are neither metrics nor choices.")
_STRATEGIES = flags.DEFINE_list(
    "strategies",
    ["random", "local", "regularized_evolution"],
    "Names, or module:function. `jaxnas` lists the names.",
)
_SEEDS = flags.DEFINE_integer("seeds", 1000, "Searches of each strategy.", lower_bound=1)
_EVALUATIONS = flags.DEFINE_integer("evaluations", 500, "Of each search.", lower_bound=1)
_CHUNK = flags.DEFINE_integer("chunk", 200, "Searches that run at once.", lower_bound=1)
_METRIC = flags.DEFINE_string(
    "metric",
    None,
    "What the strategies see; by default validation_accuracy, else the first metric with an objective.",
)
_REPORT = flags.DEFINE_string(
    "report_metric", None, "What is reported; by default test_accuracy, else what the strategies see."
)
_AT = flags.DEFINE_list(
    "at", [], "Evaluations (or full trainings' seconds) after which the result is printed, too."
)
_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the first search; the others follow.")


def run_searches(
    every: Mapping[str, Searches],
    folders: Mapping[str, pathlib.Path],
    executor: Executor | None,
    clock: Clock,
) -> dict[str, list[dict[str, np.ndarray]]]:
    """All searches of all strategies, chunk by chunk, each kept in its folder as soon as it is done.

    Returns the chunks of each strategy in the order of their seeds, as `searches.run` gives them.
    """
    begin, end = _SEED.value, _SEED.value + _SEEDS.value
    sizes = {first: min(_CHUNK.value, end - first) for first in range(begin, end, _CHUNK.value)}
    chunks = {
        folders[name] / f"{first}-{size}.npz": (searches, first, size)
        for name, searches in every.items()
        for first, size in sizes.items()
    }
    with clock.part("checkpoint"):
        parts: dict[pathlib.Path, Any] = {
            path: read_part(path, searches, size) for path, (searches, _, size) in chunks.items()
        }
    missing = [path for path, part in parts.items() if part is None]
    total, left = len(every) * _SEEDS.value, sum(chunks[path][-1] for path in missing)
    with Progress(total, total - left, label="searches") as progress:
        jobs = [chunks[path] for path in missing]
        for number, part in clock.waiting("search", executors.as_completed(searches_lib.run, jobs, executor)):
            path = missing[number]
            with clock.part("checkpoint"):
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_arrays(path, part)
            parts[path] = part
            left -= chunks[path][-1]
            progress.update(total - left)
    return {name: [parts[path] for path in parts if path.parent == folders[name]] for name in every}


def read_part(path: pathlib.Path, searches: Searches, size: int) -> dict[str, np.ndarray] | None:
    """The searches of a chunk that are done; None, with a warning, where they must be run again."""
    if not path.exists():
        return None
    part, wrong = {}, ""
    try:
        part = files.read_arrays(path)
    except ValueError as error:
        wrong = str(error)
    if not wrong and (set(part) != searches.arrays or {len(part["codes"]), len(part["scores"])} != {size}):
        wrong = f"{path} does not hold {size} searches of this comparison"
    if not wrong and str(part["source"]) != searches.source:
        wrong = f"{path}: the code of the strategy has changed since"
    if wrong:
        logging.warning("%s. Its searches are run again.", wrong)
    return None if wrong else part


@dataclasses.dataclass(frozen=True)
class Curves(Anytime):
    """The results of a strategy along the axis of the comparison.

    Attributes:
      spent: simulated seconds after each evaluation, None if the axis is evaluations; [S, N].
    """

    spent: np.ndarray | None

    def at(self, name: str, points: np.ndarray) -> np.ndarray:
        """A curve at so many evaluations or seconds, float32 [S, points]."""
        values = getattr(self, name)
        if self.spent is None:
            return values[:, np.asarray(points, int) - 1]
        return at_seconds(values, self.spent, points)


def curves_of(
    table: tabular.Table,
    strategy: Any,
    ran: dict[str, np.ndarray],
    end: float | None,
    metric: str,
    report: str,
) -> Curves:
    """The curves of one strategy, by the arrays of `searches.run`; with fidelities of its full evaluations.

    `end` is the budget in seconds, None where evaluations count; what ends after it was not found.
    """
    codes, scores, spent = ran["codes"], ran["scores"], None
    if strategy.fidelities is not None:
        spent = np.cumsum(ran["spent"], axis=1, dtype=np.float64)
        full = ran["fidelity"] == strategy.fidelities - 1
        codes = np.where(full[..., None], codes, -1)
        scores = np.where(full, scores, np.nan)
    elif end is not None:
        spent = spent_seconds(table, codes)
    if end is not None and spent is not None:
        late = spent > end
        codes, scores = np.where(late[..., None], -1, codes), np.where(late, np.nan, scores)
    return Curves(**vars(anytime(table, codes, scores, metric, report)), spent=spent)


def marks_of(texts: list[str], evaluations: int) -> np.ndarray:
    """The numbers of --at; ValueError for something else than numbers within the budget."""
    try:
        marks = np.asarray([float(text) for text in texts])
    except ValueError:
        marks = np.zeros(1)
    if np.any((marks < 1) | (marks > evaluations)):
        raise ValueError(f"--at={','.join(texts)}: expected numbers from 1 to the {evaluations} evaluations.")
    return marks


def points_of(every: dict[str, Curves], unit: float | None) -> np.ndarray:
    """Where curves are drawn, as many points as one can show: evaluations, or seconds.

    They start where every search has an incumbent; ValueError where one never has. `unit` is the seconds of a
    full training, or None.
    """
    end, first = _EVALUATIONS.value * (unit or 1), 0.0
    for name, curves in every.items():
        spent = np.arange(1, curves.reported.shape[1] + 1) if curves.spent is None else curves.spent
        first = max(first, np.where(np.isfinite(curves.reported), spent, np.inf).min(axis=1).max())
        if first > end:
            what = "asked for an architecture that has a row in the table with both metrics"
            if curves.spent is not None:
                what = f"had a full evaluation within the {end:.0f} seconds of so many mean full trainings"
            raise ValueError(f"{name}: some search never {what}: give more --evaluations, or leave it out.")
    points = np.geomspace(first, end, 120)
    return np.unique(points.round().astype(int)) if unit is None else points


def summarize(
    name: str, curves: Curves, seconds: np.ndarray, at: np.ndarray, marks: np.ndarray
) -> dict[str, Any]:
    """The curves and figures of one strategy, for the table, the page and the JSON file."""
    found, reported = curves.at("found", at), curves.at("reported", at)
    seeds = len(found)
    keys = jax.random.split(jax.random.key(0), 400)
    resamples = np.asarray(jax.vmap(lambda key: jax.random.randint(key, (seeds,), 0, seeds))(keys))

    def band(values: np.ndarray) -> dict[str, list[float]]:
        """The mean of the searches, and 95 % of its bootstrap distribution."""
        means = np.stack([np.mean(values[rows], axis=0, dtype=float) for rows in resamples])
        low, high = np.quantile(means, (0.025, 0.975), axis=0)
        return {"mean": np.mean(values, axis=0).tolist(), "low": low.tolist(), "high": high.tolist()}

    def spread(column: np.ndarray) -> dict[str, float] | None:
        """None before some search has an incumbent."""
        known = not np.isnan(column).any()
        return {"mean": float(np.mean(column)), "std": float(np.std(column))} if known else None

    reached = np.isfinite(curves.to_best)
    # A search that never found it took longer than any that did.
    median = float(np.quantile(np.where(reached, curves.to_best, np.inf), 0.5, method="higher"))
    marked = curves.at("reported", marks)
    return {
        "name": name,
        "seeds": seeds,
        "evaluations" if curves.spent is None else "simulated_seconds": at.tolist(),
        "found": band(found),
        "reported": band(reported),
        "final": {**(spread(reported[:, -1]) or {}), "found_mean": float(np.mean(found[:, -1]))},
        "at": {text: spread(column) for text, column in zip(_AT.value, marked.T, strict=True)},
        "networks": float(np.mean(curves.queried[:, -1])),
        "reached_best": float(np.mean(reached)),
        "median_queries_to_best": median if np.isfinite(median) else None,
        "mean_queries_of_successes": float(np.mean(curves.to_best[reached])) if reached.any() else None,
        "seconds_per_search": float(np.sum(seconds) / seeds),
        "_at_points": reported,
    }


def rank(summaries: list[dict[str, Any]], larger_is_better: bool) -> None:
    """Adds to each summary its mean rank among the strategies, search by search; 1 is best."""
    values = np.stack([s.pop("_at_points") for s in summaries])  # [strategies, seeds, points]
    values = -values if larger_is_better else values
    ranks = scipy.stats.rankdata(values, axis=0)
    for summary, mean in zip(summaries, ranks.mean(axis=1), strict=True):
        summary["rank"] = mean.tolist()


def show(result: dict[str, Any]) -> str:
    """The tables that are printed."""
    budget = f"{result['evaluations']} evaluations"
    if "seconds" in result:
        budget = f"{result['seconds']:.4g} simulated seconds ({result['evaluations']} full trainings)"
    title = (
        f"{result['benchmark']}, {budget}, {result['seeds']} seeds: {result['report_metric']} of the best by "
        f"{result['metric']} (best of the table {result['best']['reported']:.4g})"
    )
    note = "The median is over all searches; one that did not find the best counts as longer than all others."
    lines = [title, *_aligned(comparison.table(result)), note]
    if _AT.value:
        what = "seconds of so many full trainings" if "seconds" in result else "so many evaluations"
        cells = {
            s["name"]: [f"{x['mean']:.4f} +- {x['std']:.4f}" if x else "-" for x in s["at"].values()]
            for s in result["strategies"]
        }
        rows = [[name, *own] for name, own in cells.items()]
        lines += [f"mean +- std after {what}:", *_aligned({"head": ["", *_AT.value], "rows": rows})]
    return "\n".join(lines)


def _aligned(table: dict[str, Any]) -> list[str]:
    """The lines of a table, with the names of its rows to the left and all else to the right."""
    rows = [table["head"], *table["rows"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).replace(words.NBSP, " ")
        for row in rows
    ]


def check_reach(name: str, strategy: Any, table: tabular.Table) -> None:
    """Raises ValueError for a strategy that would hardly meet any architecture that the table has."""
    share = len(table) / table.space.cardinality
    if table.pool and strategy.pool is None and share * strategy.evaluations < 1:
        raise ValueError(
            f"{name} asks for architectures of the whole space, of which {table.name} has {len(table)} of "
            f"{display.count(table.space.cardinality)}. For such a table take strategies with a pool, such "
            "as pool_random and gaussian_process."
        )


def check_same(workdir: pathlib.Path, settings: dict[str, Any]) -> None:
    """Refuses a workdir of another comparison or run; writes down which one this is."""
    path, wrong = workdir / "settings.json", ""
    if path.exists():
        before = files.read_json(path)
        if not isinstance(before, dict):
            wrong = f"{path} holds no settings of a comparison"
        elif changed := files.diff(before, settings, names=("there", "now")):
            wrong = f"{workdir} holds a comparison with other settings: {'; '.join(changed)}"
    elif others := [name for name in ("result.json", "checkpoints") if (workdir / name).exists()]:
        has = " and ".join(others)
        wrong = f"{workdir} has {has} of another run, whose report and times would be lost"
    if wrong:
        raise ValueError(f"{wrong}. Choose another workdir.")
    files.write_json(path, settings)


def main() -> None:
    if not flags.FLAGS.workdir:
        raise ConfigError("--workdir is missing. It is the directory that the run writes to")
    clock = Clock(("input", "search", "checkpoint"))
    found = {name: strategies_lib.find(name) for name in _STRATEGIES.value}
    if not found:
        raise ValueError("--strategies is empty. `jaxnas` lists them.")
    # A worker may stand in another folder.
    where = binary.absolute(_BENCHMARK.value, ".csv"), _DATA.value and binary.absolute(_DATA.value)
    place = *where, tuple(_OBJECTIVES.value), tuple(_IGNORE.value)
    with clock.part("input"):
        table = searches_lib.table_of(*place)
    if _EVALUATIONS.value > table.unique:
        raise ValueError(
            f"--evaluations={_EVALUATIONS.value}, but {table.name} has {table.unique} different networks."
        )
    metric, report = tables.metrics(table, _METRIC.value, _REPORT.value)
    searches_lib.evaluator(table, metric)
    searches_lib.evaluator(table, report)
    marks = marks_of(_AT.value, _EVALUATIONS.value)
    with clock.part("input"):  # Some learn from the whole table first.
        made = {name: searches_lib.strategy_of(name, _EVALUATIONS.value, place) for name in found}
    for name, strategy in made.items():
        check_reach(name, strategy, table)
    unit, end, most = None, None, None
    if any(strategy.fidelities is not None for strategy in made.values()):
        searches_lib.fidelity_evaluator(table, metric)
        unit = strategies_lib.full_seconds(table)
        end = _EVALUATIONS.value * unit
        # Whoever asks for cheap networks has time for more of them.
        most = min(_EVALUATIONS.value * 3 // 2, table.unique)
    settings = dict(
        benchmark=_BENCHMARK.value,
        table_sha256=searches_lib.digest(table, metric),
        metric=metric,
        evaluations=_EVALUATIONS.value,
        chunk=_CHUNK.value,
        seed=_SEED.value,
    )
    every = {
        name: Searches(
            *(name, place, metric, _EVALUATIONS.value),
            most=most if strategy.fidelities is None else None,
            fidelities=strategy.fidelities is not None,
            table_sha256=settings["table_sha256"],
            source=searches_lib.source_of(found[name], strategy),
        )
        for name, strategy in made.items()
    }
    with open_workdir(flags.FLAGS.workdir) as workdir:
        check_same(workdir, settings)
        ending = "" if end is None else "-seconds"
        folders = {name: workdir / "searches" / (name.replace(":", "-") + ending) for name in every}
        with binary.executor() as executor:
            parts = run_searches(every, folders, executor, clock)
        curves, seconds = {}, {}
        for name, strategy in made.items():
            joined = every[name].arrays - {"seconds", "source"}
            ran = {array: np.concatenate([part[array] for part in parts[name]]) for array in joined}
            curves[name] = curves_of(table, strategy, ran, end, metric, report)
            seconds[name] = np.asarray([part["seconds"] for part in parts.pop(name)])
        at, marks = points_of(curves, unit), marks * (unit or 1)
        summaries = [summarize(name, curves[name], seconds[name], at, marks) for name in curves]
        objective = table.objectives[report]
        rank(summaries, objective == "max")
        best_arch, found_best = table.best(metric)
        result = settings | {
            "seeds": _SEEDS.value,
            "report_metric": report,
            "objective": objective,
            "networks": table.unique,
            **({} if end is None else {"seconds": end}),
            "best": {
                "found": found_best,
                "reported": table.best(report)[1],
                "reported_of_found": float(table.metric(report)(best_arch)),
            },
            "device": jax.devices()[0].device_kind,
            "strategies": summaries,
        }
        files.write_json(workdir / "comparison.json", result)
        write_page(workdir)
        times = clock.shares("report")
        files.write_json(workdir / "times.json", times)  # of this command: what was done before is read
        print(show(result), times_line(times), f"Open {workdir / 'report.html'}", sep="\n")


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Directory of the run; made if it is not there. Required.")
    binary.define_executor_flags()
    binary.run(main)
