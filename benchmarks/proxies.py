"""Rank correlation of zero-cost proxies with trained accuracy, on NAS-Bench-201's CIFAR-10.

  python -m benchmarks.proxies --networks=1000 --out=proxies.json
  python -m benchmarks.proxies --proxies=synflow --networks=15625 --cells=5 --seeds=1

Random distinct cells of the table are scored by one batch of training images, with the weights of one
supernet for each seed. Beside Spearman's and Kendall's coefficients stands what the proxies' authors
published for all 15,625 cells and networks of 5 cells a stage, and the number of parameters alone. Scores are
kept in --out: the same command resumes, and one with more networks, seeds or proxies adds them. Images are
those of `python -m tools.convert_data cifar10`. How many queries a search with a proxy needs is measured by

  jaxnas compare --seeds=40 --chunk=10 --evaluations=100 --seed=500 --workdir=runs/proxies \\
      --strategies=gaussian_process,benchmarks.proxy_strategies:gaussian_process_synflow
"""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from scipy.stats import kendalltau, spearmanr

import jaxnas
from benchmarks.nasbench201_network import NasBench201
from jaxnas import files, proxies, tabular
from jaxnas.data.images import load
from jaxnas.experiments import binary

_PROXIES = flags.DEFINE_list("proxies", list(proxies.PROXIES), f"Of {', '.join(proxies.PROXIES)}.")
_NETWORKS = flags.DEFINE_integer("networks", 1000, "Random distinct cells.", lower_bound=3)
_FIRST = flags.DEFINE_integer("first", 0, "The first seed.", lower_bound=0)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Initial weights, each with a batch of its own.", lower_bound=1)
_CELLS = flags.DEFINE_integer("cells", 1, "Of a stage; the benchmark's networks have 5.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 64, "Images.", lower_bound=2)
_CHUNK = flags.DEFINE_integer("chunk", 50, "Cells of a call, after which scores are kept.", lower_bound=1)
_DATA = flags.DEFINE_string("data_dir", None, "Where prepared images are; by default TFDS's own folder.")
_TABLES = flags.DEFINE_string("tables_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_OUT = flags.DEFINE_string("out", None, "JSON file with the scores, read and written.")

# Spearman, from the notebook nasbench201_correlations of the authors' repository (SamsungLabs/zero-cost-nas).
PUBLISHED = {"grad_norm": 0.594, "snip": 0.596, "grasp": 0.514, "synflow": 0.737, "jacob_cov": 0.731}


def batch(images: Any, seed: int) -> proxies.Batch:
    """Normalized training images, drawn at random."""
    train = images.train
    rows = np.random.default_rng(seed).choice(len(train.labels), _BATCH.value, replace=False)
    chosen = np.stack([train.images[int(row)] for row in rows]).astype(np.float32)
    return proxies.Batch((chosen - images.mean) / images.std, np.asarray(train.labels)[rows].astype(np.int32))


def add(scores: dict[str, list[float]], names: list[str], codes: np.ndarray, *given: Any) -> bool:
    """Adds the scores of the next cells to those that are there; False if there are none left.

    Args:
      scores: by proxy.
      names: of proxies.
      codes: of all cells, int [n, edges].
      *given: variables and batch.
    """
    known = min(len(scores.get(name, [])) for name in names)
    part = codes[known : known + _CHUNK.value]
    if not len(part):
        return False
    net, (variables, images) = NasBench201(cells=_CELLS.value), given
    padded = np.resize(part, (_CHUNK.value, part.shape[1]))  # so that one program serves every call
    found = proxies.score(net, variables, net.space.decode(jnp.asarray(padded)), images, names)
    for name, values in found.items():
        scores[name] = [*scores.get(name, [])[:known], *np.asarray(values, np.float64)[: len(part)].tolist()]
    return True


def correlations(values: Any, accuracy: np.ndarray) -> tuple[float, float]:
    """Spearman's and Kendall's coefficients; a score that is no number ranks last."""
    ranked = np.nan_to_num(np.asarray(values, np.float64), nan=-np.inf, neginf=-np.inf)
    return float(spearmanr(ranked, accuracy).statistic), float(kendalltau(ranked, accuracy).statistic)


def row(name: str, found: list[tuple[float, float]], count: int) -> str:
    """A row of the table: means and standard deviations over the seeds."""
    means, deviations = np.mean(found, 0), np.std(found, 0)
    cells = [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in zip(means, deviations, strict=True)]
    return f"| {name} | {count:,} | {' | '.join(cells)} | {PUBLISHED.get(name, '')} |"


def main() -> None:
    table = tabular.load("nasbench201", _TABLES.value)
    order = np.random.default_rng(0).permutation(len(table.codes))[: _NETWORKS.value]
    codes, accuracy = np.asarray(table.codes)[order], table.metrics["test_accuracy"][order]
    settings = {"cells": _CELLS.value, "batch": _BATCH.value}
    record: dict[str, Any] = {"settings": settings, "scores": {}}
    if _OUT.value and os.path.exists(_OUT.value):
        record = files.read_json(_OUT.value)
        if record["settings"] != settings:
            raise ValueError(
                f"--out={_OUT.value} is of other settings: {record['settings']}, not {settings}."
            )
    images, names = load("cifar10", data_dir=_DATA.value), _PROXIES.value
    begun = time.perf_counter()
    seeds = range(_FIRST.value, _FIRST.value + _SEEDS.value)
    for seed in seeds:
        scores = record["scores"].setdefault(str(seed), {})
        given = batch(images, seed)
        variables = jaxnas.init(NasBench201(cells=_CELLS.value), jax.random.key(seed), given.inputs)
        while add(scores, names, codes, variables, given):
            done = len(scores[names[0]])
            print(f"seed {seed}: {done} cells, {time.perf_counter() - begun:.0f} s", flush=True)
            if _OUT.value:
                files.write_json(_OUT.value, record)
    print("\n| proxy | cells | Spearman | Kendall | published Spearman |\n|---|---|---|---|---|")
    for name in names:
        every = [record["scores"][str(seed)][name][: len(codes)] for seed in seeds]
        print(row(name, [correlations(values, accuracy) for values in every], len(codes)))
    for name in ("params", "macs"):
        print(row(name, [correlations(table.metrics[name][order], accuracy)], len(codes)))


if __name__ == "__main__":
    binary.run(main)
