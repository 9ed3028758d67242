"""NAS-Bench-Graph (arXiv 2206.09166): graph neural networks of 4 operations in a tree."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxnas.choice import Choice
from jaxnas.space import Space
from jaxnas.tabular import files
from jaxnas.tabular.index import Dense
from jaxnas.tabular.table import Table, make

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
_DIGESTS = {
    "nasbench_graph": "ffeae9363b476cc2d2d190bc17c136c3c81b9a5df411c885e58d5f2a7b468101",
    "nasbench_graph_more": "678c4aabb61ff09af2db3b3fec70bfd5a0ac3bca23e6ff3cfc5329feeca885a2",
    "nasbench_graph_proteins": "00de0e38144f6ce3e8358faa32ed1f2dc82b29c818395d3a9f9bf02f18d449ab",
}
FILES = {
    stem: files.File(
        f"nasbench_graph/{stem}.npz",
        (digest,),
        "`pip download --no-deps nas-bench-graph==1.4.0`, then in a clone `python -m "
        "tools.convert_tables --nasbench_graph WHEEL --out DIRECTORY` makes it.",
    )
    for stem, digest in _DIGESTS.items()
}


def operations(data: str) -> tuple[str, ...]:
    """The operations that the cells of a data set choose from."""
    return PROTEINS_OPS if data == "proteins" else OPS


def formula(links: Sequence[int], ops: Sequence[int], names: Sequence[str] = OPS) -> str:
    """A cell as text that is equal for equal networks; "" for one of `skip` only.

    Args:
      links: what each node reads, [4].
      ops: indices into the names, [4].
      names: of the operations.

    A `skip` that others read is contracted, and so is an only reader that is a `skip`. The input
    itself, passed on to the output by `skip`, is not counted: the benchmark leaves it out.
    """

    def readers(node: int) -> list[str]:
        found: list[str] = []
        for k, source in enumerate(links):
            if source == node:
                below = readers(k + 1)
                if names[ops[k]] != "skip":
                    found.append(f"{names[ops[k]]}({','.join(sorted(below))})")
                else:
                    found += below or ["skip"]
        if not node:
            return [x for x in found if x != "skip"]
        return [] if found == ["skip"] else found

    return ",".join(sorted(readers(0)))


def canonical_rows(links: np.ndarray, ops: np.ndarray, names: Sequence[str] = OPS) -> np.ndarray:
    """The row of every cell of the space, int32 [24, len(names) ** 4]; -1 where none is equal.

    Args:
      links: those of the rows, int [rows, 4].
      ops: indices into the names, int [rows, 4].
      names: of the operations.
    """
    rows = {
        formula(a, b, names): k for k, (a, b) in enumerate(zip(links.tolist(), ops.tolist(), strict=True))
    }
    cells = [
        rows.get(formula([int(digit) for digit in link], op, names), -1)
        for link in LINKS
        for op in itertools.product(range(len(names)), repeat=4)
    ]
    return np.asarray(cells, np.int32).reshape(len(LINKS), -1)


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
    return make(name, space, codes, metrics, objectives, index=Dense(space.sizes, rows))
