"""Policies: distributions over the architectures of a space, with parameters that can be trained.

A policy is a frozen dataclass with pure functions of its parameters:

  init(key, space) -> params
  sample(params, space, key, context) -> code, int32 [L]
  evaluate(params, space, code, context) -> log-probability [], entropy [], value []

`context` is what the search has seen so far, float32 [CONTEXT]. Decisions that the earlier ones make
inactive are not counted. `value` predicts the reward from the context.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.space import Space

CONTEXT = 3


def _allowed(space: Space) -> jax.Array:
    """Which options each decision has, bool [L, W]."""
    width = max(space.sizes)
    return jnp.arange(width)[None, :] < jnp.asarray(space.sizes, jnp.int32)[:, None]


def _pick(key: jax.Array, logits: jax.Array) -> jax.Array:
    return jax.random.categorical(key, logits).astype(jnp.int32)


def _canonical(space: Space, code: jax.Array) -> jax.Array:
    return space.encode(space.canonical(space.decode(code)))


def _decided_in_order(space: Space) -> np.ndarray:
    """For which decisions all that may make them inactive are decided before, bool [L]."""
    order, known = list(space.choices), []
    for place, (_, choice) in enumerate(space.decisions):
        deciding = [choice.active, choice.condition[0] if choice.condition else None]
        before = all(order.index(name) < place for name in deciding if name is not None)
        known += [before] * (choice.length or 1)
    return np.asarray(known)


def _score(space: Space, logits: jax.Array, code: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy of the active decisions under logits [L, W]."""
    log_probabilities = jax.nn.log_softmax(jnp.where(_allowed(space), logits, -1e9))
    active = space.active_code(space.decode(code)).astype(jnp.float32)
    chosen = jnp.take_along_axis(log_probabilities, code[:, None], axis=1)[:, 0]
    entropy = -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=1)
    return jnp.sum(active * chosen), jnp.sum(active * entropy)


@dataclasses.dataclass(frozen=True)
class SoftmaxPolicy:
    """An independent softmax for each decision (Zoph and Le's baseline; NAS-Bench-201's REINFORCE).

    Attributes:
      scale: standard deviation of the logits at the start.
    """

    scale: float = 1e-3

    def __post_init__(self):
        check_numbers(self, "scale", least=0)

    def init(self, key: jax.Array, space: Space) -> Any:
        """Returns the parameters at the start."""
        shape = (space.length, max(space.sizes))
        return {"logits": self.scale * jax.random.normal(key, shape), "value": jnp.float32(0)}

    def sample(self, params: Any, space: Space, key: jax.Array, context: jax.Array) -> jax.Array:
        """A random canonical architecture, int32 [L]."""
        del context
        logits = jnp.where(_allowed(space), params["logits"], -jnp.inf)
        return _canonical(space, _pick(key, logits))

    def evaluate(self, params: Any, space: Space, code: jax.Array, context: jax.Array) -> Any:
        """Log-probability, entropy and value, float32 [] each."""
        del context
        return *_score(space, params["logits"], code), params["value"]


class _Decoder(nn.Module):
    """A causal Transformer over [context, decision 1, ...]: logits of each decision from those before."""

    space: Space
    width: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, code: jax.Array, context: jax.Array) -> tuple[jax.Array, jax.Array]:
        length, options = self.space.length, max(self.space.sizes)
        # Repeats of one choice share the embeddings of its options.
        kinds = [i for i, (_, c) in enumerate(self.space.decisions) for _ in range(c.length or 1)]
        tokens = jnp.asarray(np.asarray(kinds) * options, jnp.int32) + code
        init = nn.initializers.normal(0.1)
        embedded = nn.Embed(len(self.space) * options, self.width, embedding_init=init)(tokens)
        first = nn.Dense(self.width, name="context")(context)[None]
        x = jnp.concatenate([first, embedded[:-1]])  # [L, width]
        x = x + self.param("positions", init, (length, self.width))
        causal = nn.make_causal_mask(jnp.ones((length,)))
        for layer in range(self.layers):
            y = nn.LayerNorm(name=f"attention_norm_{layer}")(x)
            attention = nn.MultiHeadDotProductAttention(self.heads, name=f"attention_{layer}")
            x = x + attention(y, mask=causal)  # pyrefly: ignore[unsupported-operation] # no None
            y = nn.LayerNorm(name=f"mlp_norm_{layer}")(x)
            y = nn.gelu(nn.Dense(4 * self.width, name=f"mlp_in_{layer}")(y))
            x = x + nn.Dense(self.width, name=f"mlp_out_{layer}")(y)
        x = nn.LayerNorm(name="norm")(x)
        # A small last layer: the first architectures are nearly uniform.
        last = nn.initializers.variance_scaling(1e-4, "fan_in", "normal")
        logits = nn.Dense(options, kernel_init=last, name="logits")(x)
        return logits, nn.Dense(1, kernel_init=last, name="value")(x[0])[0]


@dataclasses.dataclass(frozen=True)
class TransformerPolicy:
    """An autoregressive causal Transformer over the decisions, masked to each decision's options.

    The first token carries what the search has seen so far, the others the partial architecture
    (in the spirit of masked-attention density estimators, arXiv 2006.00939).

    Attributes:
      width: of the tokens.
      layers: how many blocks there are.
      heads: of the attention.
    """

    width: int = 32
    layers: int = 2
    heads: int = 4

    def __post_init__(self):
        check_counts(self, "width", "layers", "heads")
        if self.width % self.heads:
            raise ValueError(
                f"TransformerPolicy: width is {self.width}, expected a multiple of the {self.heads} heads."
            )

    def _module(self, space: Space) -> _Decoder:
        return _Decoder(space, self.width, self.layers, self.heads)

    def init(self, key: jax.Array, space: Space) -> Any:
        """Returns the parameters at the start."""
        code = jnp.zeros((space.length,), jnp.int32)
        return self._module(space).init(key, code, jnp.zeros((CONTEXT,)))["params"]

    def sample(self, params: Any, space: Space, key: jax.Array, context: jax.Array) -> jax.Array:
        """A random canonical architecture, int32 [L]."""
        allowed, module = _allowed(space), self._module(space)

        known = jnp.asarray(_decided_in_order(space))

        def decide(code: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            place, key = step
            logits, _ = module.apply({"params": params}, code, context)
            option = _pick(key, jnp.where(allowed[place], logits[place], -jnp.inf))
            # Later decisions see what `evaluate` will show them: an inactive one is canonical.
            active = space.active_code(space.decode(code))[place] | ~known[place]
            return code.at[place].set(jnp.where(active, option, 0)), None

        steps = jnp.arange(space.length), jax.random.split(key, space.length)
        code, _ = jax.lax.scan(decide, jnp.zeros((space.length,), jnp.int32), steps)
        return _canonical(space, code)

    def evaluate(self, params: Any, space: Space, code: jax.Array, context: jax.Array) -> Any:
        """Log-probability, entropy and value, float32 [] each."""
        logits, value = self._module(space).apply({"params": params}, code, context)
        return *_score(space, logits, code), value
