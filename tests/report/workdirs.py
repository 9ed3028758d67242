"""Workdirs of plausible runs for the tests of the page, one of each kind; and what a page has in it."""

import dataclasses
import html.parser
import json
import math
import pathlib
import random

from jaxnas import spaces
from jaxnas.report import facts
from jaxnas.report import result as result_lib
from jaxnas.report.findings import read_run
from jaxnas.report.page import library, write
from jaxnas.report.result import Candidate, MetricOf, Network, Result, SearchOf, SelectionOf, SpaceOf, TaskOf

ACCURACY = MetricOf(name="accuracy", unit="%", direction="max")
LOSS = MetricOf(name="loss", unit="nats per token", direction="min")
PERPLEXITY = MetricOf(name="perplexity", unit="", direction="min")
BITS = MetricOf(name="bits_per_byte", unit="bits per byte", direction="min")
ERROR = MetricOf(name="mean squared error", unit="", direction="min")
SIZES = {"train": 8544, "search": 1101, "test": 2210}


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change(root, **fields):
    """Replaces fields of the result of a workdir."""
    result_lib.write(root, dataclasses.replace(result_lib.read(root), **fields))
    return root


# ---- What is on a page.


class Page(html.parser.HTMLParser):
    """The text, attributes and data of a page; fails where elements are not closed in order."""

    BLOCKS = {"td", "th", "p", "div", "dt", "dd", "h2", "span", "b"}
    VOID = {"meta", "link"}

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.words, self.scripts = [], [], [], []
        self.feed(page.replace(library(), ""))  # most of the page, and slow to parse
        assert self.open == []
        self.text = " ".join("".join(self.words).replace("\u00a0", " ").split())
        self.charts = json.loads(self.scripts[0])["charts"] if self.scripts else {}

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        self.words += [" "] if tag in self.BLOCKS else []
        self.open += [tag] if tag not in self.VOID else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)


def page_of(root):
    return Page(write(root).read_text(encoding="utf-8"))


def facts_of(root):
    return facts.facts(read_run(root))


def section_of(root, title):
    """The section of a page whose title begins so; None if there is none."""
    return next((one for one in facts_of(root)["sections"] if one["title"].startswith(title)), None)


# ---- Workdirs.


def named(name, architecture, costs, metrics, **more):
    return Network(name=name, architecture=architecture, costs=costs, metrics=metrics, **more)


