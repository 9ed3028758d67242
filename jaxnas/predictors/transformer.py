"""A Transformer over an architecture's operations, under a Gaussian process."""

import dataclasses
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnas.checks import check_counts, check_key, check_methods, check_numbers
from jaxnas.predictors.fitting import descend, matrices
from jaxnas.predictors.gp import GaussianProcess


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
            attention = nn.MultiHeadDotProductAttention(self.heads)
            x += attention(h, h, mask=mask[:, None])  # pyrefly: ignore[unsupported-operation] # no None
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
      members: of the ensemble; they differ in their initial weights and their batches.
      steps, batch, learning_rate: of the pretraining; the rate falls along a cosine.
      structure: whether to predict from the features beside the learned vectors.
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

    def __post_init__(self):
        check_counts(self, "kinds", "places", "width", "heads", "layers", "outputs")
        check_counts(self, "members", "steps", "batch")
        check_numbers(self, "learning_rate", above=0)
        check_methods(self, "process", ("fit", "predict"), "GaussianProcess()")
        if self.width % self.heads:
            raise ValueError(
                f"TransformerPredictor: width is {self.width}, expected a multiple of {self.heads} heads."
            )

    def pretrain(self, key: jax.Array, inputs: Any) -> Any:
        """Returns the encoders' weights, a pytree with a leading axis of members.

        Inputs are those of unlabeled architectures [N, ...]; the loss is the squared error of the
        features, each group counting the same. Pure; under jit it is one program.
        """
        check_key("pretrain", key)
        tokens, groups = self._inputs(inputs)
        scaled = [(x - x.mean(0)[None]) / jnp.sqrt(jnp.sum(x.var(0)) + 1e-6) for x in groups]
        aims = jnp.concatenate(scaled, 1)
        rate = optax.cosine_decay_schedule(self.learning_rate, self.steps)
        encoder, optimizer = self._encoder(aims.shape[1]), optax.adam(rate)

        def member(key):
            init_key, key = jax.random.split(key)
            weights = encoder.init(init_key, jax.tree.map(lambda x: x[:1], tokens))

            def loss(weights, key):
                rows = jax.random.randint(key, (self.batch,), 0, aims.shape[0])
                drawn = jax.tree.map(lambda x: x[rows], tokens)
                _, told = cast("tuple[jax.Array, ...]", encoder.apply(weights, drawn))
                return jnp.mean(jnp.sum((told - aims[rows]) ** 2, axis=1))

            return descend(loss, weights, optimizer, jax.random.split(key, self.steps))

        return jax.vmap(member)(jax.random.split(key, self.members))

    def encode(self, weights: Any, inputs: Any) -> dict[str, Any]:
        """Returns inputs for `fit` and `predict`: vectors float32 [N, outputs], and the features."""
        tokens, groups = self._inputs(inputs)
        encoder = self._encoder(sum(group.shape[1] for group in groups))
        vectors = jax.lax.map(lambda one: encoder.apply(one, tokens)[0], weights)
        encoded: dict[str, Any] = {"vectors": list(vectors)}
        return encoded | ({"features": inputs["features"]} if self.structure else {})

    def fit(self, key: jax.Array, inputs: Any, targets: jax.Array, mask: jax.Array) -> dict[str, Any]:
        """Returns the fitted process; as `GaussianProcess.fit`, on what `encode` returned."""
        if not isinstance(inputs, dict) or "vectors" not in inputs:
            raise ValueError("fit: inputs without vectors; pass what encode(weights, inputs) returns.")
        return self.process.fit(key, inputs, targets, mask)

    def predict(self, fitted: dict[str, Any], inputs: Any) -> tuple[jax.Array, jax.Array]:
        """Returns means and standard deviations float32 [M]; as `GaussianProcess.predict`."""
        return self.process.predict(fitted, inputs)

    def _encoder(self, properties: int) -> Encoder:
        return Encoder(self.kinds, self.places, properties, self.width, self.heads, self.layers, self.outputs)

    def _inputs(self, inputs: Any) -> tuple[dict[str, jax.Array], list[jax.Array]]:
        """The tokens of inputs, and their features as matrices [N, F]; outside jit numbers are checked."""
        if not isinstance(inputs, dict) or not {"tokens", "features"} <= inputs.keys():
            raise ValueError("TransformerPredictor: expected inputs with tokens and features by name.")
        tokens, bounds = inputs["tokens"], {"kind": (-1, self.kinds), "place": (0, self.places)}
        names = (*bounds, "segment")
        shapes = {
            name: np.shape(tokens[name]) for name in names if isinstance(tokens, dict) and name in tokens
        }
        integers = all(jnp.issubdtype(jnp.asarray(tokens[name]).dtype, jnp.integer) for name in shapes)
        if len(shapes) < 3 or len(set(shapes.values())) > 1 or len(shapes["kind"]) != 2 or not integers:
            raise ValueError(
                f"TransformerPredictor: the tokens have the shapes {shapes}, expected {', '.join(names)} as "
                "integers [N, T] each: jax.vmap(predictors.tokens(space))(archs)."
            )
        for name, (low, high) in bounds.items():
            values = tokens[name]
            if isinstance(values, jax.core.Tracer) or not values.size:
                continue
            if values.min() < low or values.max() >= high:
                raise ValueError(
                    f"TransformerPredictor: the tokens' {name} is from {values.min()} to {values.max()}, "
                    f"expected {low} to {high - 1}, since {name}s is {high}."
                )
        return tokens, matrices(inputs["features"])
