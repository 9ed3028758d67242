"""Classification of texts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxnas import data as data_lib
from jaxnas.checks import check_counts, check_increasing, check_numbers
from jaxnas.data.batches import Batches
from jaxnas.data.expressions import listops
from jaxnas.data.sentences import Sentences, load_sentences, usual_tokens, with_vectors
from jaxnas.data.vectors import find_vectors
from jaxnas.tasks import baseline
from jaxnas.tasks.shared import Classification
from jaxnas.tasks.task import Batch

# Options of loading a data set: on a task that is loaded they have their defaults.
_OF_TEXTS = ("tokens", "length", "keep", "max_words", "phrases", "search_fraction")
_OF_VECTORS = ("embeddings", "embedding_dim")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Classification[Sentences]):
    """Classification of texts as token sequences of one length.

    A network takes {"tokens": int32 [B, T], "mask": bool [B, T]}, of which the mask is False behind the end
    of a text, and gives logits [B, classes]. With `embeddings` it also takes "vectors", float32 [B, T, G],
    which are 0 behind the end.

    Attributes:
      data: the name of a data set, see `data.sentences.load_sentences`; or `data.ListOps(...)`, which makes
        its texts when it is loaded; or the data themselves, as `data.from_tsv` and `data.from_texts` return
        them.
      tokens: "words", "english", "bytes" or "symbols", see `data.Encoding`; None for the usual ones of the
        data set.
      length: T, to which texts are cut; None for the longest text to train on.
      lengths: of training batches, as (16, 32, 64): each has texts of about one length and is cut to the
        first of these that holds them all; the last one is `length`. None for the full length always, which
        evaluations have in any case. A training step is compiled once for each.
      keep, max_words: see `data.Encoding`.
      phrases: train on all labeled phrases of the trees of "sst5" and "sst2".
      embeddings: a file of GloVe's, by its path or by its name in the folder "embeddings" of prepared data,
        as "glove6b_50d". Its vectors are not trained; other tokens get random ones.
      embedding_dim: expected G; None for any.
      search_fraction: share of the training texts that is held out for the search; None for the official
        development part, or 0.2 where there is none.
      seed: of what is held out, and of vectors that are drawn.
      label_smoothing: probability that is spread over all classes.
      evaluation_batch_size: texts at a time where networks are evaluated.
    """

    data: str | data_lib.ListOps | Sentences
    tokens: str | None = None
    length: int | None = None
    lengths: tuple[int, ...] | None = None
    keep: str = "start"
    max_words: int | None = None
    phrases: bool = False
    embeddings: str | None = None
    embedding_dim: int | None = None
    search_fraction: float | None = None
    seed: int = 0

    examples = "texts"
    kind = Sentences
    rules = (data_lib.ListOps,)
    makers = "data.from_tsv, data.from_texts or data.ListOps"

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = self._defaults()
        given = [name for name in _OF_TEXTS if getattr(self, name) != defaults[name]]
        if given and not isinstance(self.data, str):
            raise ValueError(
                f"Text: {given[0]} is {getattr(self, given[0])!r}, and {self.name} has its tokens already; "
                "give it to data.from_tsv, data.from_texts, data.load_sentences or data.ListOps, whichever "
                "makes them."
            )
        check_counts(self, "length", "max_words", "embedding_dim", none=True)
        check_counts(self, "seed", least=0)
        check_numbers(self, "search_fraction", least=0, below=1, none=True)
        if self.embedding_dim is not None and self.embeddings is None:
            raise ValueError(f"Text: embedding_dim is {self.embedding_dim}, and there are no embeddings.")
        if self.lengths is not None:
            check_increasing(self, "lengths")
            full = self.data.length if isinstance(self.data, Sentences) else self.length
            if full not in (None, self.lengths[-1]):
                raise ValueError(
                    f"Text: texts have the length {full}, and the last of lengths is {self.lengths[-1]}."
                )
        self._encoding()  # which checks its options

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {field.name: field.default for field in dataclasses.fields(cls)}

    def _encoding(self) -> data_lib.Encoding:
        """How texts become tokens."""
        return data_lib.Encoding(
            tokens=self.tokens or usual_tokens(self.name),
            length=self.length if self.lengths is None else self.lengths[-1],
            max_words=self.max_words,
            keep=self.keep,
        )

    def load(self, data_dir: Any = None) -> Self:
        """The task with its texts and vectors loaded; see `load_sentences` for folders and errors.

        In the new task the options of tokens and vectors have been applied, and have their defaults again.
        """
        if isinstance(self.data, Sentences) and self.embeddings is None:
            return self
        dataset = self.data if isinstance(self.data, Sentences) else self.read(data_dir)
        if self.embeddings is not None:
            path = find_vectors(self.embeddings, data_dir)
            dataset = with_vectors(dataset, path, self.embedding_dim, self.seed)
        unset = {name: self._defaults()[name] for name in (*_OF_TEXTS, *_OF_VECTORS)}
        return dataclasses.replace(self, data=dataset, **unset)

    def read(self, data_dir: Any) -> Sentences:
        """The texts of the name or the rule."""
        if isinstance(self.data, data_lib.ListOps):
            return listops(self.data)
        return load_sentences(
            self.name,
            data_dir=data_dir,
            encoding=self._encoding(),
            phrases=self.phrases,
            search_fraction=self.search_fraction,
            seed=self.seed,
        )

    @property
    def dataset(self) -> Sentences:
        """The texts; raises a ValueError where they, or their vectors, are not loaded yet."""
        if self.embeddings is not None and isinstance(self.data, Sentences):
            raise ValueError(
                f"The vectors of {self.embeddings!r} are not loaded yet; call task.load() first."
            )
        return super().dataset

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """One text: {"tokens": int32 [1, T], "mask": bool [1, T]}, and its "vectors", float32 [1, T, G]."""
        length, vectors = self.dataset.length, self.dataset.vectors
        inputs = {
            "tokens": jax.ShapeDtypeStruct((1, length), jnp.int32),
            "mask": jax.ShapeDtypeStruct((1, length), jnp.bool),
        }
        if vectors is not None:
            inputs["vectors"] = jax.ShapeDtypeStruct((1, length, vectors.dim), jnp.float32)
        return inputs

    def batches(self, role: str, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)) -> Batches:
        """Shuffled batches, with `lengths` of texts of about one length; see `Classification.batches`."""
        return dataclasses.replace(super().batches(role, batch_size, seed, shard), lengths=self.lengths)

    def details(self) -> Mapping[str, Any]:
        """Classes, length, tokens and vocabulary; how many words are unknown and texts are cut; vectors."""
        dataset, details = self.dataset, dict(super().details())
        details |= {
            "length": dataset.length,
            "tokens": dataset.encoding.tokens,
            "vocabulary": dataset.vocabulary.size,
            "unknown_words": dict(dataset.unknown),
            "cut_texts": dict(dataset.cut),
        }
        if self.lengths is not None:
            details["lengths"] = list(self.lengths)
        if (vectors := dataset.vectors) is not None:
            details["vectors"] = f"{vectors.name}, {vectors.dim} numbers each"
            details["words_with_vectors"] = {
                role: round(vectors.coverage(split.inputs), 4) for role, split in dataset.splits.items()
            }
        return details

    def linear_model(self, roles: tuple[str, ...]) -> Mapping[str, float]:
        """Accuracy of a logistic regression on how often each token occurs, by role."""
        counts = functools.partial(baseline.token_counts, vocabulary=self.dataset.vocabulary.size)
        return baseline.linear_accuracy(self.dataset.splits, counts, roles)

    def preparation(self) -> str:
        """The tokens, and how they become vectors."""
        dataset = self.dataset
        text = f"as {dataset.encoding.tokens}, of which the mask is True at those of the text"
        return text if dataset.vectors is None else f"{text}, and their vectors of {dataset.vectors.name}"

    def check(self, net: nn.Module) -> None:
        """Refuses a `vocabulary` below that of the texts: of a token beyond it Flax makes NaN."""
        looked_up = self.dataset.vectors is None or getattr(net, "tune_vectors", False)
        rows, size = getattr(net, "vocabulary", None), self.dataset.vocabulary.size
        if looked_up and rows is not None and rows < size:
            raise ValueError(
                f"{type(net).__name__}: vocabulary is {rows}, and {self.name} have {size:,} different "
                "tokens; expected at least as many."
            )

    def preprocess(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens int32 [B, T], their mask, bool [B, T], and their vectors, float32 [B, T, G], if any."""
        tokens, mask = batch["tokens"], batch["mask"]
        if (vectors := self.dataset.vectors) is None:
            return {"tokens": tokens, "mask": mask}
        # The table is a constant of the program. It has no rows that devices could share, as all parts of a
        # batch have, and vectors looked up on the host would take G times the memory of the tokens.
        looked_up = jnp.asarray(vectors.table)[tokens]  # [B, T, G]
        return {"tokens": tokens, "mask": mask, "vectors": jnp.where(mask[..., None], looked_up, 0.0)}
