"""Predictors on tabular benchmarks: rank correlation, and queries to the best architecture.

  python -m experiments.benchmarks.predictors --table=nasbench201 --out=nasbench201.json
  python -m experiments.benchmarks.predictors --table=nasbench_graph_cora --predictors=gp,mlp

Correlation: Kendall's tau-b between predictions and test accuracy of all architectures, trained on the
validation accuracy of N random ones. Queries: random architectures first, then one by one that of the
largest expected improvement, refitting after each, until one of the `--top` best in validation among
the pool: the first row of every class of equal networks, or `--pool` random ones of these. Settings were
chosen on nasbench_graph_cora.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from scipy.stats import kendalltau
from threadpoolctl import threadpool_limits

from experiments import strategies
from jaxnas import predictors, tabular

_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_TABLE = flags.DEFINE_enum("table", "nasbench201", tabular.names(), "Which table.")
_PREDICTORS = flags.DEFINE_list(
    "predictors",
    ["gp", "mlp", "transformer", "transformer_tokens"],
    "Of gp, gp_decisions (one-hot decisions), mlp, transformer, transformer_tokens (no path counts), "
    "transformer_supervised (trained on accuracies, no path counts), transformer_plain (not pretrained).",
)
_SIZES = flags.DEFINE_list("sizes", ["78", "156", "469", "781"], "Training sizes; empty for none.")
_DRAWS = flags.DEFINE_integer("draws", 10, "Training sets of each size.")
_SEARCHES = flags.DEFINE_integer("searches", 20, "Sequential searches; 0 for none.")
_LIMIT = flags.DEFINE_integer("limit", 100, "Queries at most in a search.")
_INITIAL = flags.DEFINE_integer("initial", 3, "Random queries at the start of a search.")
_TOP = flags.DEFINE_integer("top", 1, "A search ends at one of this many best architectures.")
_POOL = flags.DEFINE_integer("pool", 6500, "Networks that a search chooses from, at most.")
_STEPS = flags.DEFINE_integer("steps", 2500, "Of the Transformer's pretraining, without accuracies.")
_FINE_STEPS = flags.DEFINE_integer(
    "fine_steps", None, "Of the training of transformer_supervised on accuracies."
)
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")

Table = dict[str, Any]


def load(folder: str | None, name: str) -> Table:
    """The table: inputs of all networks, validation and test scores, the rows a search chooses from.

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
    networks = np.unique(table.classes[there], return_index=True)[1]
    pool = np.random.default_rng(5).permutation(networks)[: _POOL.value]
    kinds, places = (int(inputs["tokens"][key].max()) + 1 for key in ("kind", "place"))
    return {
        "inputs": inputs,
        "valid": valid,
        "test": test,
        "pool": np.sort(pool),
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
    if name == "transformer_plain":
        plain = predictors.SupervisedTransformer(table["kinds"], table["places"], structure=False)
        return plain, table["inputs"]
    if name == "transformer_supervised":
        teacher = predictors.TransformerPredictor(
            table["kinds"], table["places"], steps=_STEPS.value, members=3
        )
        start = predictors.Start(jax.jit(teacher.pretrain)(jax.random.key(0), table["inputs"]))
        predictor = predictors.SupervisedTransformer(
            table["kinds"], table["places"], start=start, structure=False
        )
        if _FINE_STEPS.value is not None:
            predictor = dataclasses.replace(predictor, steps=_FINE_STEPS.value)
        return predictor, table["inputs"]
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


def queries(predictor: Any, inputs: Any, table: Table) -> tuple[list[int], float]:
    """Queries to one of the best, `limit` where not found; and seconds for each choice."""
    limit, pool = _LIMIT.value, table["pool"]
    inputs, valid = jax.tree.map(jnp.asarray, rows(inputs, pool)), jnp.asarray(table["valid"][pool])
    best = set(np.argsort(-table["valid"][pool])[: _TOP.value].tolist())

    @jax.jit
    def choose(key, inputs, known, number):
        mask = jnp.arange(limit) < number
        fitted = predictor.fit(key, rows(inputs, known), valid[known], mask)
        mean, std = predictor.predict(fitted, inputs)
        # The incumbent is the best mean, not the best result: results are noisy.
        gain = mean - jnp.where(mask, mean[known], -jnp.inf).max()
        scaled = gain / std
        value = gain * jax.scipy.stats.norm.cdf(scaled) + std * jax.scipy.stats.norm.pdf(scaled)
        seen = jnp.zeros(len(pool), bool).at[known].max(mask)
        return jnp.argmax(jnp.where(seen, -jnp.inf, value))

    counts, choices, seconds = [], 0, 0.0
    for seed in range(_SEARCHES.value):
        found = np.random.default_rng(seed).permutation(len(pool))[: _INITIAL.value].tolist()
        while not best & set(found) and len(found) < limit:
            known = np.zeros(limit, np.int32)
            known[: len(found)] = found
            start = time.perf_counter()
            key = jax.random.fold_in(jax.random.key(seed), len(found))
            found.append(int(choose(key, inputs, known, len(found))))
            if choices:  # the first one compiles
                seconds += time.perf_counter() - start
            choices += 1
        hits = [k + 1 for k, row in enumerate(found) if row in best]
        counts.append(hits[0] if hits else limit)
    return counts, seconds / max(choices - 1, 1)


def main(argv: list[str]) -> None:
    del argv
    table = load(_DATA.value, _TABLE.value)
    record: dict[str, Any] = {
        "table": _TABLE.value,
        "draws": _DRAWS.value,
        "top": _TOP.value,
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
        for size in map(int, filter(None, _SIZES.value)):
            if size > len(table["valid"]):
                raise ValueError(
                    f"--sizes has {size}, but {_TABLE.value} has {len(table['valid'])} networks."
                )
            one["tau"][size] = values = correlations(predictor, inputs, table, size)
            print(
                f"{name:20} tau, {size:4} points: {np.mean(values):.3f} +- {np.std(values):.3f}", flush=True
            )
        if _SEARCHES.value:
            counts, seconds = queries(predictor, inputs, table)
            one |= {"queries": counts, "seconds_per_query": seconds}
            print(
                f"{name:20} queries: mean {np.mean(counts):.1f}, median {np.median(counts):.1f}, "
                f"{min(counts)} to {max(counts)}; {seconds:.2f} s each",
                flush=True,
            )
        if _OUT.value:
            with open(_OUT.value, "w") as file:
                json.dump(record, file, indent=1)


if __name__ == "__main__":
    # See `predictors.GaussianProcess`: on a busy machine threads of BLAS wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        app.run(main)
