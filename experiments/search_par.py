"""Searches which blocks of a Transformer-XL should be attention, and brings out that network.

  python -m experiments.search_par --config=tiny_shakespeare --workdir=runs/par
  python -m experiments.search_par --config=wikitext2 --workdir=runs/par --source_dir=/path/to/text \\
      --set search.order=second --set seed=1

Trains weights and architecture parameters together; started again it goes on from the last checkpoint.
Then it selects the architecture, extracts it with the supernet's weights and verifies it; report.html
shows how the probabilities of the blocks' options went. Then: experiments.retrain_language.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

import jaxnas
from experiments import config as config_lib
from experiments.language_configs import CONFIGS
from experiments.language_setup import (
    LanguageSetup,
    build,
    describe,
    describe_text,
    new_params,
    nothing,
    optimizer,
    unused,
)
from experiments.setup import define_data_flags, versions
from experiments.trials import race
from jaxnas import report, spaces
from jaxnas.data import ContiguousBatches, Stream
from jaxnas.search import perturbation
from jaxnas.stats import kendall_tau
from jaxnas.training import relaxations
from jaxnas.training.differentiable import (
    PairedBatches,
    SearchSettings,
    SearchState,
    make_search_step,
)
from jaxnas.training.language import language_loss, state_sharding
from jaxnas.training.loop import LoopSettings, fit
from jaxnas.training.workdir import open_workdir, write_json_atomic

# What only matters when the supernet is trained: a workdir may be selected from in another way.
SELECTING = tuple(
    f"search.{name}"
    for name in ("selection", "samples", "explore", "slack", "trial_steps", "eta", "segments")
)


def initial_state(setup: LanguageSetup, logits_optimizer: Any) -> SearchState:
    """The state at step 0, on the mesh."""
    rows = setup.config.training.batch_size
    params = new_params(setup, "init")
    logits = setup.net.space.logits()
    state = SearchState(
        step=jnp.int32(0),
        params=params,
        opt_state=optimizer(setup.config.training)[0].init(params),
        logits=logits,
        logits_opt_state=logits_optimizer.init(logits),
        memory=setup.net.empty_memory(rows),
        search_memory=setup.net.empty_memory(rows),
        search_loss=jnp.float32(jnp.nan),
        key=setup.key("search"),
    )
    return jax.device_put(state, state_sharding(setup.mesh, state))


def search_stream(setup: LanguageSetup) -> Stream:
    """The text that architecture parameters are trained on."""
    if setup.corpus.search is None:
        raise ValueError(
            "data.search_fraction is 0: the search needs text that is held out of training, 0.2 say."
        )
    return setup.corpus.search.require("search")


def relative_cost(setup: LanguageSetup, cost: Any) -> Any:
    """From an architecture, hard or soft, to the cost of its blocks over the interleaved ones'; or None.

    Without the vocabulary's part, which is in every network.
    """
    name = {None: None, "macs": "macs", "latency": "latency_ns"}[setup.config.search.cost]
    if name is None:
        return None
    fixed = float(cost(nothing(setup.net.space))[name])
    interleaved = float(cost(spaces.interleaved(setup.config.model.blocks))[name]) - fixed
    return lambda arch: (cost(arch)[name] - fixed) / interleaved


def train(setup: LanguageSetup, cost: Any, workdir: pathlib.Path) -> tuple[SearchState, bool]:
    """The differentiable search, from the last checkpoint on; and whether it is complete.

    `cost` is that of `relative_cost`.
    """
    config, settings, training = setup.config, setup.config.search, setup.config.training
    search = SearchSettings(
        settings.order,
        settings.start,
        settings.every,
        settings.cost_weight,
        None if cost is None else settings.target,
    )
    logits_optimizer = optax.adamw(settings.learning_rate, weight_decay=settings.weight_decay)
    state = initial_state(setup, logits_optimizer)
    step = make_search_step(
        language_loss(setup.net, by_document=config.data.by_document),
        *optimizer(training),
        logits_optimizer,
        relaxations.RELAXATIONS[settings.relaxation],
        relaxations.temperature_schedule(
            settings.temperature,
            settings.start_temperature,
            settings.end_temperature,
            training.steps,
        ),
        search,
        setup.mesh,
        state,
        cost=cost,
    )
    rows = (training.batch_size, training.length)
    batches = PairedBatches(
        ContiguousBatches(setup.corpus.train.require("train"), *rows, seed=config.seed),
        ContiguousBatches(search_stream(setup), *rows, seed=config.seed),
        search,
    )

    def watch(state: SearchState) -> dict[str, Any]:
        probabilities = relaxations.softmax(state.logits)
        return {
            "split": "architecture",
            "confidence": float(relaxations.confidence(probabilities)),
            "probabilities": np.asarray(probabilities["block"], np.float64).round(6).tolist(),
        }

    return fit(
        state,
        step,
        batches,
        workdir,
        LoopSettings(training.steps, training.log_every, training.evaluate_every, training.checkpoint_every),
        mesh=setup.mesh,
        watch=watch,
        config=config_lib.to_dict(config),
        may_differ=unused(config, "retraining", "evaluation", *SELECTING),
        stop_when=lambda record: record["confidence"] >= settings.confidence,
    )


def draw(setup: LanguageSetup, cost: Any, logits: Any) -> tuple[Any, list[bool]]:
    """Different architectures of the target's cost but for the slack, and whether each was explored.

    As the probabilities give them, and `search.explore` of them, or more where those give too few, as if
    all options were equally probable.

    Raises:
      ValueError: none of the draws costs what was asked for.
    """
    settings, space = setup.config.search, setup.net.space
    explored = round(settings.explore * settings.samples)
    searched, costs = _draws(setup, cost, logits, "selection")
    searched = searched[: settings.samples - explored]
    codes = searched
    if explored:
        anywhere, more = _draws(setup, cost, space.logits(), "exploration")
        codes, costs = np.concatenate([searched, anywhere]), np.concatenate([costs, more])
    if not len(codes):
        least = (1 - settings.slack) * settings.target
        raise ValueError(
            f"None of {len(costs)} draws costs {least:.3g} to {settings.target} (search.target) of the "
            f"interleaved network; they cost {costs.min():.3g} to {costs.max():.3g}. Raise search.target, "
            "search.slack or search.explore, or train for longer (training.steps) or with a larger "
            "search.cost_weight."
        )
    keep = _first(setup, codes)[: settings.samples]
    return space.decode(codes[keep]), (keep >= len(searched)).tolist()


def _draws(setup: LanguageSetup, cost: Any, logits: Any, stream: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes of different draws that keep the target, and the costs of all draws."""
    settings, space = setup.config.search, setup.net.space
    keys = jax.random.split(setup.key(stream), 64 * settings.samples)
    archs = jax.vmap(lambda key: relaxations.categorical(logits, key))(keys)
    codes = np.asarray(space.encode(archs))
    if cost is None:
        return codes[_first(setup, codes)], np.zeros(len(keys))
    costs, least = np.asarray(jax.vmap(cost)(archs)), (1 - settings.slack) * settings.target
    codes = codes[(least <= costs) & (costs <= settings.target)]
    return codes[_first(setup, codes)], costs


