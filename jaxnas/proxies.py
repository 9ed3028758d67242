"""Zero-cost proxies: scores of untrained networks, from one batch and without a training step.

A proxy is a pure function of a network, its variables, an architecture and a batch. Architectures are arrays,
so `score` scores all of a space in one program. They follow Abdelfattah et al. (ICLR 2021) and its code where
the papers leave a choice.

Every proxy but `jacob_cov` is a sum over weights: parameters with at least two axes in a layer, but for those
whose path has "bias" or "scale". Weights that an architecture does not use have gradients of zero, so a
supernet and the extracted network have one score.

A network with batch statistics runs with those of the batch, as in training (`synflow` without the layers
that keep them); any other runs as in evaluation, without dropout.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnas import network
from jaxnas.calibration import STATISTICS, statistics_of
from jaxnas.choice import nearest
from jaxnas.elastic.bank import BankSpec
from jaxnas.inputs import describe
from jaxnas.search.blas import one_thread
from jaxnas.space import Arch
from jaxnas.tensors import Path, flatten, unflatten
from jaxnas.transform.sizes import place_of
from jaxnas.transform.supernet import Supernet
from jaxnas.transform.turns import scans

_JITTER = 1e-5  # of eigenvalues, as in the code of Mellor et al.
_STEP, _STEPS = 1e-12, 3  # of the scale of inputs and cotangents in `synflow`, and how many are tried


def cross_entropy(predictions: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy of logits [..., classes] and labels int [...]."""
    return optax.softmax_cross_entropy_with_integer_labels(predictions, labels).mean()


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """What proxies see of the data.

    Attributes:
      inputs: of the network, batch in front; random ones of a task, 64 of them in the paper.
      labels: a pytree for the loss; `synflow` and `jacob_cov` need none.
      loss: from predictions and labels to a number.
    """

    inputs: Any
    labels: Any = None
    loss: Callable[[Any, Any], jax.Array] = cross_entropy


def grad_norm(
    net: Any, variables: Any, arch: Arch | None, batch: Batch, *, key: jax.Array | None = None
) -> jax.Array:
    """The sum of the Euclidean norms of the loss's gradients, one for each weight array (Abdelfattah et al.).

    Args:
      net: a network with a `space`; see `jaxnas.network`.
      variables: its variables, by collection; initial ones.
      arch: hard or soft; None for a network of one architecture.
      batch: inputs, labels and loss.
      key: for random layers of a network with batch statistics; a fixed one by default.

    Returns:
      The score, float32 [].

    Raises:
      ValueError: variables of another network, no weights, predictions that are no floats, no labels.
    """
    return _grad_norm(_Pass(net, variables, arch, batch, key))


def snip(
    net: Any, variables: Any, arch: Arch | None, batch: Batch, *, key: jax.Array | None = None
) -> jax.Array:
    """The sum of the sensitivities `|weight * gradient|` of the loss to connections (Lee et al., ICLR 2019).

    Arguments and result are those of `grad_norm`.
    """
    return _snip(_Pass(net, variables, arch, batch, key))


def grasp(
    net: Any, variables: Any, arch: Arch | None, batch: Batch, *, key: jax.Array | None = None
) -> jax.Array:
    """The sum of `-weight * (H gradient)`, H the loss's Hessian (GraSP: Wang et al., ICLR 2020, equation 8).

    It may be negative. Arguments and result are those of `grad_norm`. Elastic layers can be differentiated
    twice only for soft architectures, so a network of those computes all of their sizes.
    """
    return _grasp(_Pass(net, variables, arch, batch, key))


def synflow(
    net: Any, variables: Any, arch: Arch | None, batch: Batch, *, key: jax.Array | None = None
) -> jax.Array:
    """The logarithm of the synaptic flow, the sum of `weight * gradient` of R (Tanaka et al., NeurIPS 2020).

    R is the sum of the predictions of absolute parameters on an input of ones, without batch normalization;
    other normalizations stay, and integer inputs are the first example's. The flow of a deep network exceeds
    float32, so inputs, biases and cotangents are scaled down where it does, and the logarithm is returned:
    it ranks as the flow itself, and is minus infinity where nothing flows.

    Arguments are those of `grad_norm`; neither labels nor loss nor key are used.
    """
    return _synflow(_Pass(net, variables, arch, batch, key))


