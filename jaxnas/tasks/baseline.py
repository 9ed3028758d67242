"""Accuracy of a linear model, the reference that a found network must beat."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxnas.data.splits import Split, permutation

ROWS = 5000  # of the training data
SIDE = 32  # pixels; larger images are thinned out
CLASSES = 100  # with more of them, so few rows say little, and take long


def linear_accuracy(
    splits: Mapping[str, Split], features: Callable[[Split, np.ndarray], Any], roles: tuple[str, ...]
) -> dict[str, float]:
    """Accuracy by role of a logistic regression, which takes seconds.

    Args:
      splits: by role; it learns from at most `ROWS` examples of "train", drawn at random.
      features: from a split and row numbers to a matrix [n, features], dense or sparse.
      roles: to measure it on.

    Returns:
      Accuracy by role; {} where the training data have one class, or more than `CLASSES`.
    """
    # Their import takes a second, which only a run that ends should wait for.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train = splits["train"]
    rows = np.sort(permutation(len(train), seed=0)[:ROWS])
    labels = np.asarray(train.labels)[rows]
    if not 2 <= len(np.unique(labels)) <= CLASSES:
        return {}
    given = features(train, rows)
    model = make_pipeline(StandardScaler(with_mean=isinstance(given, np.ndarray)), LogisticRegression())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hundred steps are near enough
        model.fit(given, labels)
    found = {}
    for role in roles:
        split = splits[role]
        parts = np.array_split(np.arange(len(split)), -(-len(split) // 1024))
        right = [
            np.sum(model.predict(features(split, part)) == np.asarray(split.labels)[part]) for part in parts
        ]
        found[role] = float(sum(right) / len(split))
    return found


def pixels(split: Split, rows: np.ndarray) -> np.ndarray:
    """Flat images, float32 [n, pixels]."""
    step = -(-max(split.images.shape[1:3]) // SIDE)
    parts = [
        np.asarray(split.images[part], np.float32)[:, ::step, ::step]
        for part in np.array_split(rows, -(-len(rows) // 256))
    ]
    return np.concatenate(parts).reshape(len(rows), -1)


def token_counts(split: Split, rows: np.ndarray, vocabulary: int) -> Any:
    """log(1 + how often) each token is in each text, sparse float32 [n, vocabulary]."""
    import scipy.sparse

    tokens, mask = (np.asarray(split.inputs[name])[rows] for name in ("tokens", "mask"))
    texts = np.nonzero(mask)[0]
    ones = np.ones(len(texts), np.float32)
    counts = scipy.sparse.csr_matrix((ones, (texts, tokens[mask])), (len(rows), vocabulary))
    counts.data = np.log1p(counts.data)
    return counts
