"""NAS-Bench-201 (arXiv 2001.00326): cells of 4 nodes, an operation on each of 6 edges; on three data sets."""

from collections.abc import Mapping

import numpy as np

from jaxnas.choice import Choice
from jaxnas.space import Space
from jaxnas.tabular.table import Table, from_arrays

# fmt: off
OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
# From node to node, int32 [6, 2]; node 0 is the input of a cell, node 3 its output.
EDGES = np.asarray([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)], np.int32)
EDGES.flags.writeable = False
# fmt: on
SPACE = Space(op=Choice(*OPS).repeat(len(EDGES)))
PATHS = {data: f"nb201/nb201_{data}.npz" for data in ("cifar10", "cifar100", "imagenet16_120")}


def classes(ops: np.ndarray) -> np.ndarray:
    """Classes of equal networks, numbered from 0 in order of appearance, int32 [cells].

    These are the classes that the benchmark publishes: 6,466 of the 15,625 cells. It contracts `skip_connect`
    and drops what `none` cuts off, but keeps zeros as terms of a sum and (a + b) + c apart from a + (b + c).

    Args:
      ops: indices into OPS, int [cells, 6], edges in the order of EDGES.
    """
    known: dict[str, int] = {}
    cells = np.asarray(ops).tolist()
    return np.asarray([known.setdefault(_formula(cell), len(known)) for cell in cells], np.int32)


def _formula(cell: list[int]) -> str:
    """A cell as a sum of terms; equal cells give equal text."""
    nodes: list[list[str]] = [["x"]]  # of each node the terms of its sum
    zero = ["#"]
    for node in (1, 2, 3):
        terms: list[str] = []
        for (start, end), op in zip(EDGES.tolist(), cell, strict=True):
            if end != node:
                continue
            source, name = nodes[start], OPS[op]
            if name == "none" or source == zero:
                terms += zero
            elif name == "skip_connect":
                # The published form takes a sum as one term, and sorts it among the others so.
                terms.append("+".join(source))
            else:
                terms.append(f"({'+'.join(source)})@{name}")
        nodes.append(sorted(terms))
    return "+".join(nodes[-1])


def table(name: str, arrays: Mapping[str, np.ndarray], data: str) -> Table:
    """Makes the table of a file's arrays; a converted file lacks the test and 12 epochs.

    Metrics (accuracies in percent, `_12` after 12 epochs instead of 200; means of the runs that
    were made, 2 or 3 of validation):
      validation_accuracy, validation_accuracy_12, test_accuracy, test_accuracy_12.
      training_seconds; training_seconds_12 is 12/200 of it.
      params: millions.
      macs: millions; the benchmark calls them FLOPs.
      latency_api: ms, as the benchmark gives it; latency_<device>: ms, the number after some
        devices is the batch size. About 300 rows each of pixel3 and raspi4 are implausibly small.
    """
    seconds = arrays[f"{data}_train_time_200ep_s"].astype(np.float64)
    metrics = {
        "validation_accuracy": np.nanmean(arrays[f"{data}_val_200ep_seeds"].astype(np.float64), axis=1),
        "training_seconds": seconds,
        "training_seconds_12": seconds * 12 / 200,
        "params": arrays[f"{data}_params_M"],
        "latency_api": arrays[f"{data}_api_latency_s"].astype(np.float64) * 1000,
    }
    for metric, key in (
        ("test_accuracy", f"{data}_test_200ep_mean"),
        ("validation_accuracy_12", f"{data}_val_12ep"),
        ("test_accuracy_12", f"{data}_test_12ep"),
        ("macs", f"flops_{data}_M"),
    ):
        if key in arrays:
            metrics[metric] = arrays[key]
    metrics |= {metric: x for metric, x in arrays.items() if metric.startswith("latency_")}
    return from_arrays(
        name,
        SPACE,
        SPACE.decode(arrays["ops"]),
        metrics,
        {metric: "max" if "accuracy" in metric else "min" for metric in metrics},
        classes(arrays["ops"]),
    )
