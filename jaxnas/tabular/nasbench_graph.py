"""NAS-Bench-Graph (arXiv 2206.09166): graph neural networks of 4 operations in a tree."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxnas.choice import Choice
from jaxnas.space import Space
from jaxnas.tabular.index import Dense
from jaxnas.tabular.table import Table, from_arrays

# The data sets of each file: those of a file were measured with the same cells.
SETS = {
    "nasbench_graph": ("cora", "citeseer", "pubmed"),
    "nasbench_graph_more": ("cs", "physics", "photo", "computers", "arxiv"),
    "nasbench_graph_proteins": ("proteins",),
}
OPS = ("gat", "gcn", "gin", "cheb", "sage", "arma", "graph", "fc", "skip")
PROTEINS_OPS = ("gcn", "sage", "arma", "fc", "skip")
# Digit k is what node k + 1 reads: 0 is the input, d is node d. What no node reads is the output.
LINKS = tuple(f"0{a}{b}{c}" for a in range(2) for b in range(3) for c in range(4))
SPACE = Space(links=Choice(*LINKS), op=Choice(*OPS).repeat(4))
PROTEINS_SPACE = Space(links=Choice(*LINKS), op=Choice(*PROTEINS_OPS).repeat(4))
PATHS = {stem: f"nasbench_graph/{stem}.npz" for stem in SETS}


def operations(data: str) -> tuple[str, ...]:
    """The operations that the cells of a data set choose from."""
    return PROTEINS_OPS if data == "proteins" else OPS


def table(name: str, arrays: Mapping[str, np.ndarray]) -> Table:
    """Makes the table "nasbench_graph_<set>" of the file's arrays.

    Equal cells share a row; its code is the first of these cells in the order of the space. The 24
    cells of `skip` only have no row.

    Metrics: validation_accuracy, test_accuracy (from 0 to 1), latency (as the benchmark gives it:
    seconds), params (millions).
    """
    data = name.removeprefix("nasbench_graph_")
    space = PROTEINS_SPACE if data == "proteins" else SPACE
    rows = arrays["canon_row"].reshape(-1)
    found, first = np.unique(rows, return_index=True)
    first = first[found >= 0]
    codes = np.stack(np.unravel_index(first, tuple(space.sizes)), axis=1).astype(np.int32)
    metrics = {
        "validation_accuracy": arrays[f"{data}.valid_perf"],
        "test_accuracy": arrays[f"{data}.perf"],
        "latency": arrays[f"{data}.latency"],
        "params": arrays[f"{data}.para"],
    }
    objectives = {key: "max" if "accuracy" in key else "min" for key in metrics}
    made = from_arrays(name, space, space.decode(codes), metrics, objectives)
    return dataclasses.replace(made, pool=False, index=Dense(space.sizes, rows))  # also of the equal cells
