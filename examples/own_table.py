"""A table of your own results: searched many times over in a second, and predicted from a part of it.

    python examples/own_table.py --workdir=runs/own_table

Here they are of a grid of small scikit-learn networks; any CSV with a line for each result will do.
Strategies are compared on it with

    jaxnas compare --benchmark=runs/own_table/grid.csv --workdir=runs/own_compare \
        --objectives=validation_accuracy=max,test_accuracy=max --seeds=200 --evaluations=30
"""

import argparse
import csv
import itertools
import pathlib
import warnings

import jax
import numpy as np
import sklearn.datasets
from scipy.stats import kendalltau
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from jaxnas import predictors, search, tabular

RATES = (0.001, 0.003, 0.01, 0.03)
GRID = {"width": (4, 8, 16, 32), "depth": (1, 2), "activation": ("relu", "tanh"), "learning_rate": RATES}
METRICS = {"validation_accuracy": "max", "test_accuracy": "max"}


def write_grid(path):
    """Trains each network of the grid and writes its results."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    images, parts = images / 16, (slice(400, 1000), slice(1000, None))
    with open(path, "w", newline="", encoding="utf-8") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # eight passes are not meant to converge
        writer = csv.writer(file)
        writer.writerow([*GRID, *METRICS])
        for width, depth, activation, rate in itertools.product(*GRID.values()):
            sizes, given = (width,) * depth, {"max_iter": 8, "random_state": 0}
            network = MLPClassifier(sizes, activation, learning_rate_init=rate, **given)
            network.fit(images[:400], labels[:400])
            scores = [network.score(images[part], labels[part]) for part in parts]  # validation, test
            writer.writerow([width, depth, activation, rate, *scores])


def table(workdir="runs/own_table"):
    """The table of the grid: each column that is no metric is a choice."""
    path = pathlib.Path(workdir, "grid.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_grid(path)
    return tabular.from_csv(path, objectives=METRICS)


def main():
    """A hundred searches on the table, and a predictor fitted to a third of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", default="runs/own_table")
    results = table(parser.parse_args().workdir)
    evaluate = jax.vmap(results.metric("validation_accuracy"))
    strategy = search.LocalSearch(results.space, evaluations=25)
    many = jax.jit(jax.vmap(lambda key: search.scan(strategy, evaluate, key)))
    found = np.nanmax(many(jax.random.split(jax.random.key(0), 100)).scores, axis=1)
    print(f"{results}, best {results.best('validation_accuracy')[1]:.4f}")
    print(f"100 local searches of 25 evaluations find {found.mean():.4f} in the mean")

    inputs = jax.vmap(predictors.one_hot(results.space))(results.space.decode(results.codes))
    known = np.random.default_rng(0).permutation(len(results)) < len(results) // 3
    process = predictors.GaussianProcess()
    seen, hidden = (results.metrics[name] for name in METRICS)
    fitted = jax.jit(process.fit)(jax.random.key(0), inputs, seen, known)
    mean, _ = jax.jit(process.predict)(fitted, inputs)
    tau = kendalltau(mean[~known], hidden[~known]).statistic
    print(f"a Gaussian process on {known.sum()} of {len(results)} ranks the others with tau {tau:.2f}")


if __name__ == "__main__":
    main()