def searched(root, sample, costs, score, evaluations, strategies):
    """Writes a history in which all but random search get better; the best line of each strategy."""
    lines = []
    for strategy in strategies:
        for i in range(evaluations):
            arch, gain = sample(), 0 if strategy == "random" else i / evaluations
            line = {"index": i, "strategy": strategy, "generation": i // 50, "architecture": arch}
            lines.append(line | costs(arch) | {"score": score(costs(arch), gain)})
    write_lines(root / "search/history.jsonl", lines)
    return [max((x for x in lines if x["strategy"] == s), key=lambda x: x["score"]) for s in strategies]


def trained(root, steps, metric, value, watch=0, more=()):
    """Writes records of a training, and of a watched supernet whose small networks are worse by the sign."""
    records = list(more)
    for step in range(steps // 100, steps + 1, steps // 100):
        part = step / steps
        record = {"step": step, "split": "train", "loss": 0.55 + 1.8 * math.exp(-7 * part)}
        records.append(record | {metric: value(part), "learning_rate": 1e-3 * (1 - part)})
        if watch and step % (steps // 20) == 0:
            mean, low = value(part) - 0.05 * watch, value(part) - 0.1 * watch
            least, most = sorted((low, mean))
            record = {f"largest_{metric}": value(part), f"smallest_{metric}": low}
            record |= {f"random_{metric}_{k}": v for k, v in (("mean", mean), ("min", least), ("max", most))}
            records.append({"step": step, "split": "search"} | record)
    write_lines(root / "metrics.jsonl", sorted(records, key=lambda x: x["step"]))


def vision(root, layers=5, widths=(16, 32, 48, 64), heads=(1, 2, 3, 4), evaluations=250):
    """Evolution beside random search over a vision transformer, as of the digits."""
    rng, root = random.Random(0), pathlib.Path(root)
    depths, ratios = tuple(range(1, layers + 1)), (1.0, 2.0, 3.0, 4.0)
    space = spaces.vit(widths, depths, heads, ratios)

    def architecture(pick):
        depth, each = pick(depths), {"num_heads": heads, "mlp_ratio": ratios}
        repeated = {name: [pick(options) for _ in range(depth)] for name, options in each.items()}
        return {"embed_dim": pick(widths), "depth": depth} | repeated

    def costs(arch):
        e = arch["embed_dim"]
        each = zip(arch["num_heads"], arch["mlp_ratio"], strict=True)
        params = e * 31 + 10 + sum(64 * e * h + 2 * e * round(e * r) + 6 * e for h, r in each)
        return {"params": params, "macs": params * 17}

    least, most = (costs(architecture(pick))["params"] for pick in (min, max))
    bounds = {"params": (30_000, 200_000)}

    def score(found, gain):
        clean = 0.98 - 0.07 * math.exp(-3.2 * found["params"] / most) - abs(rng.gauss(0, 0.006))
        return round(min(1.0, clean + 0.006 * gain) * 360) / 360

    def network(name, arch, score, **more):
        metrics = {"search": {"accuracy": score}, "test": {"accuracy": score - 0.004}}
        return named(name, arch, costs(arch), metrics, **more)

    names = ("evolution", "random")
    best, other = searched(root, lambda: architecture(rng.choice), costs, score, evaluations, names)
    trained(root, 3000, "accuracy", lambda part: 0.985 - 0.8 * math.exp(-9 * part), watch=1)
    found = dict(evaluations=evaluations, bounds=bounds, reachable={"params": (least, most)})
    task = dict(sizes={"train": 1077, "search": 360, "test": 360}, metrics=(ACCURACY,))
    task |= dict(
        details={"image_shape": [8, 8, 1], "num_classes": 10}, inputs="float32 [batch, 8, 8, 1], as read"
    )
    result = Result(
        task=TaskOf(name="digits", examples="images", **task),
        space=SpaceOf(cardinality=str(space.cardinality), choices=space.to_json()),
        found=network("found", best["architecture"], best["score"], extraction_error=2.4e-7),
        networks=(
            network("random search", other["architecture"], other["score"]),
            network("smallest", architecture(min), 0.91),
            network("largest", architecture(max), 0.98),
        ),
        searches=tuple(SearchOf(name=name, **found) for name in names),
        config={"name": "digits", "seed": 0, "training": {"steps": 3000, "batch_size": 128}},
        versions={"jaxnas": "0.1.0", "jax": "0.10.2", "flax": "0.12.0"},
        device="cpu (2 cores)",
    )
    result_lib.write(root, result)
    return root


def language(root, retrained=True):
    """A differentiable search for the blocks of a language model, with networks trained alone."""
    root, options = pathlib.Path(root), ("attention", "feed_forward", "identity")
    found, interleaved = [*options] * 4, ["attention", "feed_forward"] * 6

    def network(name, stack, loss, **more):
        params = 200_000 + 65_000 * stack.count("attention") + 130_000 * stack.count("feed_forward")
        metrics = {}
        for role, value in (("search", loss + 0.04), ("validation", loss), ("test", loss + 0.05)):
            metrics[role] = {"loss": value, "perplexity": math.exp(value), "bits_per_byte": value / 2.1}
        return named(name, {"block": stack}, {"params": params}, metrics, **more)

    def probabilities(step):
        """Block i comes to prefer option i % 3."""
        more, less = 1 / 3 + step / 4000, 1 / 3 - step / 8000
        return {"block": [[more if i % 3 == j else less for j in range(3)] for i in range(12)]}

    line = {"split": "architecture", "confidence": 0.4}
    chances = [line | {"step": step, "probabilities": probabilities(step)} for step in range(50, 1001, 50)]
    trained(root, 1000, "perplexity", lambda part: 60 + 700 * math.exp(-5 * part), more=chances)
    candidates = []
    for i in range(16):
        trials, arch = (4.9 + 0.01 * i, 4.4 + 0.01 * i)[: 2 if i < 4 else 1], {"block": found[i:] + found[:i]}
        known = dict(architecture=arch, supernet=4.5 + 0.02 * i, trials=trials)
        candidates.append(Candidate(explored=i % 3 == 2, **known))
    taken = dict(candidates=tuple(candidates), trial_steps=(100, 300), kendall_tau=0.43)
    taken |= dict(probabilities=probabilities(1000))
    sizes = {"train": 320_000, "search": 32_000, "validation": 18_000, "test": 18_000}
    result = Result(
        task=TaskOf(
            name="tiny_shakespeare", examples="tokens", sizes=sizes, metrics=(LOSS, PERPLEXITY, BITS)
        ),
        space=SpaceOf(cardinality=str(3**12), choices={"block": {"options": [*options], "length": 12}}),
        found=network("found", found, 4.62, extraction_error=3.1e-7),
        networks=(network("interleaved", interleaved, 4.58),),
        selection=SelectionOf(method="trials", steps=1000, confidence=0.58, **taken),
        config={"name": "tiny_shakespeare", "seed": 0},
    )
    result_lib.write(root, result)
    alone = (("found", found, 4.11), ("found", found, 4.13), ("interleaved", interleaved, 4.12))
    for seed, (name, stack, loss) in enumerate(alone if retrained else ()):
        folder = root / f"retrained/{name}-scratch-{seed}"
        folder.mkdir(parents=True)
        net = network(name, stack, loss, weights="from scratch", seed=seed, steps=3000)
        result_lib.write(folder, dataclasses.replace(result, found=net, networks=(), selection=None))
    return root


def own(root):
    """A user's own network with odd choices, searched for the least error by three strategies."""
    rng, root = random.Random(2), pathlib.Path(root)
    options = {"units": [8, 16, 24], "activation": ["relu", "gelu", "swish"], "skip first": [True, False]}
    choices = {"kernel": {"options": [3, 5, 7], "length": 3}}
    choices |= {name: {"options": values} for name, values in options.items()}

    def costs(arch):
        params = arch["units"] * (sum(arch["kernel"]) + 7)
        return {"params": params, "macs": 40 * params, "latency_ms": 0.2 + params / 1000}

    def sample():
        return {"kernel": rng.choices([3, 5, 7], k=3)} | {n: rng.choice(x) for n, x in options.items()}

    def score(found, gain):
        return -(0.04 + 0.5 * math.exp(-found["params"] / 150) + abs(rng.gauss(0, 0.02)) - 0.01 * gain)

    def network(name, arch, error, **more):
        metrics = {"search": {ERROR.name: error}, "test": {ERROR.name: error * 1.05}}
        return named(name, arch, costs(arch), metrics, **more)

    names = ("local_search", "bayesian", "random")
    _, best, other = searched(root, sample, costs, score, 120, names)
    trained(root, 500, ERROR.name, lambda part: 0.06 + math.exp(-6 * part), watch=-1)
    biggest = {"kernel": [7, 7, 7]} | {name: values[-1] for name, values in options.items()}
    bounds = {"latency_ms": (None, 0.9)}
    result = Result(
        task=TaskOf(name="my sensors", examples="recordings", sizes=SIZES, metrics=(ERROR,)),
        space=SpaceOf(cardinality="486", choices=choices),
        found=network("found", best["architecture"], -best["score"], extraction_error=4e-5),
        networks=(
            network("random search", other["architecture"], -other["score"]),
            network("largest", biggest, 0.05),
            network("reference", sample(), 0.16),
        ),
        searches=tuple(SearchOf(name=name, evaluations=120, bounds=bounds) for name in names),
        config={"my_setting": 3},
    )
    result_lib.write(root, result)
    return root


MECHANISMS = ("bigbird", "linear", "linformer", "local", "performer", "sparse_transformer")


def mechanisms(root, method="pruning", heads=4, scale=0.03, metric=ACCURACY, options=MECHANISMS):
    """A selection of attention mechanisms by what a supernet loses without them, as of DARTFormer.

    `heads` is None for one decision, else the number of positions; the largest falls are about `scale`.
    """
    rng, positions = random.Random(3), heads or 1
    strength = {option: scale * (1.1 - 0.3 * i) for i, option in enumerate(reversed(options))}
    blocks = [[position, option] for position in range(positions) for option in options]

    def drops(names):
        return [strength[name] + rng.gauss(0, 0.25 * scale) for name in names]

    decisions = []
    if method == "perturbation":
        for position in range(positions):
            falls = drops(options)
            kept, place = options[falls.index(max(falls))], None if heads is None else position
            decisions.append({"name": "mechanism", "position": place, "kept": kept, "drops": falls})
        found = [one["kept"] for one in decisions]
    else:  # a round that removes the weakest, and one that says nothing of the strengths
        falls = drops(option for _, option in blocks)
        weakest = [block for _, block in sorted(zip(falls, blocks, strict=True))]
        removed, left = weakest[:-positions], weakest[-positions:]
        decisions.append({"name": "mechanism", "blocks": blocks, "drops": falls, "removed": removed})
        decisions.append({"name": "mechanism", "blocks": left, "drops": [9.0] * positions, "removed": []})
        found = sorted((option for _, option in left), key=options.index)
    even = [1 / len(options)] * len(options)
    choice = {"options": list(options)} | ({} if heads is None else {"length": heads})
    space = SpaceOf(cardinality=str(len(options) ** positions), choices={"mechanism": choice})
    selection = SelectionOf(
        method=method,
        steps=2000,
        probabilities={"mechanism": even if heads is None else [even] * heads},
        confidence=1 / len(options),
        decisions=tuple(decisions),
    )
    architecture = {"mechanism": found[0] if heads is None else found}
    return decided(root, architecture, metric, space=space, selection=selection)


def decided(root, architecture, metric=ACCURACY, **fields):
    """A result of reviews with one network."""
    metrics = {role: {metric.name: value} for role, value in (("search", 0.61), ("test", 0.6))}
    found = named("found", architecture, {"params": 210_000}, metrics)
    root.mkdir(parents=True, exist_ok=True)
    task = TaskOf(name="reviews", examples="texts", sizes=SIZES, metrics=(metric,))
    result_lib.write(root, Result(task=task, found=found, **fields))
    return root
