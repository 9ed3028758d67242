"""Evolution against random search at equal budgets, many times over the weights of one supernet.

  python -m experiments.benchmarks.searched --config=autoformer_fashion_mnist_small --workdir=runs/small

The supernet in the workdir is one that `experiments.train_supernet` trained. Each search has a key of its
own, and all have the same bounds and the same number of evaluations. No architecture is evaluated twice: what
one search asked for is known to the others. Printed are the search accuracy of what was found and its test
accuracy, mean and standard deviation over the searches, and how often evolution was better on search.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import binary
from experiments.configs import CONFIGS
from jaxnas import search, training
from jaxnas.space import Arch
from jaxnas.training.keys import stream


def main() -> None:
    """Prints a line for each budget and strategy, and how often evolution was better."""
    config, workdir = binary.read_config(CONFIGS, trains=False)
    session = binary.bring_to_life(config, workdir)
    space, variables, costs = session.net.space, session.weights(workdir), session.costs(workdir)
    limit = config.search.limit
    evaluate = training.make_evaluator(session.task, session.net, "search", mesh=session.mesh, limit=limit)
    test = training.make_evaluator(session.task, session.net, "test", mesh=session.mesh)
    metric, known, tested = session.task.metrics[0], {}, {}

    def scores(archs: Arch) -> np.ndarray:
        codes = [tuple(code) for code in np.asarray(space.encode(archs)).tolist()]
        new = [row for row, code in enumerate(codes) if code not in known]
        for start in range(0, len(new), part):
            rows = new[start : start + part]
            some = jax.tree.map(lambda x, rows=rows: np.asarray(x)[rows], archs)
            told = evaluate.scores(variables, some, part)
            known.update(zip([codes[row] for row in rows], told.tolist(), strict=True))
        return np.asarray([known[code] for code in codes], np.float32)

    def on_test(arch: Arch) -> float:
        code = tuple(np.asarray(space.encode(arch)).tolist())
        if code not in tested:
            tested[code] = float(test(variables, arch)[metric.name])
        return tested[code]

    bounds = config.search.bounds(search.reachable(space, costs))
    template: Any = getattr(config.search.method, "strategy", None) or search.Evolution(
        space, evaluations=300
    )
    evolution = dataclasses.replace(template, space=space, cost=costs, bounds=bounds)
    part = evolution.batch
    for budget in map(int, flags.FLAGS.budgets or [evolution.evaluations]):
        strategies = {
            "evolution": dataclasses.replace(evolution, evaluations=budget),
            "random search": search.RandomSearch(
                space, cost=costs, bounds=bounds, evaluations=budget, batch=part
            ),
        }
        best: dict[str, np.ndarray] = {}
        for name, strategy in strategies.items():
            found = [
                search.run(
                    strategy,
                    scores,
                    jax.random.fold_in(stream(flags.FLAGS.draw, "evolution"), number),
                    batched=True,
                )
                for number in range(flags.FLAGS.searches)
            ]
            best[name] = scores(jax.tree.map(lambda *x: np.stack(x), *(one.arch for one in found)))
            shown = {"search": best[name], "test": np.asarray([on_test(one.arch) for one in found])}
            line = {"evaluations": budget, "strategy": name, "searches": len(found)}
            for role, values in shown.items():
                line |= {role: float(values.mean()), f"{role}_deviation": float(values.std(ddof=1))}
            print(json.dumps(line), flush=True)
        first, second = best.values()
        print(
            json.dumps(
                {
                    "evaluations": budget,
                    "better": int(np.sum(first > second)),
                    "equal": int(np.sum(first == second)),
                }
            ),
            flush=True,
        )
    print(json.dumps({"evaluated": len(known)}), flush=True)


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_integer("searches", 10, "Searches of each strategy.", lower_bound=2)
    flags.DEFINE_integer("draw", 0, "Which keys.")
    flags.DEFINE_list("budgets", [], "Numbers of evaluations; by default the config's.")
    binary.run(main)
