"""A checkpoint cut by three methods under two budgets, before and after a small distillation.

  python -m experiments.benchmarks.shrinking --checkpoint=smollm2 --text=train.txt --test=test.txt \\
      --output=shrinking.jsonl --seeds=0,1,2 --steps=100

Methods: "solver" (replacements and an integer program), "uniform" (one size for all layers, or the least
influential layers left out; the candidate with the best loss) and "random" (the best of 16 by divergence).
Budgets are shares of the parameters without the embeddings. A seed draws the calibration texts. Each result
is a line of the output; perplexities are of the first 4,096 tokens of the test text. With --depth also layers
left out by influence and by replacement.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jaxnas
from jaxnas import data, files, hf, search, tasks
from jaxnas.runs.replacing import replacing
from jaxnas.space import Arch, Space
from jaxnas.subnet import alone
from jaxnas.training import Distillation, Fixed, Teacher, Training, fit, make_evaluator

_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Folder of a decoder.", required=True)
_TEXT = flags.DEFINE_string("text", None, "Text to calibrate, search and distil on.", required=True)
_TEST = flags.DEFINE_string("test", None, "Text to measure on.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "File of JSON lines, which grows.", required=True)
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Of calibrations.")
_SHARES = flags.DEFINE_list("shares", ["0.85", "0.6"], "Of the parameters without embeddings.")
_STEPS = flags.DEFINE_integer("steps", 0, "Of the distillation of the first seed's networks; 0 for none.")
_LENGTH = flags.DEFINE_integer("length", 256, "Tokens of a text.")
_LIMIT = flags.DEFINE_integer("limit", 1, "Texts by which networks are compared.")
_DEPTH = flags.DEFINE_boolean("depth", False, "Whether to compare rules for layers, too.")

ATTENTION, MLP = "layers_*/attention", "layers_*/mlp"
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

    def scores(self, archs: list[Arch], evaluator: Any) -> np.ndarray:
        """The scores of architectures, one after the other."""
        rows = [jax.tree.map(lambda x: jnp.asarray(x)[None], arch) for arch in archs]
        return np.array([evaluator.scores(self.variables, row)[0] for row in rows])

    def params(self, arch: Arch) -> int:
        """Parameters of an architecture."""
        return int(self.cost(jax.tree.map(jnp.asarray, arch))["params"])

    def perplexity(self, arch: Arch) -> float:
        """On the test text."""
        return float(self.test(self.variables, jax.tree.map(jnp.asarray, arch))["perplexity"])

    def distilled(self, arch: Arch, steps: int) -> float:
        """The perplexity after a distillation from the whole network."""
        inputs, space = self.task.inputs, self.net.space
        _, *teacher = alone(self.net, self.variables, space.largest(), inputs)
        _, small, start = alone(self.net, self.variables, jax.tree.map(jnp.asarray, arch), inputs)
        recipe = Fixed(distill=Distillation(divergence="kl", teacher=Teacher(*teacher)))
        training = Training(steps=steps, batch_size=1, learning_rate=1e-4, warmup_steps=steps // 10)
        trained = fit(self.task.whole(), small, training, recipe=recipe, variables=start)
        return float(make_evaluator(self.task, small, "test")(trained.variables)["perplexity"])


def main(_: list[str]) -> None:
    text = data.from_text(_TEXT.value, test=_TEST.value, tokenizer=_CHECKPOINT.value)
    task = tasks.Language(
        data=text, length=_LENGTH.value, evaluation_rows=1, evaluation_tokens=16 * _LENGTH.value + 1
    )

    def tell(**record: Any) -> None:
        print(record, flush=True)
        files.append_lines(files.as_path(_OUTPUT.value), [record])

    for number, seed in enumerate(map(int, _SEEDS.value)):
        bench = Bench(task, seed)
        space, replaced = bench.net.space, bench.replacing.replaced
        whole = bench.params(space.largest())
        if number == 0:
            tell(method="whole", params=whole, perplexity=bench.perplexity(space.largest()))
        rows = [space.decode(code) for code in replaced.codes]
        bench.scores(rows[:1], bench.divergence)  # compiles
        begun = time.perf_counter()
        scores = bench.scores(rows, bench.divergence)
        tell(method="scores", seed=seed, replacements=len(rows), seconds=time.perf_counter() - begun)
        embeddings = bench.net.vocabulary * bench.net.module.width
        for share in map(float, _SHARES.value):
            most = int(embeddings + share * (whole - embeddings))
            bounds, found = {"params": (None, most)}, {}
            begun = time.perf_counter()
            found["solver"] = search.knapsack(replaced, scores, bench.cost, bounds)
            seconds = time.perf_counter() - begun
            few = [x for x in uniform(space, bench.influence) if 0.93 * most < bench.params(x) <= most]
            found["uniform"] = few[int(np.argmax(bench.scores(few, bench.loss)))]
            drawn = search.RandomSearch(space, bench.cost, bounds, evaluations=16, batch=16)
            archs, _ = drawn.ask(drawn.init(jax.random.key(seed)))
            some = [jax.tree.map(lambda x, i=i: x[i], archs) for i in range(16)]
            found["random"] = some[int(np.argmax(bench.scores(some, bench.divergence)))]
            for method, arch in found.items():
                record: dict[str, Any] = dict(
                    method=method, seed=seed, share=share, params=bench.params(arch)
                )
                record["perplexity"] = bench.perplexity(arch)
                if _STEPS.value and number == 0:
                    record |= dict(steps=_STEPS.value, distilled=bench.distilled(arch, _STEPS.value))
                if method == "solver":
                    record |= dict(seconds=seconds, estimated=-replaced.total(scores, arch))
                tell(**record)
        if _DEPTH.value:
            layers = range(len(bench.influence))
            alone_scores = bench.scores([without(space, [i]) for i in layers], bench.divergence)
            by_replacement = np.argsort(alone_scores).tolist()  # the one that is missed most first
            for name, order in (("influence", bench.influence), ("replacement", by_replacement)):
                for count in (2, 4, 6):
                    arch = without(space, order[-count:])
                    tell(
                        method=name, seed=seed, layers=len(layers) - count, perplexity=bench.perplexity(arch)
                    )


if __name__ == "__main__":
    app.run(main)
