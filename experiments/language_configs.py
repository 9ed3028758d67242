"""The configs of the language-model binaries: PAR Transformer-XL on real text."""

from __future__ import annotations

import dataclasses
from typing import get_args

from jaxnas.training.differentiable import Order
from jaxnas.training.relaxations import RELAXATIONS, Kind, check_temperature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """What to read; see `jaxnas.data.load_text`.

    Attributes:
      name: "wikitext2", "enwik8", "tiny_shakespeare", or a prepared TFDS set.
      tokenizer: "word", "byte" or "sentencepiece:<size>"; None for the data set's usual one.
      search_fraction: end of the training text that is held out for architecture parameters.
      by_document: whether tokens see only their own document.
    """

    name: str
    tokenizer: str | None = None
    search_fraction: float = 0.2
    by_document: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The network; see `jaxnas.supernets.TransformerXL`.

    Attributes:
      blocks: of the supernet, each attention, feed-forward or identity.
      cutoffs: of the adaptive softmax; () for a plain one.
      clusters: so many cutoffs are chosen from the counts of the words, instead of `cutoffs`.
    """

    blocks: int
    width: int
    num_heads: int
    head_dim: int
    hidden: int
    memory_length: int
    cutoffs: tuple[int, ...] = ()
    clusters: int = 0
    div_value: int = 1
    tie_projections: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.0
    pre_norm: bool = False
    dtype: str = "float32"
    init_std: float = 0.02
    scan_blocks: bool = True

    def __post_init__(self):
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"model.dtype is {self.dtype!r}, expected float32 or bfloat16")
        if self.blocks < 2 or self.blocks % 2:
            raise ValueError(
                f"model.blocks is {self.blocks}, expected an even number: the interleaved network, which "
                "others are compared with, has them in pairs"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Training of weights: Adam with decoupled decay, clipped gradients, warm-up and cosine."""

    steps: int
    batch_size: int
    length: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float = 1e-4
    clip: float = 0.25
    log_every: int = 50
    evaluate_every: int = 500
    checkpoint_every: int = 500
    devices: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Training of architecture parameters, and the selection; see `jaxnas.training.differentiable`.

    Attributes:
      order: "joint", "first" or "second".
      relaxation: "gumbel_softmax", "straight_through", "softmax" or "average".
      start, every: steps before the first update of the logits, and from one to the next.
      learning_rate, weight_decay: of Adam on the logits.
      temperature, start_temperature, end_temperature: "constant", "exponential" or "linear", over all
        steps.
      cost: "macs", "latency" (measured on the device in use) or None: adds the expected cost of the
        blocks while it is above `target` times that of the interleaved network's, with weight
        `cost_weight`.
      confidence: the search ends when every block has an option of this probability.
      selection: "argmax", "perturbation", or the best on the search text of `samples` different draws that
        keep the target, if there is one: with the supernet's weights ("sampling"), or each trained alone
        ("trials").
      explore: share of the draws for which all options are equally probable, whatever the search learned.
      trial_steps: steps of each rung of trials, from new weights; one in `eta` goes on to the next rung.
      slack: with a target, draws cost at least 1 - `slack` times it: what may be spent is spent.
      segments: of the search text, that a selection evaluates each candidate on; None for all.
    """

    order: str = "first"
    relaxation: str = "gumbel_softmax"
    start: int = 0
    every: int = 4
    learning_rate: float = 1e-2
    weight_decay: float = 5e-4
    temperature: str = "exponential"
    start_temperature: float = 5.0
    end_temperature: float = 0.5
    cost: str | None = None
    cost_weight: float = 0.0
    target: float = 0.7
    confidence: float = 0.75
    selection: str = "argmax"
    samples: int = 16
    slack: float = 1.0
    explore: float = 0.0
    trial_steps: tuple[int, ...] = (300,)
    eta: int = 4
    segments: int | None = 50

    def __post_init__(self):
        for name, known in (
            ("order", get_args(Order)),
            ("relaxation", tuple(RELAXATIONS)),
            ("temperature", get_args(Kind)),
            ("cost", (None, "macs", "latency")),
            ("selection", ("argmax", "sampling", "trials", "perturbation")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"search.{name} is {getattr(self, name)!r}, expected one of {', '.join(map(str, known))}"
                )
        if self.samples < 1 or (self.segments is not None and self.segments < 1):
            raise ValueError(
                f"search.samples is {self.samples} and search.segments {self.segments}, expected at least 1"
            )
        steps = self.trial_steps
        if not steps or min(steps) < 1 or list(steps) != sorted(set(steps)):
            raise ValueError(
                f"search.trial_steps is {steps}, expected numbers of steps that increase, such as 300,900"
            )
        if self.eta < 2:
            raise ValueError(f"search.eta is {self.eta}, expected at least 2")
        if not 0 <= self.explore <= 1:
            raise ValueError(f"search.explore is {self.explore}, expected 0 to 1")
        if not 0 < self.slack <= 1:
            raise ValueError(f"search.slack is {self.slack}, expected more than 0, at most 1")
        if self.cost_weight and self.cost is None:
            raise ValueError("search.cost_weight needs a search.cost: macs or latency")
        if self.cost_weight and not self.target > 0:
            raise ValueError(f"search.target is {self.target}, expected more than 0")
        if self.relaxation == "average" and self.selection != "perturbation":
            raise ValueError(
                "search.relaxation=average trains no architecture parameters: with it "
                "search.selection is perturbation"
            )
        check_temperature(self.start_temperature)
        check_temperature(self.end_temperature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How perplexity is measured; None is as in the training (or retraining) of the network."""

    batch_size: int = 16
    length: int | None = None
    memory_length: int | None = None
    same_length: bool = False
    clamp_length: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """Everything that decides the course of a run; paths are flags and stay out of it."""

    name: str
    seed: int = 0
    data: Text
    model: Model
    training: Training
    search: Search
    retraining: Training
    evaluation: Evaluation

    def __post_init__(self):
        if self.search.start >= self.training.steps:
            raise ValueError(
                f"search.start is {self.search.start}, and training.steps {self.training.steps}: the "
                "architecture parameters would never be trained"
            )