def jacob_cov(
    net: Any, variables: Any, arch: Arch | None, batch: Batch, *, key: jax.Array | None = None
) -> jax.Array:
    """How little the gradients of examples correlate, `-sum(log(v + k) + 1 / (v + k))` with k = 1e-5.

    The v are the eigenvalues of the correlation matrix of the gradients of all predictions' sum with respect
    to each example's inputs (Mellor et al., ICML 2021, in its first version). NaN where the predictions do
    not depend on an input. Arguments and result are those of `grad_norm`; labels and loss are not used.

    Raises:
      ValueError: inputs without floats, or fewer than two examples.
    """
    return _jacob_cov(_Pass(net, variables, arch, batch, key))


def score(
    net: Any,
    variables: Any,
    archs: Arch,
    batch: Batch,
    names: Sequence[str] = ("synflow",),
    *,
    key: jax.Array | None = None,
    batch_size: int | None = None,
) -> dict[str, jax.Array]:
    """Scores many architectures in one program.

    Args:
      net, variables, batch, key: see `grad_norm`.
      archs: a batch of architectures [n, ...].
      names: proxies; those that need the same gradient share it.
      batch_size: how many architectures run at once under `jax.vmap`, which computes every option of each
        decision: for a device that one small network does not fill. By default they run one after another
        (`jax.lax.map`), and only chosen options run.

    Returns:
      Scores float32 [n] by name. Higher is better.

    Raises:
      ValueError: an unknown name, or scores of which none is a number other than 0.
    """
    for name in names:
        if name not in PROXIES:
            raise ValueError(f"proxies.score: {name!r} is none of {list(PROXIES)}{nearest(name, PROXIES)}")
    arguments = net, batch.loss, tuple(names), batch_size
    try:
        program = _program(*arguments)
    except TypeError:  # a field of the user's, such as a list, that cannot be a key
        program = _program.__wrapped__(*arguments)
    with one_thread():  # of the BLAS behind `jacob_cov`
        scores = program(variables, archs, batch.inputs, batch.labels, key)
        scores = scores if _traced(scores) else jax.block_until_ready(scores)
    for name, found in scores.items():
        if _traced(found) or not len(found):
            continue
        values = np.asarray(found)
        if not np.any(np.isfinite(values) & (values != 0)):
            raise ValueError(
                f"proxies.score: {name} is {values[0]} for {type(net).__name__} at each of {len(values)} "
                "architectures, so it ranks nothing. The gradient is zero or no number everywhere: look for "
                "a last layer or a scale that starts at zero, weights that have diverged, or predictions "
                "that do not depend on the inputs."
            )
    return scores


def _traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


@functools.lru_cache(maxsize=32)
def _program(net: Any, loss: Any, names: tuple[str, ...], batch_size: int | None) -> Callable[..., Any]:
    @jax.jit
    def program(variables: Any, archs: Arch, inputs: Any, labels: Any, key: Any) -> dict[str, jax.Array]:
        def one(arch: Arch) -> dict[str, jax.Array]:
            shared = _Pass(net, variables, arch, Batch(inputs, labels, loss), key)
            return {name: PROXIES[name](shared) for name in names}

        return jax.lax.map(one, archs, batch_size=batch_size)

    return program


