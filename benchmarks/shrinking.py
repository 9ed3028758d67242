"""Perplexity of a checkpoint cut by three methods under two budgets, before and after a short distillation.

  python -m benchmarks.shrinking --checkpoint=smollm2 --text=train.txt --test=test.txt \\
      --output=shrinking.jsonl --seeds=0,1,2 --steps=100

Methods: "solver" (replacements and an integer program), "uniform" (one size for all layers, or without the
least influential layers; the candidate with the lowest loss), "random" (the best of 16 by divergence) and
"evolution" (as many evaluations as there are replacements, on weights that the sandwich rule has distilled).
Budgets are shares of the parameters without the embeddings. The seed draws the calibration texts. Each
result is a line of the output. Perplexities are of the first 4,096 tokens of the test text. `--depth` adds
networks without the layers of least influence and of lowest replacement score.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import jaxnas
from jaxnas import data, files, hf, search, tasks
from jaxnas.experiments import binary
from jaxnas.recipes import Distillation, Fixed, Recipe, Sandwich, Teacher
from jaxnas.runs.replacing import replacing
from jaxnas.space import Arch, Space
from jaxnas.subnet import alone
from jaxnas.training import Options, Training, fit, make_evaluator

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Folder of a decoder.", required=True)
_TEXT = flags.DEFINE_string("text", None, "Text to calibrate, search and distill on.", required=True)
_TEST = flags.DEFINE_string("test", None, "Text to measure on.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "File of JSON lines, which grows.", required=True)
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds of the calibration.")
_SHARES = flags.DEFINE_list(
    "shares", ["0.85", "0.6"], "Budgets, as shares of the parameters without embeddings."
)
_STEPS = flags.DEFINE_integer("steps", 0, "Distillation steps of each network; 0 for none.")
_SANDWICH = flags.DEFINE_integer("sandwich_steps", 40, "Steps of the supernet that evolution searches.")
_LENGTH = flags.DEFINE_integer("length", 256, "Tokens of a text.")
_LIMIT = flags.DEFINE_integer("limit", 1, "Texts by which networks are compared.")
_METHODS = flags.DEFINE_list("methods", ["solver", "uniform", "random"], "Methods.")
_DEPTH = flags.DEFINE_boolean("depth", False, "Compare rules for layers, too.")

ATTENTION, MLP = "layers_*/attention", "layers_*/mlp"
_LEAST = 0.93  # of a budget, that a candidate uses
HIDDEN, HEADS = f"{MLP}/hidden", f"{ATTENTION}/kv_heads"


def without(space: Space, layers: Any) -> Arch:
    """The largest architecture without some layers."""
    arch = {name: np.array(x) for name, x in space.largest().items()}
    for name in (ATTENTION, MLP):
        arch[name][list(layers)] = space[name].index("skip")
    return arch


def uniform(space: Space, influence: list[int]) -> Iterator[Arch]:
    """Architectures of one size for all layers, and depths, the least influential layers left out first."""
    for hidden, heads in itertools.product(space[HIDDEN].options, space[HEADS].options):
        arch = {name: np.array(x) for name, x in space.largest().items()}
        arch[HIDDEN][:] = space[HIDDEN].index(hidden)
        arch[HEADS][:] = space[HEADS].index(heads)
        yield arch
    for count in range(1, len(influence) // 2):
        yield without(space, influence[-count:])


class Bench:
    """A checkpoint that was calibrated by one seed, and what is measured of it."""

    def __init__(self, task: tasks.Language, seed: int) -> None:
        """Loads and orders the checkpoint."""
        self.task, self.seed = task, seed
        self.net, self.variables = hf.Prunable(checkpoint=_CHECKPOINT.value).load(task, seed=seed)
        self.cost = jaxnas.cost(self.net, task.inputs)
        self.replacing = replacing(task, self.net, self.variables)
        self.divergence = make_evaluator(self.replacing.task, self.net, "search", limit=_LIMIT.value)
        self.loss = make_evaluator(task, self.net, "search", limit=_LIMIT.value)
        self.test = make_evaluator(task, self.net, "test")
        batches = [task.preprocess(task.batches("train", 1, seed).at(i)) for i in range(8)]
        ranked = jaxnas.rank_modules(self.net, self.variables, batches, "layers_*")
        self.influence = [int(name.removeprefix("layers_")) for name in ranked]

    def scores(self, archs: list[Arch], evaluator: Any, variables: Any = None) -> np.ndarray:
        """The scores of architectures, one after the other."""
        rows = [jax.tree.map(lambda x: jnp.asarray(x)[None], arch) for arch in archs]
        variables = self.variables if variables is None else variables
        return np.array([evaluator.scores(variables, row)[0] for row in rows])

    def params(self, arch: Arch) -> int:
        """Parameters of an architecture."""
        return int(self.cost(jax.tree.map(jnp.asarray, arch))["params"])

    def perplexity(self, arch: Arch, variables: Any) -> float:
        """On the test text."""
        return float(self.test(variables, jax.tree.map(jnp.asarray, arch))["perplexity"])

    @functools.cached_property
    def replacements(self) -> np.ndarray:
        """The scores of all replacements; `seconds` has how long they take."""
        space, codes = self.net.space, self.replacing.replaced.codes
        rows = [space.decode(code) for code in codes]
        self.scores(rows[:1], self.divergence)  # compiles
        begun = time.perf_counter()
        scores = self.scores(rows, self.divergence)
        self.seconds = time.perf_counter() - begun
        return scores

    def solver(self, most: int) -> Arch:
        """The exact choice of replacements within a number of parameters."""
        return search.knapsack(
            self.replacing.replaced, self.replacements, self.cost, {"params": (None, most)}
        )

    def uniform(self, most: int) -> Arch:
        """The best of the candidates of one size for all layers that use the budget."""
        near = [x for x in uniform(self.net.space, self.influence) if _LEAST * most < self.params(x) <= most]
        return near[int(np.argmax(self.scores(near, self.loss)))]

    def random(self, most: int) -> Arch:
        """The best of 16 random architectures that use the budget."""
        bounds = {"params": (int(_LEAST * most), most)}
        drawn = search.RandomSearch(self.net.space, self.cost, bounds, evaluations=16, batch=16)
        archs, _ = drawn.ask(drawn.init(jax.random.key(self.seed)))
        some = [jax.tree.map(lambda x, i=i: x[i], archs) for i in range(16)]
        return some[int(np.argmax(self.scores(some, self.divergence)))]

    def layers(self) -> dict[str, list[int]]:
        """All layers by two rules, the least important last."""
        archs = [without(self.net.space, [i]) for i in range(len(self.influence))]
        by_replacement = np.argsort(self.scores(archs, self.divergence)).tolist()
        return {"influence": self.influence, "replacement": by_replacement}

    @functools.cached_property
    def sandwich(self) -> Any:
        """The variables of the supernet after a distillation from the whole network by the sandwich rule."""
        recipe = Sandwich(random=1, distill=self.distillation)
        return self.fitted(self.net, self.variables, recipe, _SANDWICH.value)

    def evolution(self, most: int) -> Arch:
        """The best by evolution on the distilled supernet."""
        count = len(self.replacing.replaced.codes)
        bounds = {"params": (int(_LEAST * most), most)}
        sizes = dict(population=count // 9, mutations=count // 18, crossovers=count // 18)
        strategy = search.Evolution(self.net.space, self.cost, bounds, evaluations=count, **sizes)

        def scores(archs: Arch) -> np.ndarray:
            some = [jax.tree.map(lambda x, i=i: x[i], archs) for i in range(len(next(iter(archs.values()))))]
            return self.scores(some, self.loss, self.sandwich)

        return search.run(strategy, scores, jax.random.key(self.seed), batched=True).arch

    @functools.cached_property
    def distillation(self) -> Distillation:
        """By the logits of the whole network."""
        _, *teacher = alone(self.net, self.variables, self.net.space.largest(), self.task.inputs)
        return Distillation(divergence="kl", teacher=Teacher(*teacher))

    def fitted(self, net: Any, variables: Any, recipe: Recipe, steps: int) -> Any:
        """The variables of a network after a short training."""
        training = Training(steps=steps, batch_size=1, learning_rate=1e-4, warmup_steps=steps // 10)
        trained = fit(self.task.whole(), net, training, recipe=recipe, options=Options(variables=variables))
        return trained.variables

    def distilled(self, arch: Arch, variables: Any, steps: int) -> float:
        """The perplexity after a distillation from the whole network."""
        _, small, start = alone(self.net, variables, jax.tree.map(jnp.asarray, arch), self.task.inputs)
        variables = self.fitted(small, start, Fixed(distill=self.distillation), steps)
        return float(make_evaluator(self.task, small, "test")(variables)["perplexity"])


def main() -> None:
    text = data.from_text(_TEXT.value, test=_TEST.value, tokenizer=_CHECKPOINT.value)
    task = tasks.Language(
        data=text, length=_LENGTH.value, evaluation_rows=1, evaluation_tokens=16 * _LENGTH.value + 1
    )

    def tell(**record: Any) -> None:
        print(record, flush=True)
        files.append_lines(files.as_path(_OUTPUT.value), [record])

    for number, seed in enumerate(map(int, _SEEDS.value)):
        bench = Bench(task, seed)
        whole = bench.params(bench.net.space.largest())
        if number == 0:
            tell(
                method="whole",
                params=whole,
                perplexity=bench.perplexity(bench.net.space.largest(), bench.variables),
            )
        embeddings = bench.net.vocabulary * bench.net.module.width
        for method, share in itertools.product(_METHODS.value, map(float, _SHARES.value)):
            arch = getattr(bench, method)(int(embeddings + share * (whole - embeddings)))
            record: dict[str, Any] = dict(method=method, seed=seed, share=share, params=bench.params(arch))
            variables = bench.sandwich if method == "evolution" else bench.variables
            record["perplexity"] = bench.perplexity(arch, variables)
            if method == "solver":
                replaced = bench.replacing.replaced
                record |= dict(seconds=bench.seconds, estimated=-replaced.total(bench.replacements, arch))
            if _STEPS.value:
                record |= dict(steps=_STEPS.value, distilled=bench.distilled(arch, variables, _STEPS.value))
            tell(**record)
        if _DEPTH.value:
            for name, order in bench.layers().items():
                for count in (2, 4, 6):
                    arch, left = without(bench.net.space, order[-count:]), len(order) - count
                    tell(
                        method=name,
                        seed=seed,
                        layers=left,
                        perplexity=bench.perplexity(arch, bench.variables),
                    )


if __name__ == "__main__":
    binary.run(main)