_SHAKESPEARE = Training(
    steps=800,
    batch_size=16,
    length=64,
    learning_rate=3e-3,
    warmup_steps=50,
    clip=1.0,
    evaluate_every=100,
    checkpoint_every=400,
)
_WIKITEXT_EPOCH = Training(
    steps=1000,
    batch_size=16,
    length=128,
    learning_rate=1e-2,
    warmup_steps=100,
    clip=1.0,
    evaluate_every=1000,
    checkpoint_every=250,
)
_WIKITEXT = Training(
    steps=8000,
    batch_size=32,
    length=64,
    learning_rate=2e-3,
    warmup_steps=400,
    evaluate_every=1000,
    checkpoint_every=1000,
)

# One epoch of a small network: a search and a retraining in some minutes each on one core.
_WIKITEXT_SMALL = LanguageConfig(
    name="wikitext2_small",
    data=Text(name="wikitext2"),
    model=Model(
        blocks=10,
        width=64,
        num_heads=4,
        head_dim=16,
        hidden=256,
        memory_length=128,
        clusters=4,
        dropout=0.0,
        pre_norm=True,
        init_std=0.05,
    ),
    training=dataclasses.replace(_WIKITEXT_EPOCH, evaluate_every=25),
    # Attention is worth nothing until the weights are: an early start gives it up everywhere.
    search=Search(
        start=500,
        every=2,
        learning_rate=0.1,
        cost="latency",
        cost_weight=0.5,
        target=0.55,
        selection="sampling",
        samples=32,
    ),
    retraining=_WIKITEXT_EPOCH,
    evaluation=Evaluation(),
)

CONFIGS = {
    config.name: config
    for config in (
        # The whole flow in under ten minutes on two cores.
        LanguageConfig(
            name="tiny_shakespeare",
            data=Text(name="tiny_shakespeare"),
            model=Model(
                blocks=8,
                width=64,
                num_heads=4,
                head_dim=16,
                hidden=256,
                memory_length=64,
                dropout=0.0,
                init_std=0.1,
            ),
            training=_SHAKESPEARE,
            search=Search(start=200, every=2, learning_rate=3e-2, end_temperature=0.5),
            retraining=_SHAKESPEARE,
            evaluation=Evaluation(),
        ),
        _WIKITEXT_SMALL,
        # The same with 16 blocks, and a search that trains what it draws.
        dataclasses.replace(
            _WIKITEXT_SMALL,
            name="wikitext2_deep",
            model=dataclasses.replace(_WIKITEXT_SMALL.model, blocks=16),
            search=dataclasses.replace(
                _WIKITEXT_SMALL.search,
                target=0.42,
                selection="trials",
                samples=16,
                slack=0.05,
                explore=0.5,
                trial_steps=(300, 900),
            ),
        ),
        # Hours on two cores, minutes on a GPU.
        LanguageConfig(
            name="wikitext2",
            data=Text(name="wikitext2"),
            model=Model(
                blocks=12,
                width=128,
                num_heads=4,
                head_dim=32,
                hidden=512,
                memory_length=64,
                clusters=2,
                div_value=2,
                tie_projections=True,
                dropout=0.1,
                init_std=0.05,
            ),
            training=_WIKITEXT,
            search=Search(start=2000, cost="latency", cost_weight=0.5),
            retraining=_WIKITEXT,
            evaluation=Evaluation(memory_length=128, same_length=True),
        ),
        # Transformer-XL of 12 layers as 24 blocks, on bytes: for a GPU.
        LanguageConfig(
            name="enwik8",
            data=Text(name="enwik8"),
            model=Model(
                blocks=24,
                width=512,
                num_heads=8,
                head_dim=64,
                hidden=2048,
                memory_length=512,
                dtype="bfloat16",
            ),
            training=Training(
                steps=40_000, batch_size=24, length=512, learning_rate=2.5e-4, warmup_steps=1000
            ),
            search=Search(start=10_000, cost="latency", cost_weight=0.5),
            retraining=Training(
                steps=400_000, batch_size=24, length=512, learning_rate=2.5e-4, warmup_steps=1000
            ),
            evaluation=Evaluation(memory_length=2048, same_length=True, clamp_length=820),
        ),
    )
}
