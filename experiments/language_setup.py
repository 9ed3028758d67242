"""What the language-model binaries share: from a config to a text, networks, optimizers and costs."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

import jaxnas
from experiments import config as config_lib
from experiments.language_configs import LanguageConfig, Training
from jaxnas import data, latency, spaces
from jaxnas.cost import Cost
from jaxnas.elastic.adaptive_softmax import choose_cutoffs
from jaxnas.space import Space
from jaxnas.supernets import TransformerXL, stack_layers, transformer_xl_latency
from jaxnas.training import optimizer as optimizer_lib
from jaxnas.training.language import LanguageState, make_language_evaluator, state_sharding
from jaxnas.training.step import data_mesh

# Each use of randomness has its own number, so that adding one changes none of the others.
STREAMS = {
    "init": 0,
    "search": 1,
    "selection": 2,
    "retraining": 3,
    "patterns": 4,
    "retraining_init": 5,
    "exploration": 6,
}


@dataclasses.dataclass(frozen=True)
class LanguageSetup:
    """A config brought to life.

    Attributes:
      config: what it was made of.
      corpus: with the streams train, search, validation and test.
      net: the supernet, over `spaces.par(blocks)`.
      training: the config's training, or retraining.
      mesh: of all devices in use.
    """

    config: LanguageConfig
    training: Training
    corpus: data.Corpus
    net: TransformerXL
    mesh: Mesh

    def key(self, stream: str) -> jax.Array:
        """The key of one use of randomness in this run."""
        return jax.random.fold_in(jax.random.key(self.config.seed), STREAMS[stream])

    @property
    def segment(self) -> jax.ShapeDtypeStruct:
        """Shape of one example: the costs are for it."""
        return jax.ShapeDtypeStruct((1, self.training.length), jnp.int32)

    def evaluator(self, net: TransformerXL, role: str, segments: int | None = None) -> Any:
        """From parameters and architectures to the loss on a stream; as the config's evaluation."""
        settings = self.config.evaluation
        net, length = self.as_evaluated(net)
        return make_language_evaluator(
            net,
            getattr(self.corpus, role),
            settings.batch_size,
            length,
            self.mesh,
            role=role,
            by_document=self.config.data.by_document,
            segments=segments,
        )

    def as_evaluated(self, net: TransformerXL) -> tuple[TransformerXL, int]:
        """The network with the memory of the config's evaluation, and the length of its segments."""
        settings = self.config.evaluation
        length, memory_length = settings.length, settings.memory_length
        net = net.clone(
            memory_length=net.memory_length if memory_length is None else memory_length,
            same_length=settings.same_length,
            clamp_length=settings.clamp_length,
        )
        return net, self.training.length if length is None else length

    def cost(self, workdir: pathlib.Path, measure: bool) -> Cost:
        """Parameters and products of an architecture and, where measured, its latency.

        The latency table of a workdir is measured once and kept in latency.json, so that a search
        that resumes goes by the same one.
        """
        exact = jaxnas.cost(self.net, self.segment)
        path, shape = workdir / "latency.json", (self.training.batch_size, self.training.length)
        if measure and not path.exists():
            calls = transformer_xl_latency.block_calls(self.net, *shape)
            setting = transformer_xl_latency.setting_of(self.net, *shape)
            latency.options_table("block", calls, setting=setting, idle="identity").save(path)
        if not path.exists():
            return exact
        table = latency.load(path)
        setting = transformer_xl_latency.setting_of(self.net, *shape)
        if measure and (table.setting, table.device) != (setting, jax.devices()[0].device_kind):
            raise ValueError(
                f"{path} was measured on {table.device} with {table.setting}; now it is "
                f"{jax.devices()[0].device_kind} with {setting}. Take another workdir, or delete the file "
                "and the checkpoints beside it to start anew."
            )
        measured = table.cost(self.net.space)
        return lambda arch: {**exact(arch), **measured(arch)}


def build(
    config: LanguageConfig,
    training: Training,
    data_dir: str | None,
    source_dir: str | None,
) -> LanguageSetup:
    """Loads the text and builds the supernet that a config describes, for one of its trainings.

    Raises ValueError for rows that the devices cannot share.
    """
    mesh = data_mesh(training.devices)
    if training.batch_size % mesh.size:
        raise ValueError(
            f"batch_size is {training.batch_size}, which {mesh.size} devices cannot share: choose a "
            "multiple, or fewer devices."
        )
    corpus = data.load_text(
        config.data.name,
        data_dir=data_dir,
        source_dir=source_dir,
        tokenizer=config.data.tokenizer,
        search_fraction=config.data.search_fraction,
    )
    model = config.model
    cutoffs = model.cutoffs
    if model.clusters:
        cutoffs = choose_cutoffs(
            corpus.vocabulary.counts,
            model.clusters,
            div_value=model.div_value,
            width=model.width,
        )
    net = TransformerXL(
        spaces.par(model.blocks),
        vocabulary=corpus.vocabulary.size,
        width=model.width,
        num_heads=model.num_heads,
        head_dim=model.head_dim,
        hidden=model.hidden,
        memory_length=model.memory_length,
        cutoffs=cutoffs,
        div_value=model.div_value,
        tie_projections=model.tie_projections,
        dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        pre_norm=model.pre_norm,
        dtype=jnp.dtype(model.dtype),
        init_std=model.init_std,
        scan_blocks=model.scan_blocks,
    )
    return LanguageSetup(config, training, corpus, net, mesh)


