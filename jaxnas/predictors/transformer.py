"""A Transformer over an architecture's operations: under a Gaussian process, or trained on scores itself."""

import dataclasses
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnas.checks import check_counts, check_methods, check_numbers
from jaxnas.predictors.fitting import (
    check_fitted,
    check_inputs,
    check_key,
    columns,
    descend,
    matrices,
    prepare,
    scaling,
)
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
class _Ensemble:
    """Sizes and training of the encoders of both predictors.

    Attributes:
      kinds, places: upper bounds of the tokens' values.
      width, heads, layers, outputs: of an encoder.
      members: of the ensemble; they differ in their initial weights and their batches.
      steps, batch, learning_rate: of the training; the rate falls along a cosine.
      structure: whether to predict from the features beside the learned vectors.
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

    def __post_init__(self):
        check_counts(self, "kinds", "places", "width", "heads", "layers", "outputs")
        check_counts(self, "members", "steps", "batch")
        check_numbers(self, "learning_rate", above=0)
        if self.width % self.heads:
            raise ValueError(
                f"{type(self).__name__}: width is {self.width}, expected a multiple of {self.heads} heads."
            )

    def _encoder(self, properties: int) -> Encoder:
        return Encoder(self.kinds, self.places, properties, self.width, self.heads, self.layers, self.outputs)

    def _rate(self) -> optax.Schedule:
        return optax.cosine_decay_schedule(self.learning_rate, self.steps)

    def _inputs(self, inputs: Any, features: bool) -> tuple[dict[str, jax.Array], list[jax.Array]]:
        """The tokens of inputs, and their features as matrices [N, F], [] where they are not needed.

        Raises:
          ValueError: they lack something, or the tokens have other shapes or dtypes or, outside jit, numbers
            that the predictor has no vectors for.
        """
        kind = type(self).__name__
        needed = ["tokens", *(["features"] if features else [])]
        if not isinstance(inputs, dict) or any(name not in inputs for name in needed):
            raise ValueError(f"{kind}: expected inputs with {' and '.join(needed)} by name.")
        tokens, bounds = inputs["tokens"], {"kind": (-1, self.kinds), "place": (0, self.places)}
        names = (*bounds, "segment")
        shapes = {
            name: np.shape(tokens[name]) for name in names if isinstance(tokens, dict) and name in tokens
        }
        integers = all(jnp.issubdtype(jnp.asarray(tokens[name]).dtype, jnp.integer) for name in shapes)
        if len(shapes) < 3 or len(set(shapes.values())) > 1 or len(shapes["kind"]) != 2 or not integers:
            raise ValueError(
                f"{kind}: the tokens have the shapes {shapes}, expected {', '.join(names)} as integers "
                "[N, T] each: jax.vmap(predictors.tokens(space))(archs)."
            )
        for name, (low, high) in bounds.items():
            values = tokens[name]
            if isinstance(values, jax.core.Tracer) or not values.size:
                continue
            if values.min() < low or values.max() >= high:
                raise ValueError(
                    f"{kind}: the tokens' {name} is from {values.min()} to {values.max()}, expected {low} to "
                    f"{high - 1}, since {name}s is {high}."
                )
        return tokens, matrices(inputs["features"]) if features else []


@dataclasses.dataclass(frozen=True)
class TransformerPredictor(_Ensemble):
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
      process: the Gaussian process; each member's vector is one of its groups. Another predictor may
        stand here: `MlpEnsemble(ranking=1.0)` trains a ranking loss on the vectors.
    """

    process: Any = GaussianProcess()

    def __post_init__(self):
        super().__post_init__()
        check_methods(self, "process", ("fit", "predict"), "GaussianProcess()")

    def pretrain(self, key: jax.Array, inputs: Any) -> Any:
        """Returns the encoders' weights, a pytree with a leading axis of members.

        Inputs are those of unlabeled architectures [N, ...]; the loss is the squared error of the
        features, each group counting the same. Pure; under jit it is one program.
        """
        check_key(key)
        tokens, groups = self._inputs(inputs, features=True)
        scaled = [(x - x.mean(0)[None]) / jnp.sqrt(jnp.sum(x.var(0)) + 1e-6) for x in groups]
        aims = jnp.concatenate(scaled, 1)
        encoder, optimizer = self._encoder(aims.shape[1]), optax.adam(self._rate())

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
        tokens, groups = self._inputs(inputs, features=True)
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


