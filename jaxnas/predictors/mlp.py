"""An ensemble of multi-layer perceptrons over architectures' features."""

import dataclasses
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxnas.checks import check_counts, check_key, check_numbers
from jaxnas.predictors.fitting import check_fitted, check_inputs, columns, descend, matrices, prepare, scaling


class _Mlp(nn.Module):
    width: int
    layers: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)[:, 0]


@dataclasses.dataclass(frozen=True)
class MlpEnsemble:
    """An ensemble of multi-layer perceptrons that differ in their initial weights and their points.

    Each group of inputs (leaf) is centered and scaled as a whole. The loss is the squared error plus
    `ranking` times the logistic loss of all pairs in the wrong order. Each member leaves out a share
    of the points, so members differ where there are few of them (BANANAS, arXiv 1910.11858, has the
    ensemble's spread as its uncertainty).

    Attributes:
      ranks: fit normal quantiles of ranks; else standardized targets.
      members, width, layers: of the ensemble.
      steps, learning_rate, decay: of AdamW on all points at once.
      ranking: weight of the pairs.
      keep: share of the points that a member sees, in expectation.
    """

    ranks: bool = True
    members: int = 5
    width: int = 64
    layers: int = 2
    steps: int = 150
    learning_rate: float = 5e-3
    decay: float = 1e-2
    ranking: float = 0.0
    keep: float = 0.9

    def __post_init__(self):
        check_counts(self, "members", "width", "layers", "steps")
        check_numbers(self, "learning_rate", above=0)
        check_numbers(self, "keep", above=0, most=1)
        check_numbers(self, "decay", "ranking", least=0)

    def fit(self, key: jax.Array, inputs: Any, targets: jax.Array, mask: jax.Array) -> dict[str, Any]:
        """Returns the fitted ensemble, a pytree for `predict`; arguments as in `GaussianProcess`."""
        check_key("fit", key)
        targets, mask = prepare(targets, mask, self.ranks)
        groups, weight = matrices(inputs), mask.astype(jnp.float32)
        check_inputs(groups, mask)
        groups = [jnp.where(mask[:, None], group, 0.0) for group in groups]
        mean, scale = scaling(groups, mask)
        x, model = columns(groups, mean, scale), _Mlp(self.width, self.layers)
        optimizer = optax.adamw(self.learning_rate, weight_decay=self.decay)

        def member(key):
            init_key, keep_key = jax.random.split(key)
            seen = weight * jax.random.bernoulli(keep_key, self.keep, mask.shape).astype(jnp.float32)
            seen = jnp.where(seen.sum() < 2, weight, seen)
            higher = (targets[:, None] > targets[None, :]).astype(jnp.float32)
            pairs = higher * seen[:, None] * seen[None, :]

            def loss(params, _):
                told = cast("jax.Array", model.apply(params, x))
                cost = jnp.sum(seen * (told - targets) ** 2) / seen.sum()
                wrong = jax.nn.softplus(told[None, :] - told[:, None])
                return cost + self.ranking * jnp.sum(pairs * wrong) / jnp.maximum(pairs.sum(), 1.0)

            return descend(loss, model.init(init_key, x[:1]), optimizer, jnp.arange(self.steps))

        members = jax.vmap(member)(jax.random.split(key, self.members))
        return {"members": members, "mean": mean, "scale": scale}

    def predict(self, fitted: dict[str, Any], inputs: Any) -> tuple[jax.Array, jax.Array]:
        """Returns the members' means and standard deviations float32 [M]; as `GaussianProcess.predict`."""
        groups = matrices(inputs)
        check_fitted(fitted, "mean", groups)
        x = columns(groups, fitted["mean"], fitted["scale"])
        model = _Mlp(self.width, self.layers)
        told = jnp.asarray(jax.vmap(lambda params: model.apply(params, x))(fitted["members"]))
        return told.mean(0), told.std(0) + 1e-6