def _first(setup: LanguageSetup, codes: np.ndarray) -> np.ndarray:
    """Where each candidate is for the first time, in order.

    With new weights it does not matter where identity blocks stand, with the supernet's it does.
    """
    if setup.config.search.selection == "trials":
        identity = codes == setup.net.space["block"].options.index("identity")
        codes = np.take_along_axis(codes, np.argsort(identity, axis=1, kind="stable"), axis=1)
    return np.sort(np.unique(codes, axis=0, return_index=True)[1])


def select(
    setup: LanguageSetup, cost: Any, state: SearchState, workdir: pathlib.Path
) -> tuple[Any, dict[str, Any]]:
    """The architecture that the config's way of selecting takes, and how it came to it."""
    settings, space = setup.config.search, setup.net.space
    params = state.params
    if settings.selection == "argmax":
        return space.harden(state.logits), {"method": "argmax"}
    evaluate = setup.evaluator(setup.net, "search", settings.segments)
    if settings.selection in ("sampling", "trials"):
        return _best_of(setup, draw(setup, cost, state.logits), params, evaluate, workdir)
    # What the supernet was trained with on average.
    even = settings.relaxation == "average"
    weights = (relaxations.average if even else relaxations.softmax)(state.logits)
    arch, found = perturbation(
        space, weights, lambda archs: -np.asarray(evaluate(params, archs)), setup.key("selection")
    )
    drops = [
        {"block": one.position, "kept": space["block"].options[one.option], "drops": list(one.drops)}
        for one in found
    ]
    return arch, {"method": "perturbation", "decisions": drops}


