"""Rank correlation of predictors on tabular benchmarks.

  python -m benchmarks.predictors --table=nasbench201 --out=nasbench201.json
  python -m benchmarks.predictors --table=nasbench_graph_cora --predictors=gp,mlp

Kendall's tau-b between predictions and test accuracy of all architectures, trained on the validation accuracy
of N random ones. Settings were chosen on nasbench_graph_cora. `jaxnas compare` counts the evaluations
that searches with a predictor need to find the best architecture.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from scipy.stats import kendalltau
from threadpoolctl import threadpool_limits

from jaxnas import files, predictors, tabular
from jaxnas.experiments import binary, strategies

_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_TABLE = flags.DEFINE_enum("table", "nasbench201", tabular.names(), "Table.")
_PREDICTORS = flags.DEFINE_list(
    "predictors",
    ["gp", "mlp", "transformer", "transformer_tokens"],
    "Of gp, gp_decisions (one-hot decisions), mlp, transformer, transformer_tokens (no path counts).",
)
_SIZES = flags.DEFINE_list("sizes", ["78", "156", "469", "781"], "Training sizes.")
_DRAWS = flags.DEFINE_integer("draws", 10, "Training sets per size.")
_STEPS = flags.DEFINE_integer("steps", 2500, "Pretraining steps of the Transformer, without accuracies.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")

Table = dict[str, Any]


def load(folder: str | None, name: str) -> Table:
    """The table: inputs of all networks, validation and test scores.

    Higher scores are better. Tables of language models have the number of parameters among the features.
    """
    table = tabular.load(name, folder)
    pairs = (("validation_accuracy", "test_accuracy"), ("validation_perplexity", "test_perplexity"))
    known = [pair for pair in pairs if pair[0] in table.metrics] or [("perplexity", "perplexity")]
    seen, hidden = (key if key in table.metrics else known[0][0] for key in known[0])
    valid, test = (table.metrics[key] * (1 if "accuracy" in key else -1) for key in (seen, hidden))
    params = table.metrics.get("params_nonembedding", table.metrics["params"])
    there = np.flatnonzero(np.isfinite(valid) & np.isfinite(test) & np.isfinite(params))
    archs = table.space.decode(jnp.asarray(table.codes[there]))
    inputs = {
        "tokens": jax.jit(jax.vmap(strategies.tokens_of(table)))(archs),
        "features": jax.jit(jax.vmap(strategies.features_of(table)))(archs),
        "decisions": jax.jit(jax.vmap(predictors.one_hot(table.space)))(archs),
    }
    inputs, valid, test = jax.tree.map(np.asarray, inputs), valid[there], test[there]
    if "perplexity" in seen:
        size = np.log(params[there])
        size = ((size - size.mean()) / size.std()).astype(np.float32)
        inputs["features"] = {"decisions": inputs["decisions"], "params": size[:, None]}
        print(f"{name}: tau of parameters alone {kendalltau(test, size).statistic:.3f}")
    kinds, places = (int(inputs["tokens"][key].max()) + 1 for key in ("kind", "place"))
    return {
        "inputs": inputs,
        "valid": valid,
        "test": test,
        "kinds": kinds,
        "places": places,
    }


def rows(inputs: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], inputs)


def in_parts(fn: Any, inputs: Any, size: int = 4096) -> Any:
    """A function of all rows, some at a time: a kernel of all of them takes much memory."""
    count = len(jax.tree.leaves(inputs)[0])
    parts = [
        jax.tree.map(np.asarray, fn(rows(inputs, slice(start, start + size))))
        for start in range(0, count, size)
    ]
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def make(name: str, table: Table) -> tuple[Any, Any]:
    """A predictor, and the table's inputs for it."""
    if name == "gp":
        return predictors.GaussianProcess(), table["inputs"]["features"]
    if name == "gp_decisions":
        return predictors.GaussianProcess(), table["inputs"]["decisions"]
    if name == "mlp":
        return predictors.MlpEnsemble(), table["inputs"]["features"]
    predictor = predictors.TransformerPredictor(
        table["kinds"], table["places"], steps=_STEPS.value, structure=name == "transformer"
    )
    weights = jax.jit(predictor.pretrain)(jax.random.key(0), table["inputs"])
    encode = jax.jit(predictor.encode)
    return predictor, in_parts(lambda part: encode(weights, part), table["inputs"])


def correlations(predictor: Any, inputs: Any, table: Table, size: int) -> list[float]:
    """Kendall's tau-b against test accuracy, of every draw."""
    fit, predict = jax.jit(predictor.fit), jax.jit(predictor.predict)
    count, values = len(table["valid"]), []
    for draw in range(_DRAWS.value):
        known = np.random.default_rng([0, size, draw]).permutation(count)[:size]
        fitted = fit(jax.random.key(draw), rows(inputs, known), table["valid"][known], np.ones(size, bool))
        mean, _ = in_parts(functools.partial(predict, fitted), inputs)
        values.append(float(kendalltau(mean, table["test"]).statistic))
    return values


def main() -> None:
    table = load(_DATA.value, _TABLE.value)
    record: dict[str, Any] = {
        "table": _TABLE.value,
        "draws": _DRAWS.value,
        "ceiling": float(kendalltau(table["valid"], table["test"]).statistic),
    }
    print(f"{_TABLE.value}: tau of validation and test accuracy {record['ceiling']:.3f}")
    for name in _PREDICTORS.value:
        start = time.perf_counter()
        predictor, inputs = make(name, table)
        one: dict[str, Any] = {
            "settings": repr(predictor),
            "tau": {},
            "prepare_seconds": time.perf_counter() - start,
        }
        record[name] = one
        for size in map(int, _SIZES.value):
            if size > len(table["valid"]):
                raise ValueError(
                    f"--sizes has {size}, but {_TABLE.value} has {len(table['valid'])} networks."
                )
            one["tau"][str(size)] = values = correlations(predictor, inputs, table, size)
            print(
                f"{name:20} tau, {size:4} points: {np.mean(values):.3f} +- {np.std(values):.3f}", flush=True
            )
        if _OUT.value:
            files.write_json(_OUT.value, record)


if __name__ == "__main__":
    # See `predictors.GaussianProcess`: on a busy machine threads of BLAS wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        binary.run(main)
