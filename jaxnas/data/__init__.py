"""Real images by TFDS name, their splits, batches and augmentation; no TensorFlow."""

from jaxnas.data import augment
from jaxnas.data.augment import normalize
from jaxnas.data.batches import Batches, evaluation_batches
from jaxnas.data.datasets import Dataset, load
from jaxnas.data.splits import ROLES, SourceImages, Split, permutation, stratified

__all__ = [
    "ROLES",
    "Batches",
    "Dataset",
    "SourceImages",
    "Split",
    "augment",
    "evaluation_batches",
    "load",
    "normalize",
    "permutation",
    "stratified",
]
