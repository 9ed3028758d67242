"""Finds an architecture with a trained supernet, and brings out that network alone.

  python -m experiments.search --config=autoformer_digits --workdir=runs/digits
  python -m experiments.search --config=autoformer_digits --workdir=runs/small --set search.most=50000

Each workdir is of a supernet that experiments.train_supernet has trained, with the same --config.
Architectures are compared on the search role of the data, which training did not see. The found one is
extracted as a network of exactly its size, verified against the supernet, measured once on the test role,
saved, exported, and described in report.html. Started again it goes on from search/history.jsonl.
"""

from __future__ import annotations

from experiments import binary
from experiments.config import to_dict
from experiments.configs import CONFIGS
from jaxnas import files, report, runs, training


def main() -> None:
    config, path = binary.read_config(CONFIGS)
    with training.open_workdir(path) as workdir:
        session = binary.bring_to_life(config, workdir)
        state, costs = session.trained(workdir), session.costs(workdir)
        common = dict(costs=costs, seed=config.seed, workdir=workdir, mesh=session.mesh)
        method = config.search.method or ("strategy" if state.logits == () else "argmax")
        if method == "strategy":
            found = runs.search_space(session.task, session.net, state.evaluated(), config.search, **common)
        else:
            found = runs.select(
                session.task,
                session.net,
                state,
                config.search,
                recipe=config.recipe,
                training=config.training,
                **common,
            )
        ranking, settings = None, config.search
        if settings.ranked:
            ranking = runs.rank(
                session.task,
                session.net,
                state.evaluated(),
                config.alone,
                settings.ranked,
                steps=settings.ranked_steps,
                seed=config.seed,
                mesh=session.mesh,
            )
        spaces = runs.read_spaces(workdir)
        named = {name: session.net.space.from_dict(x) for name, x in config.architectures.items()}
        result = runs.finish(
            session.task,
            session.net,
            state.evaluated(),
            found,
            workdir,
            costs=costs,
            config=to_dict(config),
            mesh=session.mesh,
            named=named,
            ranking=ranking,
            spaces=() if spaces is None else spaces.sampled,
        )
    print("\n".join(report.summary_lines(result, path)), flush=True)
    times = path / "search" / "times.json"
    if times.is_file():
        print(report.times_line(files.read_json(times)), flush=True)


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    binary.run(main)
