"""Tables of trained architectures: a search space with measured results, looked up on the device.

    table = tabular.load("nasbench201")
    evaluate = jax.vmap(table.metric("validation_accuracy_12"))
    strategy = RandomSearch(table.space, canonical=table.canonical)

A table of your own comes from `from_arrays` or `from_csv`.
"""

from jaxnas.tabular.library import load, names
from jaxnas.tabular.read_csv import from_csv
from jaxnas.tabular.table import Table, from_arrays

__all__ = ["Table", "from_arrays", "from_csv", "load", "names"]
