"""A word vocabulary for language models: adaptive input embedding and adaptive softmax.

Words are numbered by falling frequency and cut into clusters. The first one, the head, has vectors as
wide as the model and is scored at every place, together with one logit for each of the other clusters,
the tail (Grave et al. 2017). A tail cluster has narrower vectors with a projection, for the input too
(Baevski and Auli 2019), and is scored only at places whose target lies in it. The probability of a word
of the tail is that of its cluster, times that of the word within the cluster.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxnas.checks import check_counts
from jaxnas.elastic.parameter import MACS, record_macs
from jaxnas.elastic.width import constant

GRID = 512  # boundaries that choose_cutoffs tries at most


class Cluster(NamedTuple):
    """Words `first` up to `first + size`, and the width of their vectors."""

    first: int
    size: int
    width: int


class _Softmax(NamedTuple):
    """A softmax over words, or over words and clusters.

    Attributes:
      projection: from the model's width to that of the vectors, [width, d]; None where they are the same.
      table, bias: the vectors [K, d] and the bias [K].
      dtype: of the products; all that is returned is float32.
    """

    projection: Array | None
    table: Array
    bias: Array
    dtype: Any

    def project(self, hidden: Array) -> Array:
        """Hidden [N, width] as [N, d]."""
        hidden = hidden.astype(self.dtype)
        return hidden if self.projection is None else hidden @ self.projection.astype(self.dtype)

    def logits(self, x: Array) -> Array:
        """Products of projected x [N, d] with all words, [N, K]."""
        logits = jnp.matmul(x, self.table.astype(self.dtype).T, preferred_element_type=jnp.float32)
        return logits + self.bias[None, :]

    def log_probabilities(self, hidden: Array) -> Array:
        """Of all words, [N, K]."""
        return jax.nn.log_softmax(self.logits(self.project(hidden)), axis=1)

    def scores(self, hidden: Array, words: Array) -> Array:
        """Log-probability of one word in each row, of words int [N]: [N]."""
        x = self.project(hidden)
        normalizer = jax.nn.logsumexp(self.logits(x), axis=1)
        # The logit of the target is computed again from the vector of that word. To pick it from the logits
        # would take another pass over [N, K], here and in the backward pass.
        vectors = jnp.take(self.table, words, axis=0, mode="clip").astype(self.dtype)  # [N, d]
        logit = jnp.sum(x.astype(jnp.float32) * vectors.astype(jnp.float32), axis=1)
        return logit + jnp.take(self.bias, words, mode="clip") - normalizer


class AdaptiveVocabulary(nn.Module):
    """Embeds tokens and scores the next ones; frequent words have wide vectors, rare ones narrow.

    The output's word vectors are the input's. Words are numbered by falling frequency. A token id outside of
    [0, vocabulary) gives NaN. Parameters are float32; for sharding rules the axes of words are "vocabulary",
    and those of the model's width and of a cluster's "embed".

    Attributes:
      vocabulary: number of words, V.
      width: of the model, and of the head's vectors.
      cutoffs: the first word of each tail cluster, increasing, each in (0, V); () is a plain embedding
        and a plain softmax.
      div_value: tail cluster i, counted from 1, has vectors of width `width // div_value**i`.
      tie_projections: whether the output's projections are the input's transposed. There are projections in
        the tail alone, and none with a `div_value` of 1.
      chunk: how many rows of a tail cluster `log_probability` scores at a time, which changes its speed and
        its memory, chunk x size of the cluster, and no result.
      dtype: of the embedding and of the products; logits and log-probabilities are float32.
      init_std: standard deviation of the initial values; biases start at zero.
    """

    vocabulary: int
    width: int
    cutoffs: tuple[int, ...] = ()
    div_value: int = 1
    tie_projections: bool = False
    chunk: int = 128
    dtype: Any = jnp.float32
    init_std: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "vocabulary", "width", "div_value", "chunk")
        bounds = (0, *self.cutoffs, self.vocabulary)
        if any(after <= before for before, after in itertools.pairwise(bounds)):
            raise ValueError(
                f"AdaptiveVocabulary: cutoffs is {tuple(self.cutoffs)}, expected increasing numbers above 0 "
                f"and below the vocabulary, {self.vocabulary}."
            )
        _cluster_widths(self.width, self.div_value, len(self.cutoffs))

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters, the head first."""
        bounds = (0, *self.cutoffs, self.vocabulary)
        widths = _cluster_widths(self.width, self.div_value, len(self.cutoffs))
        sizes = zip(itertools.pairwise(bounds), widths, strict=True)
        return tuple(Cluster(first, last - first, width) for (first, last), width in sizes)

    def setup(self) -> None:
        """Declares the parameters of all clusters."""
        inputs, outputs = [], []
        for i, cluster in enumerate(self.clusters):
            table = self._parameter(f"embedding_{i}", (cluster.size, cluster.width), ("vocabulary", "embed"))
            projection = back = None
            if i and self.div_value > 1:
                shape = (cluster.width, self.width)
                projection = self._parameter(f"projection_{i}", shape, (None, "embed"))
                if self.tie_projections:
                    back = projection.T
                else:
                    back = self._parameter(f"output_projection_{i}", shape[::-1], ("embed", None))
            bias = self._parameter(f"bias_{i}", (cluster.size,), ("vocabulary",))
            inputs.append((table, projection))
            outputs.append((back, table, bias))
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        if tail := len(self.cutoffs):
            self.cluster_vectors = self._parameter("cluster_vectors", (tail, self.width), (None, "embed"))
            self.cluster_bias = self._parameter("cluster_bias", (tail,), (None,))

    def embed(self, tokens: Array) -> Array:
        """Embeds tokens, multiplied by the square root of the width as Transformer-XL does.

        Args:
          tokens: int32 [B, T], or any other shape.

        Returns:
          [B, T, width], of `dtype`.
        """
        tokens = tokens.astype(jnp.int32)
        self._record(tokens.size, sum(map(self._projection, self.clusters[1:])))
        embedded = jnp.zeros((*tokens.shape, self.width), self.dtype)
        for cluster, (table, projection) in zip(self.clusters, self.inputs, strict=True):
            # Clipped: a token of another cluster reads some row, which the mask then drops.
            place = tokens - cluster.first
            inside = (place >= 0) & (place < cluster.size)  # [B, T]
            part = jnp.take(table, place, axis=0, mode="clip").astype(self.dtype)
            part = jnp.where(inside[..., None], part, jnp.zeros_like(part))  # [B, T, d]
            embedded += part if projection is None else part @ projection.astype(self.dtype)
        # A token that is not in the vocabulary gives NaN, and not the zeros that no cluster changed.
        embedded = jnp.where(self._known(tokens)[..., None], embedded, jnp.asarray(jnp.nan, self.dtype))
        return embedded * jnp.asarray(math.sqrt(self.width), self.dtype)

    def log_probability(self, hidden: Array, targets: Array) -> Array:
        """Log-probability of each target; of a tail cluster only the rows with targets in it are scored.

        Args:
          hidden: the model's output, [N, width].
          targets: int32 [N].

        Returns:
          float32 [N].
        """
        self._record_scores(targets.size)
        head, targets = self.clusters[0].size, targets.astype(jnp.int32)
        unknown = jnp.where(self._known(targets), jnp.float32(0), jnp.float32(jnp.nan))
        if not self.cutoffs:
            return self._softmax(0).scores(hidden, targets) + unknown
        # Which cluster each target is in: 0 is the head.
        cutoffs = jnp.asarray(self.cutoffs, jnp.int32)
        cluster = jnp.sum(targets[:, None] >= cutoffs[None, :], axis=1, dtype=jnp.int32)  # [N]
        entry = jnp.where(cluster == 0, targets, head - 1 + cluster)
        scores = self._softmax(0).scores(hidden, entry)

        # Sorted by cluster, the rows of each one lie side by side.
        order = jnp.argsort(cluster, stable=True)
        rank = jnp.zeros_like(order).at[order]
        rank = rank.set(jnp.arange(order.size, dtype=order.dtype), unique_indices=True)
        chunk = max(1, min(self.chunk, order.size))
        chunks = max(1, -(-order.size // chunk))
        padding = chunks * chunk  # a cluster's chunks may start at any row and reach beyond the last
        rows = jnp.pad(hidden.astype(self.dtype)[order], ((0, padding), (0, 0)))
        words = jnp.pad(targets[order], (0, padding))
        for i in range(1, len(self.clusters)):
            start = jnp.sum(cluster < i, dtype=order.dtype)
            count = jnp.sum(cluster == i, dtype=order.dtype)
            used = jnp.arange(chunks, dtype=order.dtype) * chunk < count
            own = (lax.dynamic_slice_in_dim(x, start, padding) for x in (rows, words))
            own_rows, own_words = (x.reshape(chunks, chunk, *x.shape[1:]) for x in own)
            within = self._tail_scores(i, (own_rows, own_words, used))
            # Rows of other clusters read some score and drop it: no gradient flows into it.
            place = jnp.clip(rank - start, 0, padding - 1)
            scores += jnp.where(cluster == i, within[place], jnp.zeros_like(scores))
        return scores + unknown

    def _known(self, tokens: Array) -> Array:
        return (tokens >= 0) & (tokens < self.vocabulary)

    def log_probabilities(self, hidden: Array) -> Array:
        """Log-probability of every word, with nothing left out: for generation and for small inputs.

        Args:
          hidden: the model's output, [N, width].

        Returns:
          float32 [N, V].
        """
        self._record_scores(hidden.shape[0])
        head = self._softmax(0).log_probabilities(hidden)
        size = self.clusters[0].size
        parts = [head[:, :size]]
        for i in range(1, len(self.clusters)):
            within = self._softmax(i).log_probabilities(hidden)  # [N, size]
            parts.append(head[:, size + i - 1, None] + within)
        return jnp.concatenate(parts, axis=1)

    def _record_scores(self, rows: int) -> None:
        """Records the products of scoring every word: how many targets alone need depends on the targets."""
        head, *tail = self.clusters
        macs = (head.size + len(tail)) * self.width
        macs += sum(cluster.size * cluster.width + self._projection(cluster) for cluster in tail)
        self._record(rows, macs)

    def _record(self, rows: int, macs: int) -> None:
        # In an exported program the number of rows is a symbol, which could not be recorded.
        if self.is_mutable_collection(MACS):
            record_macs(self, constant(rows * macs))

    def _projection(self, cluster: Cluster) -> int:
        return self.width * cluster.width if self.div_value > 1 else 0

    def _parameter(self, name: str, shape: tuple[int, ...], names: tuple[str | None, ...]) -> Array:
        normal = nn.initializers.normal(self.init_std)
        init = normal if len(shape) > 1 else nn.initializers.zeros
        boxed = nn.with_logical_partitioning(init, names)
        return self.param(name, boxed, shape)  # pyrefly: ignore[bad-return] # it unboxes

    def _softmax(self, i: int) -> _Softmax:
        """That of a cluster's words; in the head, 0, the tail clusters are behind the words."""
        projection, table, bias = self.outputs[i]
        if i == 0 and self.cutoffs:
            table = jnp.concatenate([table, self.cluster_vectors])
            bias = jnp.concatenate([bias, self.cluster_bias])
        return _Softmax(projection, table, bias, self.dtype)

    def _tail_scores(self, i: int, xs: tuple[Array, Array, Array]) -> Array:
        """Log-probability of words within tail cluster i.

        `xs` are hidden rows [chunks, chunk, width], target words [chunks, chunk], and whether a chunk is
        needed at all [chunks]. Returns float32 [chunks * chunk]: zero in chunks that are not needed,
        meaningless where the word is not of this cluster.
        """
        first, softmax = self.clusters[i].first, self._softmax(i)

        def score(rows: Array, words: Array) -> Array:
            return softmax.scores(rows, words - first)

        def skip(rows: Array, words: Array) -> Array:
            return jnp.zeros(rows.shape[:1], jnp.float32)

        # The backward pass computes the logits of a chunk again, since those of all chunks would take
        # [N, size]. The condition is inside of the checkpoint: a condition around it would keep the weights
        # once for each chunk.
        @functools.partial(jax.checkpoint, prevent_cse=False)  # nothing merges with the body of a loop
        def step(rows: Array, words: Array, used: Array) -> Array:
            return lax.cond(used, score, skip, rows, words)

        return lax.map(lambda x: step(*x), xs).reshape(-1)


def choose_cutoffs(
    counts: np.ndarray, clusters: int, *, width: int, div_value: int = 1, logit_cost: float = 100.0
) -> tuple[int, ...]:
    """Chooses the cutoffs at which a score is expected to cost least, by dynamic programming.

    In multiply-accumulates, every target costs the head, `(cutoffs[0] + clusters) * (width + e)`, and tail
    cluster i costs `share * (size * (d + e) + width * d)`: share is that of the targets that are in it,
    `d = width // div_value**i`, and `width * d` the projection, if `div_value` > 1. A logit costs
    e = `logit_cost` beyond its product, for its exponential, its gradient and memory; with 0 the cheapest
    cutoffs give wide vectors to a few words only, and such a model is neither faster nor better.

    Of up to 512 words every boundary is tried; of more, 512 on a geometric grid, about 2% apart at 33,278.

    Args:
      counts: how often each word occurs, most frequent first, [V].
      clusters: how many tail clusters, so how many cutoffs; 0 gives ().
      width: of the model.
      div_value: as of `AdaptiveVocabulary`.
      logit_cost: in multiply-accumulates; the default was measured on CPUs.

    Returns:
      The cutoffs, increasing, `clusters` of them.
    """
    counts = np.asarray(counts)
    falling = counts.ndim == 1 and counts.size and not np.any(counts[1:] > counts[:-1])
    if not falling or counts[-1] < 0 or not counts[0] > 0:
        raise ValueError(
            "choose_cutoffs: counts are [V], the most frequent word first, none negative and not all zero; "
            f"got {counts}."
        )
    if not 0 <= clusters < counts.size:
        raise ValueError(
            f"choose_cutoffs: clusters is {clusters}, expected 0 to {counts.size - 1}, each with a word."
        )
    widths = _cluster_widths(width, div_value, clusters)

    bounds = _boundaries(counts.size, clusters)  # [n], from 0 to V
    cumulative = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
    seen = cumulative[bounds] / cumulative[-1]  # share of the targets below each
    sizes = (bounds[None, :] - bounds[:, None]).astype(np.float64)  # [from, to]
    shares = seen[None, :] - seen[:, None]
    # best[b]: the least cost of the clusters so far, if they hold the words below bounds[b].
    best = np.where(bounds > 0, (bounds + float(clusters)) * (width + logit_cost), np.inf)
    steps = []
    for d in widths[1:]:
        projection = width * d if div_value > 1 else 0
        cost = best[:, None] + shares * (sizes * (d + logit_cost) + projection)
        cost = np.where(sizes > 0, cost, np.inf)
        steps.append(np.argmin(cost, axis=0))
        best = np.min(cost, axis=0)
    cutoffs, last = [], len(bounds) - 1
    for step in reversed(steps):
        last = int(step[last])
        cutoffs.append(int(bounds[last]))
    return tuple(reversed(cutoffs))


def _boundaries(vocabulary: int, clusters: int) -> np.ndarray:
    """Where clusters may begin and end: 0, V and enough in between, increasing."""
    if vocabulary <= GRID:
        return np.arange(vocabulary + 1)
    grid = np.round(np.geomspace(1, vocabulary, GRID)).astype(np.int64)
    # Many clusters need as many boundaries, more than are left where the grid rounds to the same words.
    return np.union1d(np.arange(clusters + 1), grid)


def _cluster_widths(width: int, div_value: int, clusters: int) -> tuple[int, ...]:
    """Width of the vectors of the head and of each tail cluster."""
    widths = tuple(width // div_value**i for i in range(clusters + 1))
    if not widths[-1]:
        i = widths.index(0)
        raise ValueError(
            f"Vocabulary: cluster {i} would have vectors of width 0: {width} // {div_value}**{i}. Take fewer "
            "clusters, a smaller div_value or a larger width."
        )
    return widths
