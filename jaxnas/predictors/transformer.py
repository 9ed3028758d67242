"""A Transformer over an architecture's operations, taught the space, with a Gaussian process on top."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxnas.predictors.gp import GaussianProcess, matrices


class Encoder(nn.Module):
    """A Transformer encoder from tokens to one vector, and from that to structural properties.

    The first layer attends within a segment (a path of a cell), the others everywhere; tokens have no
    index of their segment, so the order of the paths does not matter.
    """
    kinds: int
    places: int
    properties: int
    width: int = 32
    heads: int = 2
    layers: int = 2
    outputs: int = 32

    @nn.compact
    def __call__(self, tokens: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """From int32 [N, T] each to float32 [N, outputs] and [N, properties]."""
        kind, segment = tokens["kind"], tokens["segment"]
        x = nn.Embed(self.kinds + 1, self.width)(kind + 1)
        x += nn.Embed(self.places, self.width)(tokens["place"])
        summary = self.param("summary", nn.initializers.normal(0.02), (self.width,))
        x = jnp.concatenate([x, jnp.broadcast_to(summary, (kind.shape[0], 1, self.width))], 1)
        there = jnp.pad(kind >= 0, [(0, 0), (0, 1)], constant_values=True)
        segment = jnp.pad(segment, [(0, 0), (0, 1)], constant_values=-1)
        same = segment[:, :, None] == segment[:, None, :]
        for layer in range(self.layers):
            mask = there[:, None, :] & (same if layer == 0 else jnp.ones_like(same))
            h = nn.LayerNorm()(x)
            x += nn.MultiHeadDotProductAttention(self.heads)(h, h, mask=mask[:, None])
            h = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
            x += nn.Dense(self.width)(h)
        # A sum and not a mean: how many operations there are matters.
        total = (x[:, :-1] * there[:, :-1, None].astype(x.dtype)).sum(1) / x.shape[1] ** 0.5
        vector = nn.Dense(self.outputs)(jnp.concatenate([nn.LayerNorm()(x[:, -1]), total], 1))
        return vector, nn.Dense(self.properties)(nn.gelu(nn.Dense(2 * self.width)(vector)))


@dataclasses.dataclass(frozen=True)
class TransformerPredictor:
    """An ensemble of Transformers that learned the space without scores, and a Gaussian process.

    `pretrain` teaches the encoders to tell an architecture's structural properties (its `features`)
    from its tokens, without any score; `encode` then gives inputs that hold the members' vectors, once
    for all architectures; `fit` and `predict` are a Gaussian process on these, so that refitting as
    results arrive costs what a process costs.

        predictor = TransformerPredictor(kinds=3, places=3)
        weights = predictor.pretrain(key, {"tokens": tokens, "features": features})
        inputs = predictor.encode(weights, {"tokens": tokens, "features": features})
        fitted = predictor.fit(key, inputs, targets, mask)

    `tokens` is a dict of int32 [N, T] as `path_tokens` or `tokens` give, `features` a pytree of
    arrays [N, ...].

    Attributes:
      kinds, places: upper bounds of the tokens' values.
      width, heads, layers, outputs: of an encoder.
      members: of the ensemble.
      steps, batch, learning_rate: of Adam in `pretrain`; the rate falls along a cosine.
      structure: whether the process sees the features too, or the learned vectors alone.
      process: the Gaussian process; each member's vector is one of its groups. Another predictor may
        stand here: `MlpEnsemble(ranking=1.0)` trains a ranking loss on the vectors.
    """
    kinds: int
    places: int
    width: int = 32
    heads: int = 2
    layers: int = 2
    outputs: int = 32
    members: int = 2
    steps: int = 2000
    batch: int = 128
    learning_rate: float = 2e-3
    structure: bool = True
    process: Any = GaussianProcess()

    def _encoder(self, properties: int) -> Encoder:
        return Encoder(self.kinds, self.places, properties, self.width, self.heads, self.layers,
                       self.outputs)

    def pretrain(self, key: jax.Array, inputs: Any) -> Any:
        """Returns the encoders' weights, a pytree with a leading axis of members.

        Inputs are those of unlabelled architectures [N, ...]; the loss is the squared error of the
        features, each group counting the same. Pure; under jit it is one program.
        """
        columns = []
        for group in matrices(inputs["features"]):
            centred = group - group.mean(0)[None]
            columns.append(centred / jnp.sqrt(jnp.sum(group.var(0)) + 1e-6))
        aims = jnp.concatenate(columns, 1)
        tokens, encoder = inputs["tokens"], self._encoder(aims.shape[1])
        optimizer = optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.steps))

        def member(key):
            init_key, key = jax.random.split(key)
            weights = encoder.init(init_key, jax.tree.map(lambda x: x[:1], tokens))

            def step(carry, key):
                weights, state = carry
                rows = jax.random.randint(key, (self.batch,), 0, aims.shape[0])

                def loss(weights):
                    told = encoder.apply(weights, jax.tree.map(lambda x: x[rows], tokens))[1]
                    return jnp.mean(jnp.sum((told - aims[rows]) ** 2, axis=1))

                grads = jax.grad(loss)(weights)
                with jax.numpy_dtype_promotion("standard"):  # as in GaussianProcess
                    updates, state = optimizer.update(grads, state)
                return (optax.apply_updates(weights, updates), state), None

            start = weights, optimizer.init(weights)
            return jax.lax.scan(step, start, jax.random.split(key, self.steps))[0][0]

        return jax.vmap(member)(jax.random.split(key, self.members))

    def encode(self, weights: Any, inputs: Any) -> dict[str, Any]:
        """Returns inputs for `fit` and `predict`: vectors float32 [N, outputs], and the features."""
        properties = sum(group.shape[1] for group in matrices(inputs["features"]))
        encoder = self._encoder(properties)
        vectors = jax.lax.map(lambda one: encoder.apply(one, inputs["tokens"])[0], weights)
        encoded: dict[str, Any] = {"vectors": list(vectors)}
        return encoded | ({"features": inputs["features"]} if self.structure else {})

    def fit(self, key: jax.Array, inputs: Any, targets: jax.Array, mask: jax.Array) -> dict[str, Any]:
        """Returns the fitted process; as `GaussianProcess.fit`, on what `encode` returned.

        Raises ValueError for inputs that are not encoded or, outside jit, fewer than two points.
        """
        if not isinstance(inputs, dict) or "vectors" not in inputs:
            raise ValueError("fit: inputs without vectors; pass what encode(weights, inputs) returns.")
        return self.process.fit(key, inputs, targets, mask)

    def predict(self, fitted: dict[str, Any], inputs: Any) -> tuple[jax.Array, jax.Array]:
        """Returns means and standard deviations float32 [M]; as `GaussianProcess.predict`."""
        return self.process.predict(fitted, inputs)