class Scorer(nn.Module):
    """An `Encoder` and a head from its vector, and the features if there are any, to a score."""

    encoder: Encoder

    @nn.compact
    def __call__(self, tokens: dict[str, jax.Array], columns: jax.Array) -> jax.Array:
        """From int32 [N, T] each and float32 [N, F] to float32 [N]."""
        vector, _ = self.encoder(tokens)
        x = jnp.concatenate([vector, columns], 1)
        return nn.Dense(1)(nn.gelu(nn.Dense(2 * self.encoder.width)(x)))[:, 0]


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Weights that training starts from, as `TransformerPredictor.pretrain` returns them."""

    weights: Any


@dataclasses.dataclass(frozen=True)
class SupervisedTransformer(_Ensemble):
    """An ensemble of Transformers trained end to end on scores, by regression and by ranking.

    The loss is `regression` times the squared error plus `ranking` times the logistic loss of all
    pairs of a batch that differ: softplus(told of the lower - told of the higher). Targets are normal
    quantiles of ranks. Members differ in their initial weights and their batches.

    Do not take it first: a `GaussianProcess` on the features of paths ranked better at each size that was
    measured (docs/benchmarks/strategies.md). On tokens alone this one ranks better than a process on one-hot
    decisions where few cells are known, and no better where many are. It is for inputs with features beside
    the tokens, and for experiments with losses and pretraining.

        predictor = SupervisedTransformer(kinds=3, places=3)
        fitted = predictor.fit(key, {"tokens": tokens, "features": features}, targets, mask)
        mean, std = predictor.predict(fitted, {"tokens": tokens, "features": features})

    Attributes:
      ranking, regression: weights of the losses; 0 leaves one out.
      decay: of AdamW. Batches are drawn from the points in use, with replacement.
      ranks: fit normal quantiles of ranks; else standardized targets.
      start: weights of the encoders to start from, of as many members; None for random ones.
    """

    members: int = 3
    steps: int = 150
    batch: int = 64
    learning_rate: float = 1e-3
    ranking: float = 1.0
    regression: float = 1.0
    decay: float = 1e-2
    ranks: bool = True
    start: Start | None = None

    def __post_init__(self):
        super().__post_init__()
        check_numbers(self, "decay", "ranking", "regression", least=0)
        if self.ranking + self.regression == 0:
            raise ValueError(
                "SupervisedTransformer: ranking and regression are both 0; one of them is to be trained."
            )
        if self.start is not None:
            count = len(jax.tree.leaves(self.start.weights)[0])
            if count != self.members:
                raise ValueError(f"SupervisedTransformer: start has weights of {count} members.")

    def fit(self, key: jax.Array, inputs: Any, targets: jax.Array, mask: jax.Array) -> dict[str, Any]:
        """Returns the trained members, a pytree for `predict`.

        Args:
          key: a typed key.
          inputs: {"tokens": dict of int32 [N, T]} as `path_tokens` or `tokens` give, and, for
            `structure`, "features": a pytree of arrays [N, ...].
          targets: scores, float [N]; higher is better.
          mask: the rows in use, bool [N]; what the others hold does not matter.
        """
        check_key(key)
        targets, mask = prepare(targets, mask, self.ranks)
        tokens, groups = self._inputs(inputs, self.structure)
        if groups:
            check_inputs(groups, mask)
        count = jnp.maximum(mask.sum(dtype=jnp.float32), 1.0)
        mean, scale = scaling(groups, mask)
        features = self._features(tokens, groups, mean, scale)
        model, used = self._scorer(), jnp.argsort(~mask, stable=True)  # rows in use come first
        adam = optax.adamw(self._rate(), weight_decay=self.decay)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), adam)

        def member(key: jax.Array, start: Any) -> Any:
            init_key, key = jax.random.split(key)
            params = model.init(init_key, jax.tree.map(lambda x: x[:1], tokens), features[:1])
            if start is not None:
                params = self._started(params, start)

            def loss(params: Any, key: jax.Array) -> jax.Array:
                drawn = jax.random.uniform(key, (self.batch,)) * count
                rows = used[jnp.minimum(drawn, count - 1).astype(jnp.int32)]
                of_rows = jax.tree.map(lambda x: x[rows], tokens)
                told, aims = jnp.asarray(model.apply(params, of_rows, features[rows])), targets[rows]
                squared = self.regression * jnp.mean((told - aims) ** 2)
                return squared + self.ranking * ranking_loss(told, aims)

            params = descend(loss, params, optimizer, jax.random.split(key, self.steps))
            return {"params": params, **self._units(params, tokens, features, mask)}

        keys = jax.random.split(key, self.members)
        if self.start is None:
            members = jax.vmap(lambda key: member(key, None))(keys)
        else:
            members = jax.vmap(member)(keys, self.start.weights)
        return {"members": members, "mean": mean, "scale": scale}

    def predict(self, fitted: dict[str, Any], inputs: Any) -> tuple[jax.Array, jax.Array]:
        """Returns the members' means and standard deviations float32 [M] of inputs [M, ...].

        In the units of the transformed targets, which are monotone in the targets.
        """
        tokens, groups = self._inputs(inputs, self.structure)
        check_fitted(fitted, "mean", groups)
        features, model = self._features(tokens, groups, fitted["mean"], fitted["scale"]), self._scorer()

        def member(one: Any) -> jax.Array:
            told = jnp.asarray(model.apply(one["params"], tokens, features))
            return (told - one["level"]) / one["spread"]

        told = jax.lax.map(member, fitted["members"])
        return told.mean(0), told.std(0) + 1e-6

    def _units(self, params: Any, tokens: Any, features: jax.Array, mask: jax.Array) -> Any:
        """The level and spread of a member's scores of the points in use, float32 [] each."""
        if self.regression:
            return {"level": jnp.float32(0), "spread": jnp.float32(1)}
        # A ranking loss alone leaves both open, and members could not be compared.
        told = jnp.asarray(self._scorer().apply(params, tokens, features))
        count = jnp.maximum(mask.sum(dtype=jnp.float32), 1.0)
        level = jnp.sum(jnp.where(mask, told, 0)) / count
        square = jnp.sum(jnp.where(mask, told - level, 0) ** 2) / count
        return {"level": level, "spread": jnp.sqrt(square + 1e-6)}

    def _scorer(self) -> Scorer:
        return Scorer(self._encoder(1))

    def _features(self, tokens: Any, groups: list, mean: list, scale: list) -> jax.Array:
        """The features float32 [N, F], each group centered and scaled as a whole; F is 0 without any."""
        rows = tokens["kind"].shape[0]
        return columns(groups, mean, scale) if groups else jnp.zeros((rows, 0), jnp.float32)

    def _started(self, params: Any, start: Any) -> Any:
        """The weights with the encoder's taken from another, less its head of properties."""
        own, given = params["params"]["encoder"], start["params"]
        if own.keys() != given.keys():
            raise ValueError("SupervisedTransformer: start holds the weights of another encoder.")
        head = max(int(name.split("_")[1]) for name in own if name.startswith("Dense_"))
        kept = given | {name: own[name] for name in (f"Dense_{head - 1}", f"Dense_{head}")}
        if jax.tree.map(jnp.shape, kept) != jax.tree.map(jnp.shape, own):
            raise ValueError("SupervisedTransformer: start holds weights of other sizes than the encoder's.")
        return {"params": params["params"] | {"encoder": kept}}


def ranking_loss(told: jax.Array, aims: jax.Array) -> jax.Array:
    """The mean logistic loss of all pairs of float32 [N] that differ in their aim, []."""
    higher = (aims[:, None] > aims[None, :]).astype(jnp.float32)
    wrong = jax.nn.softplus(told[None, :] - told[:, None])
    return jnp.sum(higher * wrong) / jnp.maximum(higher.sum(), 1.0)
