"""The searches of a comparison as independent jobs, which run in any process.

A job says in plain values what it searches and how. A worker makes the table and the strategy anew by their
names, and refuses to search another table, or by other code, than the process that asked for it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import files, search, tabular
from jaxnas.experiments import strategies as strategies_lib
from jaxnas.experiments import tables
from jaxnas.search.blas import one_thread
from jaxnas.search.runner import check_strategy
from jaxnas.tabular import library

Place = tuple[str, str | None, tuple[str, ...], tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Searches:
    """The arguments of one strategy's searches, without their seeds.

    Strategy and metric are those of the command line, `place` has the arguments of `tables.find`, and the
    strategy is made for `evaluations`. `most` are those of its searches, if these are others.
    """

    strategy: str
    place: Place
    metric: str
    evaluations: int
    most: int | None
    fidelities: bool
    table_sha256: str
    source: str

    @property
    def arrays(self) -> set[str]:
        """The names of the arrays that `run` returns."""
        always = {"codes", "scores", "seconds", "source"}
        return always | {"fidelity", "spent"} if self.fidelities else always


def run(searches: Searches, first: int, size: int) -> dict[str, np.ndarray]:
    """Runs `size` searches at once, the first of them with the seed `first`.

    Returns:
      codes int32 [S, N, L], scores float32 [S, N], seconds float64 without compiling, and the source; of a
      strategy with fidelities also fidelity int32 [S, N] and spent, the simulated seconds of each
      evaluation, float32 [S, N].
    """
    with one_thread():
        strategy, program = _program(searches, size)
        keys = _keys(first, size)
        start = time.perf_counter()
        state = jax.block_until_ready(program(keys))
    part = {"seconds": np.asarray(time.perf_counter() - start), "source": np.asarray(searches.source)}
    part |= {"codes": np.asarray(state.codes), "scores": np.asarray(state.scores)}
    check_codes(searches.strategy, part["codes"])
    more = jax.vmap(strategy.columns)(state)
    return part | {"spent" if name == "seconds" else name: np.asarray(x) for name, x in more.items()}


@functools.lru_cache(maxsize=1)  # The jobs of a strategy come one after another.
def _program(searches: Searches, size: int) -> tuple[Any, Any]:
    """A strategy, and its compiled program from keys to the states of so many searches."""
    table, make = table_of(*searches.place), strategies_lib.find(searches.strategy)
    strategy = strategy_of(searches.strategy, searches.evaluations, searches.place)
    for what, here, asked in (
        ("table", digest(table, searches.metric), searches.table_sha256),
        ("code of the strategy", source_of(make, strategy), searches.source),
    ):
        if here != asked:
            raise ValueError(
                f"{searches.strategy} on {searches.place[0]}: the {what} of this worker is another one than "
                "that of the process that asked for the search. Bring the same files to all workers."
            )
    if searches.most is not None:
        strategy = dataclasses.replace(strategy, evaluations=searches.most)
    evaluate = (fidelity_evaluator if searches.fidelities else evaluator)(table, searches.metric)
    many = jax.jit(jax.vmap(functools.partial(search.scan, strategy, evaluate)))
    return strategy, many.lower(_keys(0, size)).compile()


def _keys(first: int, size: int) -> jax.Array:
    return jax.vmap(jax.random.key)(jnp.arange(size) + first)


table_of = functools.lru_cache(maxsize=1)(tables.find)


@functools.cache  # Some learn from the whole table first.
def strategy_of(name: str, evaluations: int, place: Place) -> Any:
    """The strategy of a name for the table at a place, made once; see `build`."""
    return build(strategies_lib.find(name), name, table_of(*place), evaluations)


def evaluator(table: tabular.Table, metric: str) -> Any:
    """From a batch of architectures to scores, higher is better."""
    table.best(metric)  # raises if there is none, or no objective
    sign = 1.0 if table.objectives[metric] == "max" else -1.0
    look_up = table.metric(metric)
    return lambda archs: sign * jax.vmap(look_up)(archs)


def fidelity_evaluator(table: tabular.Table, metric: str) -> Any:
    """From a batch of architectures and a fidelity to scores, higher is better, and seconds."""
    names = strategies_lib.fidelities_of(table, metric)
    scores = [evaluator(table, name) for name, _ in names]
    seconds = [jax.vmap(table.metric(name)) for _, name in names]

    def evaluate(archs: Any, fidelity: Any) -> tuple[jax.Array, jax.Array]:
        told = [jnp.stack([one(archs) for one in every])[fidelity] for every in (scores, seconds)]
        return told[0], told[1]

    return evaluate


def build(make: strategies_lib.Make, name: str, table: tabular.Table, evaluations: int) -> Any:
    """The strategy of a name; ValueError where a user's function gives none."""
    strategy = make(table, evaluations)
    try:
        check_strategy(strategy)
    except TypeError as error:
        raise ValueError(f"--strategies: {name}: {error}") from error
    return strategy


def source_of(make: strategies_lib.Make, strategy: Any) -> str:
    """The SHA-256 of the modules of a strategy's class and of what made it, without their imports."""
    texts = set()
    for one in (make, type(strategy)):
        try:
            texts.add(inspect.getsource(inspect.getmodule(one) or one))
        except (OSError, TypeError):  # made without a file, as in an interactive session
            texts.add(getattr(one, "__qualname__", repr(type(one))))
    return files.sha256("".join(sorted(texts)).encode())


def check_codes(label: str, codes: np.ndarray) -> None:
    """Refuses what only a mistake in a strategy gives; an unused row is -1 throughout, and stands last."""
    used = np.any(codes >= 0, axis=-1)  # [searches, evaluations]
    last = used.shape[1] - np.argmax(used[:, ::-1], axis=1)
    among = np.arange(used.shape[1])[None, :] < (last * used.any(axis=1))[:, None]
    wrong = np.argwhere(among & np.any(codes < 0, axis=-1))
    if len(wrong):
        search, row = wrong[0]
        raise ValueError(
            f"{label}: `ask` returned an architecture that is not in the space, with the indices "
            f"{codes[search, row].tolist()} (evaluation {row + 1} of a search). The rows of `state.codes` "
            "from `state.size` on are unused, and -1."
        )


def digest(table: tabular.Table, metric: str) -> str:
    """The SHA-256 of what searches on a table depend on: its architectures and the search metric."""
    scores = {name: x for name, x in table.metrics.items() if name.startswith((metric, "training_seconds"))}
    return library.digest({"codes": table.codes, "classes": table.classes, **scores})
