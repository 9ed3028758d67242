"""Inputs of a checkpoint: the tokens, pixels and classes of its training."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np

from jaxnas import files
from jaxnas.data.vocabulary import TOKENIZER
from jaxnas.hf.checkpoint import Config

_log = logging.getLogger(__name__)
PREPROCESSOR = "preprocessor_config.json"
_DEFAULTS = (("image_mean", 0.5), ("image_std", 0.5))


def adapted(task: Any, config: Config) -> Any:
    """A task that gives data as a checkpoint takes them.

    A text that is not loaded yet gets the checkpoint's own tokenizer, where the task has none. Loaded images
    are standardized as the checkpoint's preprocessor_config.json says.

    Args:
      task: of `jaxnas.tasks`; others are returned as they are.
      config: of `load`.

    Raises:
      ValueError: images that are no bytes, which the checkpoint's mean and deviation are for.
    """
    if getattr(task, "tokenizer", "") is None and isinstance(task.data, str):
        return dataclasses.replace(task, tokenizer=str(config.folder))
    dataset: Any = getattr(task, "data", None)
    path = config.folder / PREPROCESSOR
    if not hasattr(dataset, "mean") or not path.is_file():
        return task
    values = files.read_json(path)
    mean, std = (np.asarray(values.get(key, [default]), np.float32) for key, default in _DEFAULTS)
    if not values.get("do_normalize", True):
        mean, std = np.zeros(1, np.float32), np.ones(1, np.float32)
    if values.get("do_rescale", True):
        mean, std = (x / np.float32(values.get("rescale_factor", 1 / 255)) for x in (mean, std))
    if (dtype := np.dtype(dataset.train.images.dtype)) != np.uint8:
        raise ValueError(f"{path} is for images of bytes, 0 to 255; those of {dataset.name} are {dtype}.")
    mean, std = (np.broadcast_to(x, dataset.mean.shape) for x in (mean, std))
    return dataclasses.replace(task, data=dataclasses.replace(dataset, mean=mean, std=std))


def check_data(task: Any, config: Config) -> None:
    """Raises ValueError where the tokens of a text, or the classes of images, are not the checkpoint's."""
    dataset: Any = getattr(task, "dataset", None)
    if "vocab_size" in config.values:
        if (vocabulary := getattr(dataset, "vocabulary", None)) is not None:
            _check_tokens(vocabulary, config)
    elif (classes := getattr(dataset, "classes", None)) is not None:
        _check_classes(dataset.name, tuple(map(str, classes)), config)


def _check_tokens(vocabulary: Any, config: Config) -> None:
    file, size = config.folder / TOKENIZER, config.values["vocab_size"]
    advice = f"Give tokenizer={str(config.folder)!r} where the text is loaded."
    definition = getattr(vocabulary, "definition", None)
    if definition is None or vocabulary.size > size:
        raise ValueError(
            f"The text has {vocabulary!r}, and the checkpoint in {config.folder} {size:,} tokens of its own "
            f"tokenizer. {advice}"
        )
    if file.is_file() and file.read_text(encoding="utf-8") != definition:
        raise ValueError(f"The text has the tokens of another tokenizer than {file}. {advice}")


def _check_classes(name: str, classes: tuple[str, ...], config: Config) -> None:
    labels = config.values.get("id2label") or {}
    known = [str(labels[key]) for key in sorted(labels, key=int)]
    known = known or [f"LABEL_{i}" for i in range(config.values.get("num_labels", 2))]
    if len(known) != len(classes):
        raise ValueError(
            f"{name} has {len(classes)} classes, and the checkpoint in {config.folder} {len(known)}. "
            "Train it on these classes first: a search compares its predictions."
        )
    if set(known) == set(classes) and list(classes) != known:
        raise ValueError(
            f"{name} has the classes in another order than the checkpoint in {config.folder}: "
            f"{', '.join(classes[:8])}, and not {', '.join(known[:8])}. Name them in that order."
        )
    if list(classes) != known:
        _log.warning("The classes %s of %s count as %s.", classes[:8], name, known[:8])
