"""Searches on workers: what they gain in time, what they lose in quality, and failing evaluations.

  python -m experiments.benchmarks.workers --workers=1,4 --seeds=10 --evaluations=100
  python -m experiments.benchmarks.workers --workers=1 --fail_below=85 --seeds=10

The evaluation of a cell of NAS-Bench-201 looks up its accuracy and then waits for a ten-thousandth of the
time that its training took, so that evaluations are as uneven as trainings are. Cells whose validation
accuracy is below --fail_below raise. Printed is, for each strategy and number of workers, over seeds: test
accuracy of the best cell by validation, evaluations until the class of the best cell, the time of a search
over the sum of what its evaluations waited, and how many evaluations failed.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags
from threadpoolctl import threadpool_limits

from experiments import binary, strategies
from jaxnas import search, tabular

_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_STRATEGIES = flags.DEFINE_list(
    "strategies", ["random", "regularized_evolution_unique", "reinforce", "gaussian_process"], "Names."
)
_WORKERS = flags.DEFINE_list("workers", ["1", "4"], "Numbers of workers.")
_SEEDS = flags.DEFINE_integer("seeds", 10, "Searches of each strategy.", lower_bound=1)
_EVALUATIONS = flags.DEFINE_integer("evaluations", 100, "Of each search.", lower_bound=1)
_FAIL_BELOW = flags.DEFINE_float("fail_below", 0.0, "Cells of a smaller validation accuracy fail.")
_SCALE = flags.DEFINE_float("scale", 1e-4, "Waiting time, as a part of the training's.")


@dataclasses.dataclass
class Evaluation:
    """From the options of a cell to its validation accuracy, after a while; sums up the waiting time."""

    look_up: Callable[[Any], dict[str, Any]]
    table: tabular.Table
    waited: float = 0.0
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    def __call__(self, values: dict[str, Any]) -> float:
        found = self.look_up(self.table.space.from_dict(values))
        seconds = _SCALE.value * float(found["training_seconds"])
        with self.lock:
            self.waited += seconds
        time.sleep(seconds)
        score = float(found["validation_accuracy"])
        if score < _FAIL_BELOW.value:
            raise ArithmeticError("the training diverged")
        return score


def run(strategy: search.Strategy, table: tabular.Table, workers: int, seed: int) -> tuple[float, ...]:
    """Test accuracy, evaluations to the best class, time over waiting time, and failures of one search."""
    evaluate = Evaluation(jax.jit(table.lookup), table)
    evaluate.look_up(table.space.smallest())  # compiled before the time counts
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        begun = time.perf_counter()
        result = search.run_parallel(strategy, evaluate, jax.random.key(seed), workers=workers, executor=pool)
        seconds = time.perf_counter() - begun
    best = table.best("validation_accuracy")[1]
    scores = [line["score"] for line in result.history]
    hits = [i + 1 for i, score in enumerate(scores) if score is not None and score >= best - 1e-5]
    test = float(evaluate.look_up(result.arch)["test_accuracy"])
    return test, hits[0] if hits else np.inf, seconds / evaluate.waited, result.failed


def main() -> None:
    table = tabular.load("nasbench201", _DATA.value)
    for name in _STRATEGIES.value:
        strategy = dataclasses.replace(strategies.find(name)(table, _EVALUATIONS.value), batch=1)
        run(strategy, table, 1, 999)  # compiles
        for workers in map(int, _WORKERS.value):
            one = functools.partial(run, strategy, table, workers)
            test, hits, share, failed = np.asarray([one(seed) for seed in range(_SEEDS.value)]).T
            print(
                f"{name:30} {workers} workers: test {test.mean():.3f} +- {test.std():.3f}, "
                f"best class found by {np.mean(np.isfinite(hits)):4.0%}, median after {np.median(hits):g}, "
                f"time / waiting {np.median(share):.2f}, failed {failed.mean():.1f}",
                flush=True,
            )


if __name__ == "__main__":
    # See `predictors.GaussianProcess`: on a busy machine threads of BLAS wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        binary.run(main)
