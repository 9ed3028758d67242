import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import scipy.stats
import tiers
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from jaxnas import Choice, Space, predictors
from jaxnas.predictors import gp
from jaxnas.predictors.features import ChainCell, EdgeCell, path_features, path_tokens
from jaxnas.predictors.fitting import rank_normal

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
CELL = EdgeCell(EDGES, 5, none=0, identity=1)


@jax.jit
def seen(ops):
    """The paths of a cell, and what predictors see of it."""
    steps, alive, used = CELL.paths(ops)
    features = path_features(CELL.kinds, steps, alive, used)
    return (steps, alive, used), features, path_tokens(steps, alive)


@pytest.fixture(scope="module")
def cells():
    """Random cells: inputs of every predictor, and a score that counts one operation on paths."""
    ops = jax.random.randint(jax.random.key(3), (60, 6), 0, 5, jnp.int32)
    _, features, tokens = jax.jit(jax.vmap(seen))(ops)
    score = features["visits"][:, 1] + 0.5 * features["totals"][:, 0]
    return {"tokens": tokens, "features": features}, score


def fitted_on(predictor, inputs, score, count, fit_inputs=None):
    """The predictions of a predictor that was fitted on the first rows."""
    mask, given = np.arange(score.size) < count, inputs if fit_inputs is None else fit_inputs
    targets = np.where(mask, score, np.float32(np.nan))
    fitted = jax.jit(predictor.fit)(jax.random.key(0), given, targets, mask)
    return jax.jit(predictor.predict)(fitted, inputs)


