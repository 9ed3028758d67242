"""PAR Transformer: which blocks of a Transformer-XL should be attention, on real text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxnas import latency, runs, spaces, supernets, tasks
from jaxnas.choice import element_name
from jaxnas.experiments import Config
from jaxnas.recipes import Relaxed
from jaxnas.supernets.transformer_xl.blocks import Context
from jaxnas.training import Training


def stacks(blocks: int) -> dict[str, Any]:
    """The stacks that a found one is compared with: Transformer-XL itself, and the published rule."""
    return {
        "interleaved": {"block": spaces.interleaved_blocks(blocks)},
        "par_rule": {"block": spaces.par_rule_blocks(blocks)},
    }


def measure_blocks(net: supernets.TransformerXL, task: tasks.Language, rows: int) -> latency.LatencyTable:
    """The latency of each block by itself (section 2), the same at every place, on so many rows of a segment.

    The network's sizes, memory and dtype are measured, and the length of the task's segments.
    """
    length, keys = task.length, task.length + net.memory_length
    x = jax.random.normal(jax.random.key(0), (rows, length, net.width), net.dtype)
    memory = jax.random.normal(jax.random.key(1), (rows, net.memory_length, net.width), net.dtype)
    mask = jnp.tril(jnp.ones((length, keys), bool), net.memory_length)
    positions = jax.random.normal(jax.random.key(2), (keys, net.width), jnp.float32)
    context = Context(memory, jnp.broadcast_to(mask, (rows, length, keys)), positions)
    calls: dict[str, Callable[[], Any]] = {}
    for name in map(str, net.space["block"].options):
        block = net.block(name)
        params = jax.jit(block.init)(jax.random.key(3), x, context)
        calls[name] = functools.partial(jax.jit(block.apply), params, x, context)
    seconds = latency.median_times(calls)
    # What the call of a block that does nothing takes is no part of a network.
    nothing = min(seconds.values()) if "identity" in seconds else 0.0
    added = [round((value - nothing) * 1e9) for value in seconds.values()]
    choice = net.space["block"]
    blocks = tuple(
        latency.Block({element_name("block", choice, position): [*seconds]}, added)
        for position in range(*choice.shape)
    )
    sizes = ("memory_length", "width", "num_heads", "head_dim", "hidden", "pre_norm")
    setting = {"batch": rows, "length": length, **{name: getattr(net, name) for name in sizes}}
    setting |= {"dtype": jnp.dtype(net.dtype).name, "pass": "inference"}
    return latency.LatencyTable(blocks, jax.devices()[0].device_kind, setting)


def _relaxed(blocks: int, **settings: Any) -> Relaxed:
    defaults: dict[str, Any] = dict(
        learning_rate=1e-2, confidence=0.75, reference=stacks(blocks)["interleaved"]
    )
    return Relaxed(**(defaults | settings))


_NETWORK = supernets.TransformerXL(
    spaces.par(8),
    vocabulary=256,
    width=64,
    num_heads=4,
    head_dim=16,
    hidden=256,
    memory_length=64,
    dropout=0.0,
    init_std=0.1,
    scan_blocks=True,
)
_TRAINING = Training(
    steps=800,
    batch_size=16,
    learning_rate=3e-3,
    warmup_steps=50,
    weight_decay=1e-4,
    clip=1.0,
    evaluate_every=100,
    checkpoint_every=400,
)

TINY_SHAKESPEARE = Config(
    name="tiny_shakespeare",
    about="Attention or feed-forward in 8 blocks, on Tiny Shakespeare: under ten minutes on two cores.",
    task=tasks.Language(data="tiny_shakespeare", length=64),
    network=_NETWORK,
    training=_TRAINING,
    recipe=_relaxed(8, start=200, every=2, learning_rate=3e-2),
    search=runs.Search(limit=50),
    architectures=stacks(8),
)

_EPOCH = dataclasses.replace(
    _TRAINING, steps=1000, learning_rate=1e-2, warmup_steps=100, evaluate_every=1000, checkpoint_every=250
)

WIKITEXT2_SMALL = Config(
    name="wikitext2_small",
    about="10 blocks on WikiText-2, one epoch: some minutes each for search and retraining on one core.",
    task=tasks.Language(data="wikitext2", length=128),
    network=_NETWORK.clone(
        space=spaces.par(10),
        vocabulary=33_278,
        memory_length=128,
        cutoffs=(221, 2502, 7519, 16987),  # by choose_cutoffs on the training text, as all below
        pre_norm=True,
        init_std=0.05,
    ),
    training=dataclasses.replace(_EPOCH, evaluate_every=25),
    # Attention is of no use before the other weights are trained: an earlier start removes it everywhere.
    recipe=_relaxed(
        10, start=500, every=2, learning_rate=0.1, cost="latency_ms", cost_weight=0.5, target=0.55
    ),
    search=runs.Search(
        runs.Sampling(samples=32), limit=50, budget="latency_ms", latency=_EPOCH.batch_size or 1
    ),
    retraining=_EPOCH,
    measure=measure_blocks,
    architectures=stacks(10),
)

WIKITEXT2_DEEP = dataclasses.replace(
    WIKITEXT2_SMALL,
    name="wikitext2_deep",
    about="The same with 16 blocks, and a search that trains what it draws.",
    network=WIKITEXT2_SMALL.network.clone(space=spaces.par(16)),
    recipe=dataclasses.replace(WIKITEXT2_SMALL.recipe, target=0.42, reference=stacks(16)["interleaved"]),
    search=dataclasses.replace(
        WIKITEXT2_SMALL.search,
        method=runs.Trials(
            samples=16, slack=0.05, explore=0.5, steps=(300, 900), canonical=spaces.without_gaps
        ),
    ),
    architectures=stacks(16),
)

WIKITEXT2 = Config(
    name="wikitext2",
    about="12 blocks on WikiText-2: hours on two cores, minutes on a GPU.",
    task=tasks.Language(data="wikitext2", length=64, memory_length=128, same_length=True),
    network=_NETWORK.clone(
        space=spaces.par(12),
        vocabulary=33_278,
        width=128,
        head_dim=32,
        hidden=512,
        cutoffs=(521, 7073),
        div_value=2,
        tie_projections=True,
        dropout=0.1,
        init_std=0.05,
    ),
    training=dataclasses.replace(
        _TRAINING,
        steps=8000,
        batch_size=32,
        learning_rate=2e-3,
        warmup_steps=400,
        clip=0.25,
        evaluate_every=1000,
        checkpoint_every=1000,
    ),
    recipe=_relaxed(12, start=2000, cost="latency_ms", cost_weight=0.5),
    search=runs.Search(limit=50, budget="latency_ms", latency=32),
    measure=measure_blocks,
    architectures=stacks(12),
)

_BYTES = dataclasses.replace(
    WIKITEXT2.training,
    steps=40_000,
    batch_size=24,
    learning_rate=2.5e-4,
    warmup_steps=1000,
    evaluate_every=500,
    checkpoint_every=500,
)

ENWIK8 = dataclasses.replace(
    WIKITEXT2,
    name="enwik8",
    about="Transformer-XL of 12 layers as 24 blocks, on bytes: for a GPU.",
    task=tasks.Language(data="enwik8", length=512, memory_length=2048, same_length=True, clamp_length=820),
    network=supernets.TransformerXL(
        spaces.par(24),
        vocabulary=256,
        width=512,
        num_heads=8,
        head_dim=64,
        hidden=2048,
        memory_length=512,
        dtype=jnp.bfloat16,
        scan_blocks=True,
    ),
    training=_BYTES,
    search=dataclasses.replace(WIKITEXT2.search, latency=24),
    recipe=dataclasses.replace(WIKITEXT2.recipe, start=10_000, reference=stacks(24)["interleaved"]),
    retraining=dataclasses.replace(_BYTES, steps=400_000, evaluate_every=5000, checkpoint_every=5000),
    architectures=stacks(24),
)

CONFIGS = (TINY_SHAKESPEARE, WIKITEXT2_SMALL, WIKITEXT2_DEEP, WIKITEXT2, ENWIK8)
