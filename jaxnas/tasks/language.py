"""Language modeling: each batch continues where the one before stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas import data as data_lib
from jaxnas.checks import check_counts, check_numbers
from jaxnas.data.batches import ContiguousBatches, evaluation_streams
from jaxnas.data.text import Corpus, load_text
from jaxnas.files import as_path
from jaxnas.tasks.shared import Named
from jaxnas.tasks.task import Batch, Call, Metric, Predictions, Sums

METRICS = (
    Metric("nats", "nats per token", "min", lambda sums: sums["nats"] / sums["tokens"]),
    Metric("perplexity", "per token", "min", lambda sums: jnp.exp(sums["nats"] / sums["tokens"])),
    Metric(
        "bits_per_byte",
        "bits per byte",
        "min",
        lambda sums: sums["nats"] / sums["bytes"] / jnp.log(jnp.float32(2)),
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language(Named[Corpus]):
    """Prediction of the next token of a text.

    A network takes {"tokens", "targets", "documents", "memory"} as `supernets.TransformerXL` does, and
    gives log-probabilities of the targets, float32 [B, T], and its next memory. It has a method
    `empty_memory(rows)`.

    Attributes:
      data: the name of a text, see `data.text.load_text`, the path of a text file, or the text itself, as
        `data.from_text` returns it.
      length: T, tokens of a row in a batch.
      tokenizer: "word", "byte", "bpe:<size>", or a folder with a tokenizer.json; None for the usual
        one of the data set.
      search_fraction: end of the training text that is held out for a search.
      by_document: whether tokens see only what is before them in their own document.
      evaluation_rows: rows of a batch in an evaluation. The beginning of a row has no memory of the text
        before it, so fewer rows are more exact.
      evaluation_length: tokens of a row at a time in an evaluation; None for `length`.
      evaluation_tokens: of each role that an evaluation takes, from its beginning; None for all.
      memory_length, same_length, clamp_length: fields of the network that differ in an evaluation;
        None leaves a field as it is.
    """

    data: str | Corpus
    length: int
    tokenizer: str | None = None
    search_fraction: float = 0.2
    by_document: bool = False
    evaluation_rows: int = 16
    evaluation_length: int | None = None
    evaluation_tokens: int | None = None
    memory_length: int | None = None
    same_length: bool | None = None
    clamp_length: int | None = None

    examples = "tokens"
    metrics = METRICS
    kind = Corpus
    makers = "data.from_text"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "length", "evaluation_rows")
        check_counts(self, "evaluation_length", "memory_length", "clamp_length", none=True)
        check_counts(self, "evaluation_tokens", least=2, none=True)
        check_numbers(self, "search_fraction", least=0, below=1)

    def read(self, data_dir: Any) -> Corpus:
        """The text of the name, or of the file of that path."""
        share = self.search_fraction
        if as_path(self.name).is_file():
            held_out = data_lib.HeldOut(test=0.05, validation=0.05, search=share)
            return data_lib.from_text(self.name, tokenizer=self.tokenizer or "byte", held_out=held_out)
        return load_text(self.name, data_dir=data_dir, tokenizer=self.tokenizer, search_fraction=share)

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A row of tokens, int32 [1, T]."""
        return {"tokens": jax.ShapeDtypeStruct((1, self.length), jnp.int32)}

    def rows(self, role: str) -> int:
        """How many rows of `length` tokens a text has."""
        return max(self.sizes.get(role, 1) - 1, 0) // self.length

    def details(self) -> Mapping[str, Any]:
        """The number of different tokens, and of those that an evaluation takes."""
        limit = {} if self.evaluation_tokens is None else {"evaluation_tokens": self.evaluation_tokens}
        return {"vocabulary": self.dataset.vocabulary.size, **limit}

    def batches(
        self, role: str, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)
    ) -> ContiguousBatches:
        """Batches in which each row continues where it stopped; see `ContiguousBatches`."""
        stream = self.part(self.dataset.splits, role, train=True)
        return ContiguousBatches(stream, batch_size, self.length, shard, seed)

    def evaluation(self, role: str, batch_size: int | None = None, limit: int | None = None) -> Batch:
        """The whole text, each token but the first a target of weight 1 exactly once."""
        stream = self.part(self.dataset.splits, role)
        if self.evaluation_tokens is not None:
            stream = stream.first(self.evaluation_tokens)
        rows = self.evaluation_rows if batch_size is None else batch_size
        length = self.length if self.evaluation_length is None else self.evaluation_length
        batches = evaluation_streams(stream, rows, length)
        bytes_per_token = stream.n_bytes / (len(stream) - 1)
        batches["bytes"] = (batches["weight"] * bytes_per_token).astype("float32")
        return {name: x[:limit] for name, x in batches.items()}

    def preprocess(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens, int32 [B, T]."""
        return {"tokens": batch["tokens"]}

    def evaluated(self, net: Any) -> Any:
        """The network with the memory that the task's evaluations ask for."""
        names = ("memory_length", "same_length", "clamp_length")
        wanted = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return net.clone(**wanted) if wanted else net

    def carry(self, net: Any, rows: int) -> Any:
        """An empty memory; () of a network that has none, and maps tokens to logits."""
        return net.empty_memory(rows) if hasattr(net, "empty_memory") else ()

    def carry_axes(self, carry: Any) -> Any:
        """Inputs of blocks are remembered as [blocks, rows, ...], documents as [rows, ...]."""
        return carry.replace(inputs=1, documents=0) if carry else ()

    def loss(self, call: Call) -> tuple[jax.Array, tuple[Any, Sums]]:
        """Mean negative log-likelihood in nats per token; the sums hold "nats", "tokens", "bytes"."""
        if call.carry == ():
            predicted, _ = self.predict(call)
            return predicted.loss, ((), predicted.sums)
        # With the targets a network computes their likelihoods alone.
        scores, carry = call.apply({**self._inputs(call), "targets": call.batch["targets"]})  # [B, T]
        loss, sums, _ = self._measure(scores, call)
        return loss, (carry, sums)

    def predict(self, call: Call) -> tuple[Predictions, Any]:
        """Log-probabilities of all tokens, [B, T, vocabulary], and the loss; see `Task.predict`."""
        outputs = call.apply(self._inputs(call))
        logits, carry = (jax.nn.log_softmax(outputs), ()) if call.carry == () else outputs
        scores = jnp.take_along_axis(logits, call.batch["targets"][..., None], axis=-1)[..., 0]  # [B, T]
        loss, sums, weight = self._measure(scores, call)
        return Predictions(logits, weight, loss, sums), carry

    def _inputs(self, call: Call) -> dict[str, Any]:
        """The network's inputs of a batch and the memory."""
        batch, carry = call.batch, call.carry
        if carry == ():
            return {"tokens": batch["tokens"]}
        inputs = {"tokens": batch["tokens"], "memory": carry.forget(batch["first"])}
        return {**inputs, "documents": batch["documents"]} if self.by_document else inputs

    def _measure(self, scores: jax.Array, call: Call) -> tuple[jax.Array, Sums, jax.Array]:
        """The loss, the sums and the weights of the log-probabilities of targets, float32 [B, T]."""
        weight = jnp.ones_like(scores) if call.train else call.batch["weight"]
        # Of a training batch the bytes are not known, only how many a token has on average.
        average = self.dataset.train.n_bytes / len(self.dataset.train)
        count = jnp.sum(weight * average) if call.train else jnp.sum(call.batch["bytes"])
        sums = {"nats": -jnp.sum(scores * weight), "tokens": jnp.sum(weight), "bytes": count}
        return sums["nats"] / jnp.maximum(sums["tokens"], 1), sums, weight