def test_rank_normal_averages_ties_and_ignores_rows_not_in_use():
    targets = np.array([3.0, 1.0, 1.0, np.nan, 9.0], np.float32)
    got = jax.jit(rank_normal)(targets, np.array([True, True, True, False, True]))
    want = [*scipy.stats.norm.ppf([0.625, 0.25, 0.25]), 0.0, scipy.stats.norm.ppf(0.875)]
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_one_hot_of_inactive_elements_is_zero():
    space = Space(depth=Choice(1, 2), heads=Choice(3, 4, 5).repeat(2, active="depth"))
    arch = space.from_dict({"depth": 1, "heads": [5]})
    features = jax.jit(predictors.one_hot(space))
    np.testing.assert_array_equal(features(arch), [1, 0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(features(space.largest()), [0, 1, 0, 0, 1, 0, 0, 1])
    assert features(arch).dtype == jnp.float32
    batch = jax.vmap(predictors.tokens(space))(space.sample(jax.random.key(0), 4))
    assert batch["kind"].shape == (4, 3)


def test_paths_of_a_cell_drop_identities_and_dead_edges():
    # 0-1 conv3, 0-2 none, 1-2 skip, 0-3 conv1, 1-3 none, 2-3 pool: paths 0-3 and 0-1-2-3.
    (steps, alive, used), features, _ = jax.device_get(seen(np.array([3, 0, 1, 2, 0, 4], np.int32)))
    found = {tuple(row[row >= 0].tolist()) for row, on in zip(steps, alive, strict=True) if on}
    assert found == {(0,), (1, 2)}
    assert used.tolist() == [1, -1, -1, 0, -1, 2]
    assert features["sequences"].shape == (1 + 3 + 9 + 27,)
    assert features["sequences"][1 + 0] == features["sequences"][1 + 3 + 3 + 2] == 1
    assert features["sequences"].sum() == 2
    np.testing.assert_array_equal(features["totals"], [1, 1, 1])
    np.testing.assert_array_equal(features["shape"], [2, 1, 2, 3])
    assert features["pairs"].reshape(3, 3)[1, 2] == 1
    # A cell without a path has none of it.
    _, empty, _ = seen(np.zeros(6, np.int32))
    assert not any(np.any(empty[name]) for name in ("sequences", "totals", "most"))
    # An operation before or after an identity is the same network.
    both = (seen(np.array(ops, np.int32))[1] for ops in ([3, 0, 1, 0, 0, 1], [1, 0, 1, 0, 0, 3]))
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_chain_cell_paths_end_at_leaves():
    cell = ChainCell(4, 9, identity=8)

    @jax.jit
    def read(parents, ops):
        paths = cell.paths(parents, ops)
        return *paths, path_features(cell.kinds, *paths, length=2)

    steps, alive, used, features = read(np.array([0, 1, 1, 0], np.int32), np.array([5, 8, 2, 7], np.int32))
    assert alive.tolist() == [False, True, True, True]
    rows = [row[row >= 0].tolist() for row in np.asarray(steps)]
    assert rows[1:] == [[5], [5, 2], [7]] and used.tolist() == [5, -1, 2, 7]
    assert features["sequences"].sum() == 3 and features["sequences"][1 + 8 + 5 * 8 + 2] == 1


def test_gaussian_process_equals_scikit_learn(cells):
    inputs, score = cells
    x = np.asarray(inputs["features"]["sequences"])
    plain = dict(ranks=False, linear=False, steps=0, relative=False)
    predictor = predictors.GaussianProcess(**plain, scale=1.7, signal=0.8, noise=0.3)
    mean, std = fitted_on(predictor, x, score, 40)
    y = np.asarray(score[:40])
    kernel = kernels.ConstantKernel(0.64) * kernels.RBF(1.7)
    reference = GaussianProcessRegressor(kernel, alpha=0.09 + 3e-4, optimizer=None)
    reference.fit(x[:40], (y - y.mean()) / y.std())
    want_mean, want_std = reference.predict(x, return_std=True)
    np.testing.assert_allclose(mean, want_mean, atol=2e-4)
    np.testing.assert_allclose(std, want_std, atol=2e-3)


def test_marginal_likelihood_gradient_is_that_of_autodiff():
    a = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    matrix, targets = a @ a.T + np.eye(6, dtype=np.float32), np.arange(6, dtype=np.float32)

    def plain(matrix, targets):
        _, logdet = jnp.linalg.slogdet(matrix)
        return 0.5 * targets @ jnp.linalg.solve(matrix, targets) + 0.5 * logdet

    got, want = (jax.jit(jax.grad(cost, (0, 1)))(matrix, targets) for cost in (gp.likelihood_cost, plain))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_fitting_raises_the_likelihood_and_finds_the_group_that_matters(cells):
    _, score = cells
    noise = np.random.default_rng(1).normal(size=(60, 5)).astype(np.float32)
    inputs = {"noise": noise, "signal": np.asarray(score)[:, None]}
    mask = np.ones(60, bool)
    fitted = jax.jit(predictors.GaussianProcess().fit)(jax.random.key(0), inputs, score, mask)
    assert fitted["hyper"]["scale"][0] > fitted["hyper"]["scale"][1] + 1  # leaves in order of names


@pytest.mark.parametrize(
    "predictor", [predictors.GaussianProcess(), *tiers.more(predictors.MlpEnsemble(members=3, ranking=0.5))]
)
def test_prediction_ranks_unseen_cells_and_ignores_rows_not_in_use(cells, predictor):
    inputs, score = cells
    mean, std = fitted_on(predictor, inputs["features"], score, 40)
    assert mean.dtype == std.dtype == jnp.float32 and bool((std > 0).all())
    assert np.corrcoef(mean[40:], score[40:])[0, 1] > 0.8
    used = np.arange(60)[:, None] < 40
    scrambled = jax.tree.map(lambda x: np.where(used, x, np.float32(7)), inputs["features"])
    again, _ = fitted_on(predictor, inputs["features"], score, 40, fit_inputs=scrambled)
    np.testing.assert_allclose(again, mean, atol=1e-3)


def test_transformer_learns_the_space_whatever_the_order_of_paths(cells):
    inputs, score = cells
    small = dict(width=8, outputs=8, members=2, structure=False)
    predictor = predictors.TransformerPredictor(3, 3, **small, steps=150)
    weights = jax.jit(predictor.pretrain)(jax.random.key(0), inputs)
    encode = jax.jit(predictor.encode)
    encoded = encode(weights, inputs)
    paths = inputs["tokens"]["kind"].reshape(60, 4, 3)

    def vectors(**tokens):
        return encode(weights, inputs | {"tokens": inputs["tokens"] | tokens})["vectors"][0]

    moved = vectors(kind=paths[:, jnp.array([2, 0, 3, 1])].reshape(60, 12))
    np.testing.assert_allclose(moved, encoded["vectors"][0], atol=1e-3)
    # The order within a path and which path an operation is on do matter.
    for other in (
        vectors(kind=paths[:, :, ::-1].reshape(60, 12)),
        vectors(segment=paths.reshape(60, 12) * 0),
    ):
        assert not np.allclose(other, encoded["vectors"][0], atol=1e-2)
    assert [v.shape for v in encoded["vectors"]] == [(60, 8)] * 2
    assert not np.allclose(encoded["vectors"][0], encoded["vectors"][1])
    mean, _ = fitted_on(predictor, encoded, score, 40)
    assert np.corrcoef(mean[40:], score[40:])[0, 1] > 0.6

    def pretrain(features=score[:, None], shift=0, **changes):
        tokens = {name: x + shift for name, x in inputs["tokens"].items()} | changes
        return lambda: predictor.pretrain(jax.random.key(0), {"tokens": tokens, "features": features})

    refusals.check(
        (lambda: predictor.fit(jax.random.key(0), inputs, score, score > 0), ValueError, "encode"),
        (lambda: predictor.encode(weights, {"tokens": inputs["tokens"]}), ValueError, "features"),
        (lambda: predictor.encode(weights, score[:, None]), ValueError, "tokens"),
        (pretrain(shift=9), ValueError, "kind is from"),
        (pretrain(place=inputs["tokens"]["place"] - 1), ValueError, "place is from"),
        (pretrain(segment=score), ValueError, "kind, place, segment"),
        (pretrain(features=score), ValueError, "leaf 0"),
    )


@pytest.mark.parametrize(
    "predictor", [predictors.GaussianProcess(steps=1), *tiers.more(predictors.MlpEnsemble(steps=1))]
)
def test_inputs_that_cannot_be_right_are_refused(predictor):
    key, mask = jax.random.key(0), jnp.array([True, True, True, False])
    x, y = jnp.arange(8.0).reshape(4, 2), jnp.arange(4.0)
    fitted = predictor.fit(key, x.at[3].set(jnp.nan), y, mask)  # a row that is not in use
    assert all(np.isfinite(part).all() for part in predictor.predict(fitted, x))
    failed = predictor.fit(key, x.at[3].set(jnp.nan), y.at[3].set(-jnp.inf), mask | True)
    jax.tree.map(np.testing.assert_array_equal, failed, fitted)  # nor is one whose score is infinite

    def fit(*names, error=ValueError, key=key, inputs=x, targets=y, used=mask):
        return lambda: predictor.fit(key, inputs, targets, used), error, *names

    def predict(*names, error=ValueError, fitted=fitted, inputs=x):
        return lambda: predictor.predict(fitted, inputs), error, *names

    letters = np.array([["a"]] * 4)
    refusals.check(
        fit("two points", used=mask & (y < 1)),
        fit("two points", targets=y.at[:2].set(jnp.nan)),
        fit("bool[2]", used=mask[:2]),
        fit("infinity in 1", inputs=x.at[1, 0].set(jnp.nan)),
        fit("leaf 1", inputs={"a": x, "b": x[:3]}),
        fit("the inputs hold no arrays", inputs={}),
        fit("leaf 0", inputs=x[:, 0]),
        fit("leaf 0", inputs=letters),
        fit("expected a number and a", used=np.arange(4)),
        *(fit("one typed key", error=TypeError, key=wrong) for wrong in (0, jax.random.split(key), None)),
        predict("infinity in 1", inputs=x.at[2].set(jnp.inf)),
        predict("leaves of [] columns", inputs=None),
        predict("fitted is a", error=TypeError, fitted=None),
        predict("leaves of [3] columns", "[2]", inputs=jnp.ones((4, 3))),
    )


def test_settings_that_cannot_be_right_are_refused():
    """Beyond those of tests/test_settings.py."""
    transformer = functools.partial(predictors.TransformerPredictor, 3, 3)
    refusals.check(
        (lambda: transformer(heads=7), ValueError, "width is 32"),
        (lambda: transformer(process=None), TypeError, "process is None"),
        (lambda: predictors.tokens(None), TypeError, "space is None"),
        (lambda: predictors.one_hot({"a": 2}), TypeError, "one_hot"),
        (lambda: EdgeCell(5, 3), ValueError, "edges is 5"),
        (lambda: EdgeCell(((1, 0),), 3), ValueError, "1, 0"),
        (lambda: EdgeCell(EDGES, 5, none=5), ValueError, "none is 5"),
        (lambda: EdgeCell(EDGES, True), ValueError, "operations is True"),
        (lambda: ChainCell(4, 9, identity="skip"), ValueError, "'skip'"),
        (lambda: ChainCell(0, 9), ValueError, "nodes is 0"),
    )