class _Pass:
    """A network of one architecture on one batch: what several proxies need is traced once."""

    def __init__(self, net: Any, variables: Any, arch: Arch | None, batch: Batch, key: jax.Array | None):
        network.check_contract(net)
        if not isinstance(batch, Batch):
            raise TypeError(f"A batch is proxies.Batch(inputs, labels), not {type(batch).__name__}.")
        self.net, self.arch, self.batch = net, arch, batch
        self.key = jax.random.key(0) if key is None else key
        self.variables = network.check_variables(net, variables, batch.inputs)
        self.params = flatten(self.variables["params"])
        self.copies = {path: self._copies(path) for path in self.params}
        self.weights = {path: x for path, x in self.params.items() if self._is_weight(path, x)}
        if not self.weights:
            raise ValueError(
                f"{type(net).__name__} has no weights that a proxy could score, parameters of at least two "
                f"axes that are no bias and no scale: only {['/'.join(path) for path in self.params][:8]}."
            )

    def _is_weight(self, path: Path, x: Any) -> bool:
        return jnp.ndim(x) - len(self.copies[path]) > 1 and not {"bias", "scale"} & set(path)

    def _copies(self, path: Path) -> set[int]:
        """The axes along which several layers are stacked: of banks, and of scans in transformed networks."""
        if isinstance(network.annotated(self.net, self.batch.inputs).specs.get(path), BankSpec):
            return {0}
        if not isinstance(self.net, Supernet) or ("params", *path) not in self.net.groups.layouts:
            return set()
        groups = self.net.groups
        atoms = [scan.axis for scan in scans(groups.traced(groups.inputs, False))]
        return {place_of(atom, groups.layouts["params", *path]) for atom in atoms} - {-1}

    def run(self, weights: dict[Path, Any], inputs: Any) -> Any:
        """The predictions with other weights."""
        given = {**self.variables, "params": unflatten({**self.params, **weights})}
        if not self.variables.get(STATISTICS):
            outputs = self.net.apply(given, inputs, self.arch)
        else:
            options = dict(train=True, mutable=[STATISTICS], rngs=self.key)
            outputs, _ = self.net.apply(given, inputs, self.arch, **options)
        return self.floats(network.predictions(outputs))

    def floats(self, predictions: Any) -> Any:
        """The predictions, if they can be differentiated; else ValueError."""
        if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(predictions)):
            raise ValueError(
                f"{type(self.net).__name__} predicts {describe(predictions)}, which has no gradient: a proxy "
                "needs floats, such as logits before an argmax."
            )
        return predictions

    def loss(self, weights: dict[Path, Any]) -> jax.Array:
        """The loss on the batch."""
        if self.batch.labels is None and self.batch.loss is cross_entropy:
            raise ValueError(
                "This proxy needs labels: proxies.Batch(inputs, labels), or a loss without them."
            )
        return self.batch.loss(self.run(weights, self.batch.inputs), self.batch.labels)

    @functools.cached_property
    def gradient(self) -> dict[Path, jax.Array]:
        """Of the loss with respect to the weights."""
        return jax.grad(self.loss)(self.weights)

    def softened(self) -> _Pass:
        """The same of a soft architecture, which can be differentiated any number of times."""
        arch = self.net.space.smallest() if self.arch is None else self.arch
        if not any(jnp.issubdtype(x.dtype, jnp.floating) for x in arch.values()):
            arch = self.net.space.soften(arch)
        return _Pass(self.net, self.variables, arch, self.batch, self.key)


def _total(values: Iterable[jax.Array]) -> jax.Array:
    return sum((jnp.sum(x, dtype=jnp.float32) for x in values), jnp.float32(0))


def _grad_norm(given: _Pass) -> jax.Array:
    def norm(path: Path, gradient: jax.Array) -> jax.Array:
        rest = tuple(axis for axis in range(gradient.ndim) if axis not in given.copies[path])
        return jnp.sqrt(jnp.sum(jnp.square(gradient.astype(jnp.float32)), axis=rest))

    return _total(norm(path, x) for path, x in given.gradient.items())


def _snip(given: _Pass) -> jax.Array:
    return _total(jnp.abs(x * given.gradient[path]) for path, x in given.weights.items())


