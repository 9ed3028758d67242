"""A Gaussian process over architectures' features."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxnas.checks import check_counts, check_key, check_numbers
from jaxnas.predictors.fitting import check_fitted, check_inputs, descend, matrices, prepare


@dataclasses.dataclass(frozen=True)
class GaussianProcess:
    """A Gaussian process: a squared-exponential kernel, a linear one, and noise.

    The kernel is `signal^2 exp(-1/2 sum_g d_g^2 / scale_g^2) + slope^2 mean_g <a_g, b_g> / size_g`,
    where the groups g are the leaves of the inputs and d_g^2 is the squared distance in a group,
    over its mean `size_g` over the points in use. The hyper-parameters maximize the marginal likelihood
    times weak log-normal priors, by a fixed number of Adam steps in the logarithm.

    On CPUs JAX factors matrices by SciPy's BLAS, whose threads wait for each other on a busy machine: a fit
    to 100 points then took 320 ms and not 5. `search.run`, `search.run_parallel` and `jaxnas compare`
    limit it to one thread. A program of one's own, such as `jax.jit` of `search.scan`, must be called within
    `jaxnas.search.blas.one_thread()`, since threads are no part of a program.

    Attributes:
      ranks: fit normal quantiles of ranks; else standardized targets.
      linear: whether the linear term is there.
      steps: of Adam; 0 keeps the initial hyper-parameters.
      learning_rate: of Adam.
      scale, signal, slope, noise: initial hyper-parameters, the modes of their priors; all standard
        deviations or lengths. `scale` is in units of the root mean square distance.
      spread: standard deviations of the priors, in the logarithm.
      relative: divide squared distances by their mean, and products by the mean square.

    Example:
      >>> x, key = jnp.linspace(0, 1, 8)[:, None], jax.random.key(0)
      >>> process = predictors.GaussianProcess()
      >>> mean, std = process.predict(process.fit(key, x, x[:, 0], jnp.ones(8, bool)), x)
      >>> mean.shape
      (8,)
    """

    ranks: bool = True
    linear: bool = True
    steps: int = 40
    learning_rate: float = 0.2
    scale: float = 2.0
    signal: float = 1.0
    slope: float = 0.3
    noise: float = 0.5
    spread: float = 1.0
    relative: bool = True

    def __post_init__(self):
        check_counts(self, "steps", least=0)
        check_numbers(self, "learning_rate", "scale", "signal", "slope", "noise", "spread", above=0)

    def fit(self, key: jax.Array, inputs: Any, targets: jax.Array, mask: jax.Array) -> dict[str, Any]:
        """Returns the fitted process, a pytree for `predict`.

        Args:
          key: a typed key; not used, since predictors share this signature.
          inputs: a pytree of arrays [N, ...], the groups; rows not in use may hold anything.
          targets: [N], higher is better; NaN and infinities are rows not in use.
          mask: bool [N], the rows in use.
        """
        check_key("fit", key)
        targets, mask = prepare(targets, mask, self.ranks)
        groups = matrices(inputs)
        check_inputs(groups, mask)
        groups = [jnp.where(mask[:, None], group, 0.0) for group in groups]
        pairs = (mask[:, None] & mask[None, :]).astype(jnp.float32)
        size = []
        for group in groups:
            mean = (squared_distances(group, group) * pairs).sum() / jnp.maximum(pairs.sum(), 1.0)
            size.append(jnp.where(mean > 0, mean, 1.0) if self.relative else jnp.float32(1))
        fitted = {
            "inputs": groups,
            "size": jnp.stack(size),
            "mask": mask,
            "hyper": self._initial(len(groups)),
        }
        squares, products = self.distances(fitted, groups)

        def loss(hyper, _):
            matrix = self.noisy(hyper, self.kernel(hyper, squares, products), mask)
            return likelihood_cost(matrix, targets) + self.penalty(hyper)

        hyper = descend(loss, fitted["hyper"], optax.adam(self.learning_rate), jnp.arange(self.steps))
        factor = jnp.linalg.cholesky(self.noisy(hyper, self.kernel(hyper, squares, products), mask))
        weights = jax.scipy.linalg.cho_solve((factor, True), targets)
        return fitted | {"hyper": hyper, "factor": factor, "weights": weights}

    def predict(self, fitted: dict[str, Any], inputs: Any) -> tuple[jax.Array, jax.Array]:
        """Returns means and standard deviations (without noise) float32 [M] of inputs [M, ...].

        In the units of the transformed targets, which are monotone in the targets.
        """
        groups = matrices(inputs)
        check_fitted(fitted, "inputs", groups)
        hyper = fitted["hyper"]
        cross = self.kernel(hyper, *self.distances(fitted, groups))
        cross = cross * fitted["mask"][:, None].astype(jnp.float32)
        total = self.own(hyper, fitted, groups)
        white = jax.scipy.linalg.solve_triangular(fitted["factor"], cross, lower=True)
        variance = total - (white**2).sum(0)
        return fitted["weights"] @ cross, jnp.sqrt(jnp.maximum(variance, 1e-10))

    def _initial(self, groups: int) -> dict[str, jax.Array]:
        """The logarithms of the initial hyper-parameters."""
        # Squared distances add up over the groups.
        scale = math.log(self.scale * math.sqrt(groups))
        hyper = {
            "scale": jnp.full(groups, scale, jnp.float32),
            "signal": jnp.float32(math.log(self.signal)),
            "noise": jnp.float32(math.log(self.noise)),
        }
        return hyper | ({"slope": jnp.float32(math.log(self.slope))} if self.linear else {})

    # ---- The parts, for a kernel that extends this one.

    def distances(self, fitted: dict, groups: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Squared distances [groups, N, M] and summed products [N, M] of the points with others."""
        parts = list(zip(fitted["inputs"], groups, fitted["size"], strict=True))
        squares = jnp.stack([squared_distances(a, b) / s for a, b, s in parts])
        return squares, sum((a @ b.T / s for a, b, s in parts), jnp.float32(0)) / len(parts)

    def own(self, hyper: dict, fitted: dict, groups: list[jax.Array]) -> jax.Array:
        """The prior variance [M] of each of some points."""
        total = jnp.full(groups[0].shape[0], jnp.exp(2 * hyper["signal"]))
        if self.linear:
            squares = sum((g**2).sum(1) / s for g, s in zip(groups, fitted["size"], strict=True))
            total += jnp.exp(2 * hyper["slope"]) * squares / len(groups)
        return total

    def penalty(self, hyper: dict) -> jax.Array:
        """Minus the logarithm of the prior of the hyper-parameters, less its constant."""
        first = self._initial(hyper["scale"].size)
        off = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), hyper, first)
        return sum(jax.tree.leaves(off), jnp.float32(0)) / (2 * self.spread**2)

    def kernel(self, hyper: dict, squares: jax.Array, products: jax.Array) -> jax.Array:
        """The kernel [N, M] without noise, of what `distances` returns."""
        distance = jnp.tensordot(jnp.exp(-2 * hyper["scale"]), squares, 1)
        matrix = jnp.exp(2 * hyper["signal"] - distance / 2)
        if self.linear:
            matrix += jnp.exp(2 * hyper["slope"]) * products
        return matrix

    def noisy(self, hyper: dict, matrix: jax.Array, mask: jax.Array) -> jax.Array:
        """The kernel with noise; rows not in use are those of the identity, which cost nothing."""
        eye = jnp.eye(mask.size, dtype=jnp.float32)
        # In float32 the factorization fails where eigenvalues span more than some six digits.
        jitter = 3e-4 * jnp.maximum(1.0, jnp.max(jnp.where(mask, jnp.diag(matrix), 0.0)))
        matrix = matrix + eye * (jnp.exp(2 * hyper["noise"]) + jitter)
        return jnp.where(mask[:, None] & mask[None, :], matrix, eye)


@jax.custom_vjp
def likelihood_cost(matrix: jax.Array, targets: jax.Array) -> jax.Array:
    """The negative logarithm of the marginal likelihood, less its constant."""
    return _cost_forward(matrix, targets)[0]


def _cost_forward(matrix, targets):
    factor = jnp.linalg.cholesky(matrix)
    weights = jax.scipy.linalg.cho_solve((factor, True), targets)
    value = 0.5 * targets @ weights + jnp.sum(jnp.log(jnp.diag(factor)))
    return value, (factor, weights)


def _cost_backward(kept, cotangent):
    # In closed form: through the factorization it takes several times longer.
    factor, weights = kept
    half = jax.scipy.linalg.solve_triangular(factor, jnp.eye(weights.size, dtype=jnp.float32), lower=True)
    slope = half.T @ half - weights[:, None] * weights[None, :]
    return 0.5 * cotangent * slope, cotangent * weights


likelihood_cost.defvjp(_cost_forward, _cost_backward)


def squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
    """Squared distances [N, M] between rows."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return jnp.maximum(squares, 0.0)
