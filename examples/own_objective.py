"""A search over your own slow, noisy function of one architecture, on parallel workers.

    python examples/own_objective.py --workdir=runs/own_objective

Here the function trains scikit-learn's multi-layer perceptron on the digits. Stop the search and run it
again: it goes on from its history, and repeats nothing that was finished.
"""

import argparse
import pathlib
import warnings

import jax
import sklearn.datasets
import sklearn.model_selection
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from jaxnas import Choice, Space, predictors, search

SPACE = Space(
    depth=Choice(1, 2, 3),
    width=Choice(8, 16, 32, 64).repeat(3, active="depth"),
    activation=Choice("relu", "tanh", "logistic"),
    learning_rate=Choice(0.0003, 0.001, 0.003, 0.01, 0.03),
    batch_size=Choice(16, 32, 64, 128),
)


def train(values):
    """The accuracy of one network on data that it was not trained on.

    `values` are plain Python values, such as {"depth": 2, "width": [64, 8], "activation": "relu", ...}.
    A worker imports this function, so it stands at the top level of its file. Whatever it raises is one
    failed evaluation: the history says why, and the search goes on.
    """
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    split = sklearn.model_selection.train_test_split(images / 16, labels, test_size=0.3, random_state=0)
    train_images, test_images, train_labels, test_labels = split
    network = MLPClassifier(
        hidden_layer_sizes=values["width"],
        activation=values["activation"],
        learning_rate_init=values["learning_rate"],
        batch_size=values["batch_size"],
        max_iter=10,  # passes over the data
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten passes are not meant to converge
        network.fit(train_images, train_labels)
    return {"accuracy": network.score(test_images, test_labels), "loss": network.loss_}


def main():
    """Searches with the settings of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workdir", type=pathlib.Path, default="runs/own_objective")
    parser.add_argument("--evaluations", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    settings = parser.parse_args()
    model = dict(predictor=predictors.GaussianProcess(), features=predictors.one_hot(SPACE))
    strategy = search.PredictorGuided(SPACE, evaluations=settings.evaluations, **model)
    # Each worker is a process, replaced when it hangs or dies. For others: executor=client.get_executor().
    result = search.run_parallel(
        strategy,
        train,
        jax.random.key(0),
        workers=settings.workers,
        timeout=60.0,
        metric="accuracy",
        history_path=settings.workdir / "history.jsonl",
        progress=lambda standing: print(standing, flush=True),
    )
    print(f"{SPACE.to_dict(result.arch)}: {result.score:.4f}; {result.failed} evaluations failed")


if __name__ == "__main__":
    main()
