"""Workdirs of plausible runs for the tests of the page: one of each kind, written by the schema."""

import json
import math
import pathlib
import random

from jaxnas import spaces
from jaxnas.report import result as result_lib
from jaxnas.report.result import (
    Candidate,
    MetricOf,
    Network,
    Result,
    SearchOf,
    SelectionOf,
    SpaceOf,
    TaskOf,
)

ACCURACY = MetricOf(name="accuracy", unit="%", direction="max")
LOSS = MetricOf(name="loss", unit="nats per token", direction="min")
PERPLEXITY = MetricOf(name="perplexity", unit="", direction="min")
BITS = MetricOf(name="bits_per_byte", unit="bits per byte", direction="min")
ERROR = MetricOf(name="mean squared error", unit="", direction="min")


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def history(rng, sample, costs, score, evaluations, strategies, within=lambda costs: True):
    """Evaluations of several strategies; all but random search get better as they go on."""
    lines = []
    for strategy in strategies:
        for index in range(evaluations):
            arch = sample()
            while not within(costs(arch)):
                arch = sample()
            found = costs(arch)
            gain = 0 if strategy == "random" else index / evaluations
            lines.append(
                {"index": index, "strategy": strategy, "generation": index // 50, "architecture": arch}
                | found
                | {"score": score(found, gain)}
            )
    return lines


def curves(rng, steps, every, metric, value, extra=lambda part: {}):
    """Training records of a loss, the metric and the learning rate."""
    return [
        {
            "step": step,
            "split": "train",
            "loss": 0.55 + 1.8 * math.exp(-7 * step / steps) + abs(rng.gauss(0, 0.05)),
            metric: value(step / steps) + rng.gauss(0, 0.01),
            "learning_rate": 1e-3 * min(1, 20 * step / steps) * (1 + math.cos(math.pi * step / steps)) / 2,
            **extra(step / steps),
        }
        for step in range(every, steps + 1, every)
    ]


def watched(steps, every, metric, value, sign):
    """Watch records of a supernet."""
    records = []
    for step in range(every, steps + 1, every):
        largest = value(step / steps)
        mean = largest - sign * (0.02 + 0.1 * math.exp(-4 * step / steps))
        low, high = sorted((mean - sign * 0.03, mean + sign * 0.01))
        records.append(
            {
                "step": step,
                "split": "search",
                f"largest_{metric}": largest,
                f"smallest_{metric}": mean - sign * (0.05 + 0.15 * math.exp(-3 * step / steps)),
                f"random_{metric}_mean": mean,
                f"random_{metric}_min": low,
                f"random_{metric}_max": high,
            }
        )
    return records


def vision(root, layers=5, widths=(16, 32, 48, 64), heads=(1, 2, 3, 4), evaluations=250, name="digits"):
    """Evolution beside random search over a vision transformer, as of the digits."""
    rng, root = random.Random(0), pathlib.Path(root)
    ratios, depths, sizes = (1.0, 2.0, 3.0, 4.0), tuple(range(1, layers + 1)), (1077, 360, 360)

    def architecture(pick):
        depth = pick(depths)
        return {
            "embed_dim": pick(widths),
            "depth": depth,
            "num_heads": [pick(heads) for _ in range(depth)],
            "mlp_ratio": [pick(ratios) for _ in range(depth)],
        }

    def costs(arch):
        e = arch["embed_dim"]
        each = zip(arch["num_heads"], arch["mlp_ratio"], strict=True)
        params = e * 31 + 10 + sum(64 * e * h + 2 * e * round(e * r) + 6 * e for h, r in each)
        return {"params": params, "macs": params * 17}

    most = costs(architecture(max))["params"]

    def score(found, gain):
        clean = 0.98 - 0.07 * math.exp(-3.2 * found["params"] / most) - abs(rng.gauss(0, 0.006))
        return round(min(1.0, clean + 0.006 * gain) * sizes[1]) / sizes[1]

    def network(name, arch, accuracy=None, **more):
        found = costs(arch)
        accuracy = score(found, 0.5) if accuracy is None else accuracy
        test = max(0.0, min(1.0, accuracy - 0.004 + rng.gauss(0, 0.003)))
        metrics = {"search": {"accuracy": accuracy}, "test": {"accuracy": test}}
        return Network(name=name, architecture=arch, costs=found, metrics=metrics, **more)

    low, high = round(0.12 * most, -2), round(0.6 * most, -2)
    lines = history(
        rng,
        lambda: architecture(rng.choice),
        costs,
        score,
        evaluations,
        ("evolution", "random"),
        lambda found: low <= found["params"] <= high,
    )
    write_lines(root / "search/history.jsonl", lines)
    best = {
        s: max((x for x in lines if x["strategy"] == s), key=lambda x: (x["score"], -x["params"]))
        for s in ("evolution", "random")
    }

    def rising(part):
        return 0.985 - 0.8 * math.exp(-9 * part)

    records = curves(rng, 3000, 10, "accuracy", rising) + watched(3000, 150, "accuracy", rising, 1)
    write_lines(root / "metrics.jsonl", sorted(records, key=lambda x: x["step"]))
    bounds, reachable = {"params": (low, high)}, {"params": (costs(architecture(min))["params"], most)}
    result = Result(
        task=TaskOf(
            name=name,
            examples="images",
            sizes=dict(zip(("train", "search", "test"), sizes, strict=True)),
            metrics=(ACCURACY,),
            details={"image_shape": [8, 8, 1], "num_classes": 10},
            inputs="float32 [batch, 8, 8, 1], normalised as in training",
        ),
        space=SpaceOf(
            cardinality=str(len(widths) * sum((len(heads) * len(ratios)) ** d for d in depths)),
            choices={
                "embed_dim": {"options": list(widths)},
                "depth": {"options": list(depths)},
                "num_heads": {"options": list(heads), "length": layers, "active": "depth"},
                "mlp_ratio": {"options": list(ratios), "length": layers, "active": "depth"},
            },
        ),
        found=network(
            "found",
            best["evolution"]["architecture"],
            best["evolution"]["score"],
            extraction_error=2.4e-7,
        ),
        networks=(
            network("random search", best["random"]["architecture"], best["random"]["score"]),
            network("smallest", architecture(min)),
            network("largest", architecture(max)),
        ),
        searches=tuple(
            SearchOf(name=s, evaluations=evaluations, bounds=bounds, reachable=reachable)
            for s in ("evolution", "random")
        ),
        config={"name": name, "seed": 0, "training": {"steps": 3000, "batch_size": 128}},
        versions={"jaxnas": "0.1.0", "jax": "0.10.2", "flax": "0.12.0"},
        device="cpu (2 cores)",
    )
    result_lib.write(root, result)
    return root


def language(root, blocks=12, method="trials", retrained=True):
    """A differentiable search for the blocks of a language model, with networks trained alone."""
    rng, root = random.Random(1), pathlib.Path(root)
    options = ("attention", "feed_forward", "identity")
    choices = {"block": {"options": list(options), "length": blocks}}

    def costs(stack):
        params = 200_000 + 65_000 * stack.count("attention") + 130_000 * stack.count("feed_forward")
        return {"params": params, "macs": params - 180_000}

    def figures(loss):
        return {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / 2.1}

    def network(name, stack, loss, **more):
        roles = {"search": figures(loss + 0.04), "validation": figures(loss), "test": figures(loss + 0.05)}
        return Network(name=name, architecture={"block": stack}, costs=costs(stack), metrics=roles, **more)

    def stack():
        return [rng.choice(options) for _ in range(blocks)]

    def probabilities(part):
        moved = []
        for block in range(blocks):
            weights = [math.exp(3 * part * math.sin(block * 1.7 + 2.1 * i)) for i in range(3)]
            moved.append([w / sum(weights) for w in weights])
        return {"block": moved}

    steps = 1000

    def falling(part):
        return 4.2 + 2.5 * math.exp(-5 * part)

    def logged(part):
        return {
            "search_loss": falling(part) + rng.gauss(0, 0.05),
            "temperature": 5 * 0.02**part,
            "entropy": 1.1 - 0.8 * part,
            "confidence": 0.34 + 0.4 * part,
            "expected_cost": 1 - 0.5 * part,
        }

    records = curves(rng, steps, 10, "perplexity", lambda part: math.exp(falling(part)), logged)
    records = [line | {"loss": falling(line["step"] / steps)} for line in records]
    for step in range(50, steps + 1, 50):
        chances = probabilities(step / steps)
        records.append({"step": step, "split": "architecture", "confidence": 0.4, "probabilities": chances})
    write_lines(root / "metrics.jsonl", sorted(records, key=lambda x: x["step"]))
    last = probabilities(1.0)
    found = [options[max(range(3), key=row.__getitem__)] for row in last["block"]]
    more = {}
    if method in ("trials", "sampling"):
        drawn = [found] + [stack() for _ in range(15)]
        more["candidates"] = tuple(
            Candidate(
                architecture={"block": one},
                explored=i % 3 == 2,
                supernet=4.5 + 0.02 * i,
                trials=(4.9 + 0.01 * i, 4.4 + 0.01 * i)[: (2 if i < 4 else 1) if method == "trials" else 0],
            )
            for i, one in enumerate(drawn)
        )
    if method == "trials":
        more |= {"trial_steps": (100, 300), "kendall_tau": 0.43}
    if method == "perturbation":
        more["decisions"] = tuple(
            {
                "name": "block",
                "position": i,
                "kept": one,
                "drops": [0.2 if option == one else 0.05 for option in options],
            }
            for i, one in enumerate(found)
        )
    selection = SelectionOf(method=method, steps=steps, probabilities=last, confidence=0.58, **more)
    interleaved = ["attention" if i % 2 == 0 else "feed_forward" for i in range(blocks)]
    task = TaskOf(
        name="tiny_shakespeare",
        examples="tokens",
        sizes={"train": 320_000, "search": 32_000, "validation": 18_000, "test": 18_000},
        metrics=(LOSS, PERPLEXITY, BITS),
        details={"vocabulary": 8192, "tokenizer": "words"},
        inputs="int32 tokens [batch, length]",
    )
    common = dict(
        task=task,
        space=SpaceOf(cardinality=str(3**blocks), choices=choices),
        config={"name": "tiny_shakespeare", "seed": 0, "training": {"steps": steps}},
        versions={"jaxnas": "0.1.0", "jax": "0.10.2"},
        device="cpu",
    )
    result_lib.write(
        root,
        Result(
            found=network("found", found, 4.62, extraction_error=3.1e-7),
            networks=(
                network("interleaved", interleaved, 4.58),
                network("PAR rule", ["attention"] * (blocks // 3) + ["feed_forward"] * (blocks // 2), 4.66),
            ),
            selection=selection,
            **common,
        ),
    )
    if retrained:
        for seed, (name, blocks_of, loss) in enumerate(
            [("found", found, 4.11), ("found", found, 4.13), ("interleaved", interleaved, 4.12)]
        ):
            folder = root / f"retrained/{name}-scratch-{seed}"
            folder.mkdir(parents=True)
            net = network(name, blocks_of, loss, weights="from scratch", seed=seed, steps=3000)
            result_lib.write(folder, Result(found=net, **common))
            times = {"seconds": 60.0, "training_step_ms": 23.4, "inference_rows_per_second": 41_000.0}
            (folder / "times.json").write_text(json.dumps(times))
    return root


def own(root, evaluations=120):
    """A user's own network with odd choices, searched for the least error by three strategies."""
    rng, root = random.Random(2), pathlib.Path(root)
    choices = {
        "kernel": {"options": [3, 5, 7], "length": 3},
        "units": {"options": [8, 16, 24]},
        "activation": {"options": ["relu", "gelu", "swish"]},
        "skip first": {"options": [True, False]},
    }

    def sample():
        return {
            "kernel": [rng.choice([3, 5, 7]) for _ in range(3)],
            "units": rng.choice([8, 16, 24]),
            "activation": rng.choice(["relu", "gelu", "swish"]),
            "skip first": rng.choice([True, False]),
        }

    def costs(arch):
        params = arch["units"] * (sum(arch["kernel"]) + 7)
        return {"params": params, "macs": 40 * params, "latency_ms": 0.4 + params / 900}

    def score(found, gain):
        return -(0.04 + 0.5 * math.exp(-found["params"] / 150) + abs(rng.gauss(0, 0.02)) - 0.01 * gain)

    def network(name, arch, error, **more):
        roles = {"search": {ERROR.name: error}, "test": {ERROR.name: error * 1.05}}
        return Network(name=name, architecture=arch, costs=costs(arch), metrics=roles, **more)

    lines = history(
        rng,
        sample,
        costs,
        score,
        evaluations,
        ("local_search", "bayesian", "random"),
        lambda found: found["latency_ms"] <= 0.9,
    )
    write_lines(root / "search/history.jsonl", lines)
    records = curves(rng, 500, 5, ERROR.name, lambda part: 0.08 + math.exp(-6 * part))
    records += watched(500, 50, ERROR.name, lambda part: 0.06 + math.exp(-6 * part), -1)
    write_lines(root / "metrics.jsonl", records)
    best = max((x for x in lines if x["strategy"] == "bayesian"), key=lambda x: x["score"])
    other = max((x for x in lines if x["strategy"] == "random"), key=lambda x: x["score"])
    biggest = {"kernel": [7, 7, 7], "units": 24, "activation": "relu", "skip first": True}
    result = Result(
        task=TaskOf(
            name="my sensors",
            examples="recordings",
            sizes={"train": 4000, "search": 500, "test": 500},
            metrics=(ERROR,),
        ),
        space=SpaceOf(cardinality="486", choices=choices),
        found=network("found", best["architecture"], -best["score"], extraction_error=4e-5),
        networks=(
            network("random search", other["architecture"], -other["score"]),
            network("largest", biggest, 0.05),
            network("reference", sample(), 0.16),
        ),
        searches=tuple(
            SearchOf(name=name, evaluations=evaluations, bounds={"latency_ms": (None, 0.9)})
            for name in ("local_search", "bayesian", "random")
        ),
        config={"my_setting": 3},
    )
    result_lib.write(root, result)
    return root


MECHANISMS = ("bigbird", "linear", "linformer", "local", "performer", "sparse_transformer")


def mechanisms(root, method="pruning", heads=4, scale=0.03, metric=ACCURACY, options=MECHANISMS):
    """A selection of attention mechanisms by what a supernet loses without them, as of DARTFormer.

    `heads` is None for one decision, else the number of positions; the largest falls are about `scale`.
    """
    rng, root = random.Random(3), pathlib.Path(root)
    root.mkdir(parents=True, exist_ok=True)
    positions = heads or 1
    blocks = [[position, option] for position in range(positions) for option in options]
    strength = {option: scale * (1.1 - 0.3 * i) for i, option in enumerate(reversed(options))}

    def drops(there):
        return [strength[option] + rng.gauss(0, 0.25 * scale) for _, option in there]

    def weakest(there, falls, count):
        order = sorted(range(len(there)), key=falls.__getitem__)[:count]
        return [there[i] for i in order]

    decisions, left = [], blocks
    if method == "perturbation":
        for position in range(positions):
            falls = drops(blocks[: len(options)])
            kept = options[max(range(len(options)), key=falls.__getitem__)]
            place = None if heads is None else position
            decisions.append({"name": "mechanism", "position": place, "kept": kept, "drops": falls})
        found = [one["kept"] for one in decisions]
    else:
        while len(left) > positions:
            falls = drops(left)
            removed = weakest(left, falls, 1 if method == "pruning" else len(left) - positions)
            decisions.append(
                {"name": "mechanism", "position": None, "blocks": left, "drops": falls, "removed": removed}
            )
            left = [block for block in left if block not in removed]
        found = sorted((option for _, option in left), key=options.index)
    choice = {"options": list(options)} | ({} if heads is None else {"length": heads})
    even = [1 / len(options)] * len(options)
    arch = {"mechanism": found[0] if heads is None else found}
    values = {role: {metric.name: value} for role, value in (("search", 0.61), ("test", 0.6))}
    result_lib.write(
        root,
        Result(
            task=TaskOf(
                name="reviews",
                examples="texts",
                sizes={"train": 8544, "search": 1101, "test": 2210},
                metrics=(metric,),
            ),
            space=SpaceOf(cardinality=str(len(options) ** positions), choices={"mechanism": choice}),
            found=Network(name="found", architecture=arch, costs={"params": 210_000}, metrics=values),
            selection=SelectionOf(
                method=method,
                steps=2000,
                probabilities={"mechanism": even if heads is None else [even] * heads},
                confidence=1 / len(options),
                decisions=tuple(decisions),
            ),
        ),
    )
    return root


SMALL_GRAPH = {
    "layer": ["addition", "attention", "attention"],
    "source": [0, 1, 0],
    "first": ["gru", "identity", "convolution_3"],
    "second": ["zero"],
    "key": [None, "max_pool", "identity"],
    "value": [None, "convolution_1", "gru"],
}


def attention_graph(root, architecture=None):
    """A network of additions and attentions, as of AutoAttend, found by evolution."""
    root, architecture = pathlib.Path(root), architecture or SMALL_GRAPH
    root.mkdir(parents=True, exist_ok=True)
    space = spaces.autoattend(len(architecture["layer"]))
    cardinality, choices = str(space.cardinality), space.to_json()
    roles = {"search": {"accuracy": 0.41}, "test": {"accuracy": 0.4}}
    found = Network(name="found", architecture=architecture, costs={"params": 1_300_000}, metrics=roles)
    result_lib.write(
        root,
        Result(
            task=TaskOf(
                name="reviews",
                examples="texts",
                sizes={"train": 8544, "search": 1101, "test": 2210},
                metrics=(ACCURACY,),
            ),
            space=SpaceOf(cardinality=cardinality, choices=choices),
            found=found,
            searches=(SearchOf(name="evolution", evaluations=100),),
        ),
    )
    return root