def optimizer(settings: Training) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Adam with clipped gradients, and its learning-rate schedule."""
    schedule = optimizer_lib.warmup_cosine(settings.learning_rate, settings.steps, settings.warmup_steps)
    adam = optimizer_lib.adamw(schedule, weight_decay=settings.weight_decay)
    return optax.chain(optax.clip_by_global_norm(settings.clip), adam), schedule


def unused(config: LanguageConfig, *names: str) -> tuple[str, ...]:
    """Dotted names of fields, groups spelt out, that a training does not depend on."""
    groups = config_lib.to_dict(config)
    return tuple(
        field
        for name in names
        for field in ([f"{name}.{key}" for key in groups[name]] if name in groups else [name])
    )


def new_params(setup: LanguageSetup, stream: str) -> Any:
    """Parameters of the supernet at the start, as it is trained: stacked by block if it is scanned."""
    params = jaxnas.init(setup.net, setup.key(stream), setup.segment)["params"]
    return stack_layers(params) if setup.net.scan_blocks else params


def new_state(
    setup: LanguageSetup, net: Any, params: Any, training: Training, arch: Any = None
) -> LanguageState:
    """The state of a retraining at step 0, on the mesh; `arch` where the network has several."""
    opt_state = optimizer(training)[0].init(params)
    memory, key = net.empty_memory(training.batch_size), setup.key("retraining")
    state = LanguageState(jnp.int32(0), params, opt_state, memory, key, arch)
    return jax.device_put(state, state_sharding(setup.mesh, state))


def letters(blocks: Sequence[str]) -> str:
    """A stack as one letter for each block."""
    short = {"attention": "A", "feed_forward": "F", "identity": "-"}
    return "".join(short[block] for block in blocks)


def blocks_of(net: Any) -> list[str]:
    """What the blocks of a network with one architecture are."""
    return net.space.to_dict(net.space.smallest())["block"]


def figures(nats: float, stream: data.Stream) -> dict[str, float]:
    """A loss in nats per token as it is published: perplexity, and bits per byte of the text."""
    per_byte = nats * (len(stream) - 1) / stream.n_bytes
    return {
        "nats": nats,
        "perplexity": math.exp(min(nats, 700.0)),
        "bits_per_byte": per_byte / math.log(2),
    }


def describe(setup: LanguageSetup, cost: Callable, arch: Any) -> dict[str, Any]:
    """An architecture and its costs, for result.json."""
    blocks = setup.net.space.to_dict(arch)["block"]
    return {
        "architecture": {"block": blocks},
        "counts": {name: blocks.count(name) for name in ("attention", "feed_forward", "identity")},
        **{name: int(value) for name, value in cost(arch).items()},
    }


def describe_text(corpus: data.Corpus, net: TransformerXL) -> dict[str, Any]:
    """The data section of result.json."""
    streams = {name: getattr(corpus, name) for name in ("train", "search", "validation", "test")}
    return {
        "name": corpus.name,
        **{name: len(stream) for name, stream in streams.items() if stream is not None},
        "vocabulary": corpus.vocabulary.size,
        "cutoffs": list(net.cutoffs),
    }


def pick(setup: LanguageSetup, text: str, workdir: pathlib.Path, cost: Callable) -> Any:
    """An architecture from the command line.

    Args:
      setup: of the run.
      text: "found" (by the search in the workdir), "interleaved", "par_rule", "random:K" (the K-th, from
        0, of different random patterns whose cost is within 5 % of the found one's; whatever the
        seed), or JSON such as {"block": [...]}.
      workdir: of the search.
      cost: of architectures; the latency counts where it was measured, else the products.

    Raises:
      ValueError: none of these; FileNotFoundError: nothing was found yet.
    """
    space, blocks = setup.net.space, setup.config.model.blocks
    if text == "interleaved":
        return spaces.interleaved(blocks)
    if text == "par_rule":
        return spaces.par_rule(blocks)
    if text == "found" or text.startswith("random:"):
        path = workdir / "result.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: first run experiments.search_par with this --config and --workdir, "
                "or name an architecture that needs no search (interleaved, par_rule, JSON)."
            )
        found = json.loads(path.read_text(encoding="utf-8"))["found"]["architecture"]
        found = space.from_dict(found)
        if text == "found":
            return found
        patterns = random_patterns(setup.net.space, found, cost)
        number = text.partition(":")[2]
        if not number.isdecimal() or int(number) >= len(patterns):
            raise ValueError(
                f"--architecture is {text!r}; there are {len(patterns)} random patterns within 5 % of the "
                "found one's cost, random:0 and so on."
            )
        return patterns[int(number)]
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        raise ValueError(
            f"--architecture is {text!r}; expected found, interleaved, par_rule, random:0, or JSON such "
            f"as {json.dumps(space.to_dict(space.largest()))}."
        )
    return space.from_dict(values)


def random_patterns(space: Space, found: Any, cost: Callable, count: int = 64) -> list[Any]:
    """Different random architectures as dear as another one, within 5 %; it is not among them."""
    named = cost(found)
    name = "latency_ns" if "latency_ns" in named else "macs"
    fixed = int(cost(nothing(space))[name])  # the vocabulary's part is everywhere
    wanted = int(named[name]) - fixed
    bounds = {name: (fixed + math.floor(0.95 * wanted), fixed + math.ceil(1.05 * wanted))}
    strategy = jaxnas.search.RandomSearch(space, cost, bounds, evaluations=count, population=count)
    archs, state = strategy.ask(strategy.init(jax.random.key(STREAMS["patterns"])))
    same = jnp.all(archs["block"] == found["block"][None, :], axis=1)
    rows = [row for row in range(count) if bool(state.valid[row]) and not bool(same[row])]
    return [jax.tree.map(lambda x, row=row: x[row], archs) for row in rows]


def nothing(space: Space) -> Any:
    """The architecture of which no block does anything."""
    return space.from_dict({"block": ["identity"] * space["block"].length})