def _best_of(
    setup: LanguageSetup,
    drawn: tuple[Any, list[bool]],
    params: Any,
    evaluate: Any,
    workdir: pathlib.Path,
) -> tuple[Any, dict[str, Any]]:
    """The best of what was drawn, with the supernet's weights or by trials, and what was seen of each."""
    method, (archs, explored) = setup.config.search.selection, drawn
    rows = [jax.tree.map(lambda x, i=i: x[i], archs) for i in range(len(explored))]
    supernet = np.asarray(evaluate(params, archs)).tolist()
    candidates = [
        {"architecture": setup.net.space.to_dict(arch), "explored": new, "supernet_nats": nats}
        for arch, new, nats in zip(rows, explored, supernet, strict=True)
    ]
    if method == "sampling":
        return rows[int(np.nanargmin(supernet))], {"method": method, "candidates": candidates}
    best, trials = race(setup, rows, evaluate, workdir / "trials.json")
    candidates = [
        candidate | {"trial_nats": nats} for candidate, nats in zip(candidates, trials, strict=True)
    ]
    # Whether the supernet could have told.
    tau = float(kendall_tau(supernet, [nats[0] for nats in trials]))
    return rows[best], {"method": method, "candidates": candidates, "kendall_tau": tau}


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    config, path = config_lib.from_flags(CONFIGS)
    print(config_lib.pretty(config), flush=True)
    with open_workdir(path) as workdir:
        setup = build(config, config.training, flags.FLAGS.data_dir, flags.FLAGS.source_dir)
        config_lib.store(config, workdir, ran=False)
        cost = setup.cost(workdir, measure=config.search.cost == "latency")
        relative = relative_cost(setup, cost)
        state, complete = train(setup, relative, workdir)
        config_lib.store(config, workdir, ran=True)
        if not complete:
            print("stopped and saved; the same command goes on from here", flush=True)
            return
        result = finish(setup, cost, relative, state, workdir)
        report.write_language(workdir)
    counts = result["found"]["counts"]
    print(
        f"Found after {result['steps']} steps: {counts['attention']} attention, "
        f"{counts['feed_forward']} feed-forward, {counts['identity']} identity blocks",
        f"Open {pathlib.Path(path) / 'report.html'}",
        sep="\n",
    )


def finish(setup: LanguageSetup, cost: Any, relative: Any, state: SearchState, workdir: pathlib.Path) -> dict:
    """Selects, extracts and verifies the network; writes its weights and result.json."""
    config, net = setup.config, setup.net
    arch, selection = select(setup, relative, state, workdir)
    params = jax.device_get(state.params)
    tokens = search_stream(setup).tokens[: 2 * config.training.length]
    tokens = jnp.asarray(tokens.reshape(2, -1))
    small, variables, error = jaxnas.extract(net, {"params": params}, arch, verify=tokens)
    jaxnas.save_subnet(workdir / "subnet", small, variables, tokens)
    small_params = variables["params"]
    # Weights that were never alone: this says how much a retraining has to make up for.
    nats = float(setup.evaluator(small, "search", config.search.segments)(small_params))
    probabilities = relaxations.softmax(state.logits)
    result = {
        "config": config_lib.to_dict(config),
        "data": describe_text(setup.corpus, net),
        "space": {
            "cardinality": str(net.space.cardinality),
            "options": list(net.space["block"].options),
        },
        "steps": int(state.step),
        "confidence": float(relaxations.confidence(probabilities)),
        "entropy": float(relaxations.entropy(probabilities)),
        "probabilities": np.asarray(probabilities["block"], np.float64).tolist(),
        "selection": selection,
        "found": {
            **describe(setup, cost, arch),
            "inherited_search_nats": nats,
            "extraction_error": error,
        },
        "interleaved": describe(setup, cost, spaces.interleaved(config.model.blocks)),
        "par_rule": describe(setup, cost, spaces.par_rule(config.model.blocks)),
        "versions": versions(),
        "device": jax.devices()[0].device_kind,
    }
    write_json_atomic(workdir / "result.json", result)
    return result


if __name__ == "__main__":
    config_lib.define_flags(CONFIGS)
    define_data_flags()
    config_lib.run(main)
