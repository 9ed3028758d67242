"""Images, texts, graphs and rows of numbers: their splits, batches and augmentation."""

from jaxnas.data import augment
from jaxnas.data.arrays import from_arrays
from jaxnas.data.augment import normalize
from jaxnas.data.batches import Batches, CroppedBatches, LengthBatches, evaluation_batches
from jaxnas.data.corpus import Corpus, Stream
from jaxnas.data.datasets import Dataset, load
from jaxnas.data.encoding import Encoding
from jaxnas.data.expressions import ListOps, listops
from jaxnas.data.graphs import Graphs, from_graph, from_graphs, load_graph
from jaxnas.data.pictures import from_folder
from jaxnas.data.roles import ROLES
from jaxnas.data.sentences import Sentences, load_sentences
from jaxnas.data.splits import HeldOut, SourceImages, Split
from jaxnas.data.streams import ContiguousBatches, evaluation_streams
from jaxnas.data.tables import Table, from_table
from jaxnas.data.text import from_text, load_text
from jaxnas.data.texts import from_texts, from_tsv
from jaxnas.data.vocabulary import Vocabulary

__all__ = [
    "ROLES",
    "Batches",
    "ContiguousBatches",
    "Corpus",
    "CroppedBatches",
    "Dataset",
    "Graphs",
    "HeldOut",
    "Encoding",
    "LengthBatches",
    "ListOps",
    "Sentences",
    "SourceImages",
    "Split",
    "Stream",
    "Table",
    "Vocabulary",
    "augment",
    "evaluation_batches",
    "evaluation_streams",
    "from_arrays",
    "from_folder",
    "from_graph",
    "from_graphs",
    "from_table",
    "from_text",
    "from_texts",
    "from_tsv",
    "listops",
    "load",
    "load_graph",
    "load_sentences",
    "load_text",
    "normalize",
]
