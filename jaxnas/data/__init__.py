"""Images, texts, graphs and rows of numbers in roles, and the augmentation of images."""

from jaxnas.data import augment
from jaxnas.data.expressions import ListOps
from jaxnas.data.graphs import from_graph, from_graphs, load_graph
from jaxnas.data.images import from_arrays, load
from jaxnas.data.pictures import from_folder
from jaxnas.data.sentences import from_texts, from_tsv, load_sentences
from jaxnas.data.splits import HeldOut
from jaxnas.data.tables import from_table
from jaxnas.data.text import from_text, load_text
from jaxnas.data.vocabulary import Encoding

__all__ = [
    "Encoding",
    "HeldOut",
    "ListOps",
    "augment",
    "from_arrays",
    "from_folder",
    "from_graph",
    "from_graphs",
    "from_table",
    "from_text",
    "from_texts",
    "from_tsv",
    "load",
    "load_graph",
    "load_sentences",
    "load_text",
]
