"""Images, texts, graphs and rows of numbers in roles; `data.augment` has the augmentation of images."""

from jaxnas.data import augment as augment
from jaxnas.data.expressions import ListOps
from jaxnas.data.graphs import from_graph, from_graphs
from jaxnas.data.images import from_arrays, from_folder
from jaxnas.data.sentences import from_texts, from_tsv
from jaxnas.data.splits import HeldOut
from jaxnas.data.tables import from_table
from jaxnas.data.text import from_text
from jaxnas.data.vocabulary import Encoding

__all__ = [
    "Encoding",
    "HeldOut",
    "ListOps",
    "from_arrays",
    "from_folder",
    "from_graph",
    "from_graphs",
    "from_table",
    "from_text",
    "from_texts",
    "from_tsv",
]
