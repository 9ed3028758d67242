"""A Transformer over an architecture's operations, with a Gaussian process as its last layer."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxnas.predictors.gp import GaussianProcess, likelihood_cost, matrices, squared_distances
from jaxnas.predictors.targets import prepare


class Encoder(nn.Module):
    """A Transformer encoder from tokens and feature groups to one vector.

    The first layer attends within a segment (a path of a cell), the others everywhere; tokens have no
    index of their segment, so the order of the paths does not matter. Each feature group is one more
    token, which all others see.
    """
    kinds: int
    places: int
    width: int = 24
    heads: int = 2
    layers: int = 2
    outputs: int = 6

    @nn.compact
    def __call__(self, tokens: dict[str, jax.Array], groups: list[jax.Array]) -> jax.Array:
        """From tokens int32 [N, T] each and groups float32 [N, F] to float32 [N, outputs]."""
        kind, segment = tokens["kind"], tokens["segment"]
        x = nn.Embed(self.kinds + 1, self.width)(kind + 1)
        x += nn.Embed(self.places, self.width)(tokens["place"])
        extra = [nn.Dense(self.width)(group)[:, None] for group in groups]
        count = kind.shape[0], len(extra) + 1
        summary = self.param("summary", nn.initializers.normal(0.02), (self.width,))
        x = jnp.concatenate([x, *extra, jnp.broadcast_to(summary, (count[0], 1, self.width))], 1)
        there = jnp.concatenate([kind >= 0, jnp.ones(count, bool)], 1)
        segment = jnp.concatenate([segment, jnp.full(count, -1, jnp.int32)], 1)
        same = segment[:, :, None] == segment[:, None, :]
        for layer in range(self.layers):
            mask = there[:, None, :] & (same if layer == 0 else jnp.ones_like(same))
            h = nn.LayerNorm()(x)
            x += nn.MultiHeadDotProductAttention(self.heads)(h, h, mask=mask[:, None])
            h = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
            x += nn.Dense(self.width)(h)
        # A sum and not a mean: how many operations there are matters.
        total = (x[:, :-1] * there[:, :-1, None].astype(x.dtype)).sum(1) / x.shape[1] ** 0.5
        x = jnp.concatenate([nn.LayerNorm()(x[:, -1]), total], 1)
        return nn.Dense(self.outputs)(x)


@dataclasses.dataclass(frozen=True)
class TransformerPredictor:
    """An ensemble of Transformers with a Gaussian process on what they learn: deep kernels.

    The kernel is that of `process` on the feature groups plus `deep^2 exp(-d^2 / 2)` of the distance d
    between the vectors of an `Encoder` (deep kernel learning, arXiv 1511.02222). Weights and
    hyper-parameters together maximise the marginal likelihood by Adam; members differ in their
    initial weights, and their processes are averaged.

    Inputs are a dict: `tokens`, a dict of int32 [N, T] as `path_tokens` gives, and `features`, a
    pytree of arrays [N, ...], the groups.

    Attributes:
      kinds, places: upper bounds of the tokens' values.
      width, heads, layers, outputs: of the encoder.
      members: of the ensemble.
      steps, learning_rate, decay: of Adam; `decay` pulls weights to their initial values, as a prior.
      deep: initial standard deviation of the encoder's part.
      process: the kernel of the feature groups; its own `steps` come first, without the encoder.
    """
    kinds: int
    places: int
    width: int = 24
    heads: int = 2
    layers: int = 2
    outputs: int = 6
    members: int = 3
    steps: int = 60
    learning_rate: float = 3e-3
    decay: float = 1.0
    deep: float = 1.0
    process: GaussianProcess = GaussianProcess()

    @property
    def _encoder(self) -> Encoder:
        return Encoder(self.kinds, self.places, self.width, self.heads, self.layers, self.outputs)

    def fit(self, key: jax.Array, inputs: Any, targets: jax.Array, mask: jax.Array) -> dict[str, Any]:
        """Returns the fitted ensemble, a pytree for `predict`; arguments as in `GaussianProcess`.

        Raises ValueError for fewer than two points, outside jit.
        """
        base = self.process.fit(key, inputs["features"], targets, mask)
        targets, mask = prepare(targets, mask, self.process.ranks)
        weight = mask[:, None].astype(jnp.float32)
        groups = base["inputs"]
        count = jnp.maximum(weight.sum(), 1.0)
        mean = [(g * weight).sum(0) / count for g in groups]
        # One scale for a group: a column that is nearly constant must not be blown up.
        scale = [jnp.sqrt((((g - m[None]) ** 2) * weight).sum() / count + 1e-6)
                 for g, m in zip(groups, mean, strict=True)]
        fitted = base | {"tokens": inputs["tokens"], "mean": mean, "scale": scale}
        standard = self._standard(fitted, groups)
        squares, products = self.process.distances(base, groups)
        pairs = mask[:, None] & mask[None, :]

        def kernel(params, vectors):
            matrix = self.process.kernel(params["hyper"], squares, products)
            return matrix + self._deep(params, vectors, vectors)

        def loss(params, first):
            vectors = self._encoder.apply(params["net"], inputs["tokens"], standard)
            matrix = self.process.noisy(params["hyper"], kernel(params, vectors), mask)
            off = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), params["net"], first["net"])
            cost = likelihood_cost(matrix, targets) + self.decay * sum(jax.tree.leaves(off)) / 2
            return cost + self.process.penalty(params["hyper"])

        def member(key):
            net = self._encoder.init(key, inputs["tokens"], standard)
            first = {"net": net, "hyper": base["hyper"],
                     "deep": jnp.log(jnp.float32(self.deep))}
            optimizer = optax.multi_transform(
                {"net": optax.adam(self.learning_rate), "rest": optax.adam(0.03)},
                {"net": "net", "hyper": "rest", "deep": "rest"})

            def step(carry, _):
                params, state = carry
                grads = jax.grad(loss)(params, first)
                with jax.numpy_dtype_promotion("standard"):  # as in GaussianProcess
                    updates, state = optimizer.update(grads, state)
                return (optax.apply_updates(params, updates), state), None

            with jax.numpy_dtype_promotion("standard"):
                start = first, optimizer.init(first)
            (params, _), _ = jax.lax.scan(step, start, None, self.steps)
            vectors = self._encoder.apply(params["net"], inputs["tokens"], standard)
            matrix = self.process.noisy(params["hyper"], kernel(params, vectors), mask)
            factor = jnp.linalg.cholesky(matrix)
            weights = jax.scipy.linalg.cho_solve((factor, True), targets)
            return {"params": params, "factor": factor, "weights": weights, "vectors": vectors}

        del pairs
        return fitted | {"members": jax.vmap(member)(jax.random.split(key, self.members))}

    def predict(self, fitted: dict[str, Any], inputs: Any) -> tuple[jax.Array, jax.Array]:
        """Returns means and standard deviations float32 [M]; as in `GaussianProcess`.

        The variance is the mean of the members' variances plus the variance of their means.
        """
        groups = matrices(inputs["features"])
        standard = self._standard(fitted, groups)
        squares, products = self.process.distances(fitted, groups)
        known = fitted["mask"][:, None].astype(jnp.float32)

        def member(one):
            params = one["params"]
            vectors = self._encoder.apply(params["net"], inputs["tokens"], standard)
            cross = self.process.kernel(params["hyper"], squares, products)
            cross = (cross + self._deep(params, one["vectors"], vectors)) * known
            total = self.process.own(params["hyper"], fitted, groups) + jnp.exp(2 * params["deep"])
            white = jax.scipy.linalg.solve_triangular(one["factor"], cross, lower=True)
            return one["weights"] @ cross, jnp.maximum(total - (white ** 2).sum(0), 1e-10)

        means, variances = jax.lax.map(member, fitted["members"])
        return means.mean(0), jnp.sqrt(variances.mean(0) + means.var(0))

    def _standard(self, fitted: dict, groups: list[jax.Array]) -> list[jax.Array]:
        return [(g - m[None]) / s for g, m, s in
                zip(groups, fitted["mean"], fitted["scale"], strict=True)]

    def _deep(self, params: dict, a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.exp(2 * params["deep"] - squared_distances(a, b) / 2)