def _grasp(given: _Pass) -> jax.Array:
    direction = jax.tree.map(jax.lax.stop_gradient, given.gradient)

    def product(of: _Pass) -> dict[Path, jax.Array]:
        def along(weights: dict[Path, Any]) -> jax.Array:
            gradient = jax.grad(of.loss)(weights)
            return _total(x * direction[path] for path, x in gradient.items())

        return jax.grad(along)(of.weights)

    try:
        found = product(given)
    except ValueError:  # `elastic.run` of a hard architecture can be differentiated once; others raise again
        found = product(given.softened())
    return -_total(x * found[path] for path, x in given.weights.items())


def _synflow(given: _Pass) -> jax.Array:
    statistics = flatten(given.variables.get(STATISTICS, {}))
    kept = {
        path: jnp.full_like(x, path[-1] == "var") if path in statistics_of(statistics) else x
        for path, x in statistics.items()
    }
    modules = {path[:-1] for path in statistics_of(statistics)}
    params = {path: jnp.abs(x) for path, x in given.params.items()}
    for path, x in params.items():
        if path[:-1] in modules and path[-1] in ("scale", "bias"):  # batch normalization does nothing
            params[path] = jnp.full_like(x, path[-1] == "scale")
    others = {**given.variables, **({STATISTICS: unflatten(kept)} if kept else {})}
    weights = {path: params[path] for path in given.weights}

    def flow(scale: jax.Array) -> jax.Array:
        """The flow times the square of a scale, exactly so of a network that is homogeneous."""

        def total(weights: dict[Path, Any]) -> jax.Array:
            scaled = {path: x * scale.astype(x.dtype) for path, x in params.items() if "bias" in path}
            inputs = jax.tree.map(
                lambda x: jnp.full_like(x[:1], scale) if jnp.issubdtype(x.dtype, jnp.floating) else x[:1],
                given.batch.inputs,
            )
            variables = {**others, "params": unflatten({**params, **scaled, **weights})}
            outputs = given.floats(network.predictions(given.net.apply(variables, inputs, given.arch)))
            return scale * _total(jax.tree.leaves(outputs))

        return _total(jnp.abs(weights[path] * x) for path, x in jax.grad(total)(weights).items())

    # Rarely more than one round; a loop computes no other scale where the first will do.
    def again(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return (state[0] < 1 + _STEPS) & ~jnp.isfinite(state[2])

    def attempt(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        exponent = jnp.log(jnp.float32(_STEP)) * state[0]
        found = flow(jnp.exp(exponent))
        return state[0] + 1, exponent, found

    start = jnp.float32(0), jnp.float32(0), jnp.float32(jnp.nan)
    _, exponent, found = jax.lax.while_loop(again, attempt, start)
    return jnp.log(found) - 2 * exponent


def _jacob_cov(given: _Pass) -> jax.Array:
    leaves, structure = jax.tree.flatten(given.batch.inputs)
    floating = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    count = len(leaves[0])
    if not any(floating) or count < 2:
        raise ValueError(
            f"jacob_cov correlates the gradients of at least two examples' inputs, and {describe(leaves)} "
            "has none: give it floats, or use another proxy."
        )

    def total(moved: list[jax.Array]) -> jax.Array:
        rest = iter(moved)
        inputs = [next(rest) if on else x for x, on in zip(leaves, floating, strict=True)]
        outputs = given.run(given.weights, jax.tree.unflatten(structure, inputs))
        return _total(jax.tree.leaves(outputs))

    found = jax.grad(total)([x for x, on in zip(leaves, floating, strict=True) if on])
    rows = jnp.concatenate([x.astype(jnp.float32).reshape(count, -1) for x in found], axis=1)
    rows = rows - rows.mean(1, keepdims=True)
    rows = rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    # Squares of singular values are exact near zero, where the score is steep and eigenvalues are not.
    values = jnp.linalg.svd(rows, compute_uv=False) ** 2
    values = jnp.pad(values, (0, count - len(values))) + _JITTER
    return -jnp.sum(jnp.log(values) + 1 / values)


PROXIES: dict[str, Callable[[_Pass], jax.Array]] = {
    "grad_norm": _grad_norm,
    "snip": _snip,
    "grasp": _grasp,
    "synflow": _synflow,
    "jacob_cov": _jacob_cov,
}
