"""The supernet of PAR Transformer: a Transformer-XL whose blocks choose what they are.

Pay Attention when Required (Mandava et al., arXiv 2009.04534, section 2): a stack of stochastic blocks,
each attention, feed-forward or identity. The interleaved Transformer-XL is one architecture of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import LayerNorm
from jaxnas.elastic.loop import run_layers
from jaxnas.elastic.mixture import Mixture
from jaxnas.elastic.width import fixed
from jaxnas.space import Arch, Space
from jaxnas.supernets.layers import sinusoids
from jaxnas.supernets.schema import Needs, check_always_active, check_decisions, check_multiple
from jaxnas.supernets.transformer_xl.adaptive_softmax import AdaptiveVocabulary
from jaxnas.supernets.transformer_xl.blocks import (
    Context,
    FeedForward,
    Identity,
    RelativeAttention,
    causal_mask,
)

OPTIONS = ("identity", "feed_forward", "attention")
INPUTS = ("tokens", "targets", "documents", "memory")


@flax.struct.dataclass
class Memory:
    """The memory of previous segments. L blocks may attend, M is the memory's length.

    Attributes:
      inputs: of each block that may attend, [L, B, M, D].
      documents: the document of each place, int32 [B, M]; -1 where nothing is remembered.
    """

    inputs: jax.Array
    documents: jax.Array

    def forget(self, rows: jax.Array) -> Memory:
        """Empties the memory of the rows, bool [B], that begin anew."""
        return Memory(self.inputs, jnp.where(rows[:, None], -1, self.documents))


class TransformerXL(nn.Module):
    """A language model over a space with the repeated decision `block`; see `spaces.par`.

    With a space of a single architecture it is that plain Transformer-XL: what `jaxnas.extract` returns.

    Attributes:
      space: the search space.
      vocabulary: number of tokens.
      width: of the residual stream.
      num_heads, head_dim: of attention.
      hidden: width between the two layers of a feed-forward block.
      memory_length: M, how many tokens of the past attention sees beyond its segment.
      cutoffs, div_value, tie_projections: of the adaptive softmax and input; () and 1 are plain ones.
      dropout: of embeddings, branches and hidden activations; `attention_dropout` of the weights.
      pre_norm: normalize what enters a branch and not, as published, what leaves the sum.
      same_length: every query sees exactly M keys (for evaluation).
      clamp_length: all larger distances count as this one, for evaluations with a longer memory than the
        training had; None for no such limit.
      dtype: of the computation, float32 or bfloat16; parameters, softmax and loss are float32.
      init_std: standard deviation of the kernels at the start.
      scan_blocks: trace and compile one block and run it in a loop, so that compile time hardly grows with
        depth. The parameters are the same.
      remat: compute each block again in the backward pass, and keep its input only.
    """

    space: Space
    vocabulary: int
    width: int = 512
    num_heads: int = 8
    head_dim: int = 64
    hidden: int = 2048
    memory_length: int = 192
    cutoffs: tuple[int, ...] = ()
    div_value: int = 1
    tie_projections: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.0
    pre_norm: bool = False
    same_length: bool = False
    clamp_length: int | None = None
    dtype: Any = jnp.float32
    init_std: float = 0.02
    scan_blocks: bool = False
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.cutoffs, list):  # a module's fields are hashed
            object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        check_decisions(
            "TransformerXL", self.space, {"block": Needs(OPTIONS, times=1)}, "jaxnas.spaces.par(16)"
        )
        check_always_active("TransformerXL", self.space, "block")
        check_counts(self, "vocabulary", "width", "num_heads", "head_dim", "hidden", "div_value")
        check_numbers(self, "dropout", "attention_dropout", least=0, below=1)
        check_counts(self, "clamp_length", none=True)
        # With same_length each query sees that many keys.
        check_counts(self, "memory_length", least=1 if self.same_length else 0)
        check_multiple("TransformerXL: width", self.width, 2)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.space["block"].shape[0]

    @property
    def attending(self) -> tuple[int, ...]:
        """Positions of the blocks that may attend: those with a memory."""
        choice = self.space["block"]
        return tuple(i for i in range(self.blocks) if "attention" in choice.options_at(i))

    def empty_memory(self, batch: int) -> Memory:
        """The memory before the first segment."""
        shape = (len(self.attending), batch, self.memory_length, self.width)
        documents = jnp.full((batch, self.memory_length), -1, jnp.int32)
        return Memory(jnp.zeros(shape, self.dtype), documents)

    @nn.compact
    def __call__(
        self, inputs: jax.Array | Mapping[str, Any], arch: Arch | None = None, *, train: bool = False
    ) -> tuple[jax.Array, Memory]:
        """Reads a segment and tells how likely each next token is.

        Args:
          inputs: tokens, int32 [B, T], or a dict with "tokens" and any of
            "targets": the tokens that follow, int32 [B, T]; with them only their likelihoods are computed;
            "memory": of the segment before, as returned; without it the memory is empty;
            "documents": which document each token is part of, int32 [B, T] of at least 0: tokens see
            their own document only; without it all are one.
          arch: architecture of the space, hard or soft; not needed if the space has only one.
          train: whether dropout is on (needs the "dropout" random stream).

        Returns:
          Log-probabilities, float32 [B, T] of the targets or [B, T, vocabulary]; and the memory for
          the next segment, through which no gradient flows.
        """
        given = dict(inputs) if isinstance(inputs, Mapping) else {"tokens": inputs}
        tokens = _tokens(given)
        batch, length = tokens.shape
        memory, targets, documents = (given.get(name) for name in ("memory", "targets", "documents"))
        memory = self.empty_memory(batch) if memory is None else memory
        documents = jnp.zeros_like(tokens) if documents is None else documents
        known = jnp.concatenate([memory.documents, documents], axis=1)  # [B, S]
        mask = known[:, None, :] == documents[:, :, None]
        mask &= causal_mask(length, self.memory_length, self.same_length)[None]
        positions = sinusoids(mask.shape[-1], self.width, self.clamp_length)

        fields = ("width", "cutoffs", "div_value", "tie_projections", "dtype", "init_std")
        sizes: dict[str, Any] = {name: getattr(self, name) for name in fields}
        vocabulary = AdaptiveVocabulary(self.vocabulary, **sizes, name="vocabulary_layer")
        x = self._drop(vocabulary.embed(tokens).astype(self.dtype), train)
        positions = self._drop(jnp.asarray(positions), train)
        x, remembered = self._run_blocks(x, arch, memory, (mask, positions), train)
        rows = x.reshape(-1, self.width)
        if self.pre_norm:
            rows = LayerNorm(dtype=self.dtype, name="norm")(rows, fixed(self.width, "embed"))
        rows = self._drop(rows, train)
        if targets is None:
            scores = vocabulary.log_probabilities(rows).reshape(batch, length, -1)
        else:
            scores = vocabulary.log_probability(rows, targets.reshape(-1)).reshape(batch, length)
        return scores, Memory(remembered, known[:, length:])

    def _drop(self, x: jax.Array, train: bool) -> jax.Array:
        if not train or self.dropout == 0:
            return x
        keep = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.dropout, x.shape)
        return jnp.where(keep, x / (1 - self.dropout), jnp.zeros_like(x))

    def block(self, option: str) -> nn.Module:
        """The block of an option, by itself."""
        fields = {"attention": ("num_heads", "head_dim", "attention_dropout"), "feed_forward": ("hidden",)}
        if option not in fields:
            return Identity(parent=None)
        names = ("pre_norm", "dropout", "dtype", "init_std", *fields[option])
        made = RelativeAttention if option == "attention" else FeedForward
        return made(**{name: getattr(self, name) for name in names}, parent=None)

    def _mixture(self, **names: Any) -> Mixture:
        return Mixture({name: self.block(name) for name in map(str, self.space["block"].options)}, **names)

    def _run_blocks(
        self, x: jax.Array, arch: Arch | None, memory: Memory, seen: tuple[jax.Array, jax.Array], train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """The blocks' output [B, T, D], and the inputs of those that may attend, as a memory."""
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        nothing = jnp.zeros((x.shape[0], self.memory_length, self.width), self.dtype)
        of_block = dict(zip(self.attending, memory.inputs, strict=True))
        inputs = [
            {"choice": decisions["block", i], "memory": of_block.get(i, nothing)} for i in range(self.blocks)
        ]

        def call(mixture: Mixture, x: jax.Array, block: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            context = Context(block["memory"], *seen)
            return mixture(block["choice"], x, context, train=train), self._remember(block["memory"], x)

        scan = self.scan_blocks and len(self.space["block"].options) > 1
        x, remembered = run_layers(self, self._mixture, call, x, inputs, scan=scan, remat=self.remat)
        # Blocks that never attend need no memory.
        attends = len(self.attending) == self.blocks
        return x, remembered if attends else remembered[np.array(self.attending, np.int32)]

    def _remember(self, past: jax.Array, x: jax.Array) -> jax.Array:
        if self.memory_length == 0:
            return past
        both = jnp.concatenate([past, x.astype(past.dtype)], axis=1)
        return jax.lax.stop_gradient(both[:, both.shape[1] - self.memory_length :])


def _tokens(inputs: dict[str, Any]) -> jax.Array:
    """The tokens among the inputs, which are checked."""
    if unknown := sorted(inputs.keys() - set(INPUTS)):
        raise ValueError(f"TransformerXL takes the inputs {INPUTS}, and no {unknown[0]!r}.")
    tokens = inputs.get("tokens")
    if tokens is None or tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        what = "none" if tokens is None else f"{tokens.dtype} of shape {tokens.shape}"
        raise ValueError(f"Expected integer tokens [B, T], got {what}.")
    return tokens
