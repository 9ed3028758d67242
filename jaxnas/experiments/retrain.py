"""Trains one architecture alone, on all training data, and measures it.

  jaxnas retrain --config=autoformer_digits --workdir=runs/digits --architecture=found
  jaxnas retrain --config=autoformer_digits --workdir=runs/digits --weights=inherited
  jaxnas retrain --config=autoformer_digits --workdir=runs/digits --seeds=0,1,2 \\
      --executor=processes --workers=2

Writes workdir/retrained/<architecture>-<weights>-<seed>, resumes there, and is entered in the page of the
search, if there is one: its subnet/ then has the found network with the weights trained alone. Nothing is
held out of this training, so it sees the search role too. With several seeds each retraining is a job of its
own, here in turn or on workers that reach the workdir and the data.
"""

from __future__ import annotations

import numpy as np
from absl import flags

from jaxnas import executors, processes, runs
from jaxnas.experiments import binary
from jaxnas.experiments import jobs as jobs_lib
from jaxnas.experiments.configs import CONFIGS
from jaxnas.report.page import summary_lines
from jaxnas.report.result import NAME
from jaxnas.training.progress import times_line


def seeds_of(texts: list[str]) -> list[int]:
    """The seeds of --seeds; ValueError for something else than different numbers of at least 0."""
    if not all(text.isdecimal() for text in texts) or len({*map(int, texts)}) < len(texts):
        raise ValueError(f"--seeds={','.join(texts)}: expected different whole numbers, such as 0,1,2.")
    return [int(text) for text in texts]


def main() -> int:
    values = flags.FLAGS
    _, root = binary.read_config(CONFIGS, trains=True)
    seeds: list[int | None] = [*seeds_of(values.seeds)] or [None]
    jobs = [(binary.asked(), values.architecture, values.weights, seed) for seed in seeds]
    found = {}
    with binary.executor() as executor:
        for number, returned in executors.as_completed(jobs_lib.retraining, jobs, executor):
            if returned is not None:
                found[number] = returned
            elif executor is None:  # A signal to this process is meant for all that would follow.
                break
    done = [found[number] for number in sorted(found)]
    if done and (root / NAME).is_file() and processes.is_first():
        runs.publish(root)
        print("\n".join(summary_lines(root)), flush=True)
    for metrics, times in done:
        for role, measured in metrics.items():
            text = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
            print(f"{role}: {text}", flush=True)
        print(times_line(times), flush=True)
    if len(done) < len(jobs):
        print("stopped and saved; the same command resumes", flush=True)
        return binary.STOPPED
    if len(done) > 1:
        for role, measured in done[0][0].items():
            spread = {name: [metrics[role][name] for metrics, _ in done] for name in measured}
            text = ", ".join(f"{k} {np.mean(x):.4g} +- {np.std(x, ddof=1):.2g}" for k, x in spread.items())
            print(f"{role}, mean and deviation of {len(done)} seeds: {text}", flush=True)
    return 0


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    binary.define_executor_flags()
    flags.DEFINE_string(
        "architecture",
        "found",
        "found, smallest, largest, a name of the config's, random:K, or option values as JSON.",
    )
    flags.DEFINE_enum("weights", "scratch", ["scratch", "inherited"], "What to start from.")
    flags.DEFINE_list("seeds", [], "Of several retrainings, as 0,1,2; by default the config's seed.")
    binary.run(main)
