"""DARTFormer: which attention mechanism a Transformer should have.

DARTFormer (Brown et al., arXiv 2210.00641, section 2). The supernet has one block of attention, the plain
average of one block for each mechanism, each with projections of its own, and no architecture parameters. How
much its accuracy falls without a block says how strong the block is. A network of the best mechanism, or of
the best heads, is then built as deep as the task asks for, and trained from scratch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.loop import run_layer
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.width import Decision
from jaxnas.space import Arch, Space
from jaxnas.supernets import schema
from jaxnas.supernets.dartformer.attention import MECHANISMS
from jaxnas.supernets.dartformer.attention.dense import SynthesizerKind
from jaxnas.supernets.layers import sinusoids, tuned


class DARTFormer(nn.Module):
    """A Transformer that classifies token sequences, over a space with the decision `mechanism`.

    Made once, the decision is for blocks of attention with all heads; see `spaces.dartformer`. Repeated as
    often as there are heads, it is for each head of a block, and the blocks have one head each; the result
    is their mean. All layers have the same mechanisms. With the space of one architecture it is that plain
    Transformer.

    Attributes:
      space: the search space.
      num_classes: of sequences.
      vocabulary: number of different tokens; used where the task gives no vectors, which a dense layer maps,
        or to tune them.
      max_length: longest sequence, for the mechanisms that are made for one length.
      width: of the residual stream.
      num_heads: of attention.
      hidden: width between the two layers of the MLP.
      layers: how many; the supernet of the paper has one.
      block: of Local, SparseTransformer, BigBird and Sinkhorn.
      window: of Longformer.
      summary: columns of a block that all see (SparseTransformer).
      num_random: random blocks of BigBird.
      num_projected: of Linformer.
      num_features: of Performer; None for the number that its paper takes.
      num_buckets, chunk: of Reformer.
      synthesizer: "random", "factorized_random" or "dense".
      pool: what the classifier sees: the "first" position, an extra token as in Long Range Arena, or the
        "mean" of all. In a single layer, the first position sees no more than the mechanism shows it, such as
        the first block of Local.
      tune_vectors: whether the task's vectors are tuned, each by a difference that is learned.
      dropout: of embeddings, branches and hidden activations.
      dtype: of the computation, float32 or bfloat16.
      remat: compute the attention of each layer again in the backward pass, and keep its input only.
    """

    space: Space
    num_classes: int
    vocabulary: int
    max_length: int
    width: int = 64
    num_heads: int = 4
    hidden: int = 128
    layers: int = 1
    block: int = 50
    window: int = 64
    summary: int = 10
    num_random: int = 3
    num_projected: int = 32
    num_features: int | None = None
    num_buckets: int = 10
    chunk: int = 32
    synthesizer: SynthesizerKind = "factorized_random"
    pool: Literal["first", "mean"] = "first"
    tune_vectors: bool = False
    dropout: float = 0.1
    dtype: Any = jnp.float32
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        needs = {"mechanism": schema.Needs(tuple(MECHANISMS))}
        schema.check_decisions("DARTFormer", self.space, needs, "jaxnas.spaces.dartformer()")
        schema.check_always_active("DARTFormer", self.space, "mechanism")
        choice = self.space["mechanism"]
        if choice.length not in (None, self.num_heads):
            raise ValueError(
                f"DARTFormer: 'mechanism' is repeated {choice.length} times, and there are {self.num_heads} "
                "heads; it is made once for all heads, or once for each of them."
            )
        sizes = ("layers", "block", "window", "summary", "num_projected", "num_buckets", "chunk")
        check_counts(self, "num_classes", "vocabulary", "max_length", "width", "num_heads", "hidden", *sizes)
        check_counts(self, "num_random", least=0)
        check_counts(self, "num_features", none=True)
        check_numbers(self, "dropout", least=0, below=1)
        schema.check_values(self, pool=("first", "mean"), synthesizer=get_args(SynthesizerKind))
        shared = f"DARTFormer: width, of {self.num_heads} heads,"
        schema.check_multiple(shared, self.width, 2 * self.num_heads)

    def mechanism(self, name: str, num_heads: int, seed: int = 0) -> nn.Module:
        """The block of a mechanism, by itself; `seed` is that of its random patterns, features or hashes."""
        made, first = MECHANISMS[name], self.pool == "first"
        fields = made.__dataclass_fields__.keys()
        given = {field: getattr(self, field) for field in fields & self.__dataclass_fields__.keys()}
        given |= {"num_heads": num_heads, "head_dim": self.width // self.num_heads, "seed": seed}
        # The extra position sees all others, as Longformer has it for classification (section 4).
        given |= {"max_length": self.max_length + first, "kind": self.synthesizer, "num_global": int(first)}
        given |= {"name": None, "parent": None}
        return made(**{field: x for field, x in given.items() if field in fields})

    @nn.compact
    def __call__(
        self, inputs: Mapping[str, jax.Array], arch: Arch | None = None, *, train: bool = False
    ) -> jax.Array:
        """Classifies sequences.

        Args:
          inputs: "tokens" int32 [B, T] and "mask" bool [B, T], True where there is a token, and
            "vectors", float32 [B, T, G], if the task gives some.
          arch: architecture of the space, hard or soft; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          Logits, float32 [B, num_classes].
        """
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        tokens, mask = inputs["tokens"], inputs["mask"]
        if tokens.shape[1] > self.max_length:
            raise ValueError(
                f"DARTFormer: sequences have {tokens.shape[1]} tokens, and max_length is {self.max_length}. "
                "Make the network for the longest, or cut them (length of the task)."
            )
        x = self._embed(tokens, inputs.get("vectors"))
        if self.pool == "first":
            first = self.param("first", nn.initializers.zeros, (self.width,))
            x = jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, self.width)), x], axis=1)
            mask = jnp.pad(mask, [(0, 0), (1, 0)], constant_values=True)
        positions = jnp.asarray(np.flip(sinusoids(x.shape[1], self.width), axis=0))
        drop = nn.Dropout(self.dropout, deterministic=not train)
        x = drop((x + positions[None]).astype(self.dtype))
        for i in range(self.layers):
            x = x + drop(self._attend(i, decisions, self._norm(f"attention_norm_{i}")(x), mask))
            hidden = nn.gelu(self._dense(self.hidden, f"mlp_in_{i}")(self._norm(f"mlp_norm_{i}")(x)))
            x = x + drop(self._dense(self.width, f"mlp_out_{i}")(drop(hidden)))
        x = self._norm("norm")(x)
        if self.pool == "first":
            x = x[:, 0]
        else:
            weight = mask[..., None].astype(x.dtype)
            x = jnp.sum(x * weight, axis=1) / jnp.maximum(jnp.sum(weight, axis=1), 1)
        x = nn.relu(self._dense(self.hidden, "head_in")(x))
        return nn.Dense(self.num_classes, name="head_out")(x.astype(jnp.float32))

    def _embed(self, tokens: jax.Array, vectors: jax.Array | None) -> jax.Array:
        """The embeddings of tokens, [B, T, D]."""
        if self.tune_vectors:
            vectors = tuned(vectors, tokens, self.vocabulary)
        if vectors is not None:
            return self._dense(self.width, "embed")(vectors)
        normal = nn.initializers.normal(1.0)
        return nn.Embed(self.vocabulary, self.width, embedding_init=normal, name="embed")(tokens)

    def _norm(self, name: str) -> nn.LayerNorm:
        return nn.LayerNorm(dtype=self.dtype, name=name)

    def _dense(self, width: int, name: str) -> nn.Dense:
        return nn.Dense(width, dtype=self.dtype, name=name)

    def _attend(self, layer: int, decisions: Decisions, x: jax.Array, mask: jax.Array) -> jax.Array:
        """The average of the blocks, or what is chosen of them, [B, T, D]."""
        choice, name = self.space["mechanism"], f"attention_{layer}"
        names = [str(option) for option in choice.options]
        if choice.length is None:
            blocks = {one: self.mechanism(one, self.num_heads, layer) for one in names}
            return self._mix(blocks, name, decisions["mechanism"], x, mask)
        heads = []
        for i in range(choice.length):
            blocks = {one: self.mechanism(one, 1, layer * choice.length + i) for one in names}
            heads.append(self._mix(blocks, f"{name}_{i}", decisions["mechanism", i], x, mask))
        return jnp.mean(jnp.stack(heads), axis=0)

    def _mix(
        self, blocks: dict[str, nn.Module], name: str, choice: Decision, x: jax.Array, mask: jax.Array
    ) -> jax.Array:
        call = functools.partial(lambda choice, mask, mixture, x: mixture(choice, x, mask), choice, mask)
        return run_layer(call, Mixture(blocks, name=name), x, remat=self.remat)
