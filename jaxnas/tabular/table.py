"""A table of architectures with their metrics, and how to make one from arrays."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import display
from jaxnas.choice import nearest
from jaxnas.space import Arch, Space, check_space
from jaxnas.tabular import index as index_lib


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Architectures of a space with measured metrics.

    The methods `row`, `lookup`, `canonical` and the functions that `metric` returns are pure, work
    under jit and vmap, and take leading batch axes too. Inactive elements of an architecture are ignored.

    Attributes:
      name: of the table, for messages.
      space: the search space.
      metrics: float32 [rows] by name; NaN where a metric is unknown.
      codes: the architecture of each row as `space.encode` writes it, canonical; int32
        [rows, space.length]. `space.decode(table.codes)` is the batch of all of them.
      classes: int32 [rows]; equal for rows of one and the same network.
      pool: the rows are a sample of a larger space: search among `codes`.
      objectives: "max" or "min" by metric: which way is better.
      index: finds the row of a code.
      equals: finds the row of an equal network for the code of a canonical form; None without
        `canonical_form`.
      canonical_form: from an architecture to the form that all equal networks share, traceable.
      features: from an architecture to the inputs of a predictor, traceable; None: one-hot decisions.
      tokens: from an architecture to the tokens of a Transformer, as `predictors.tokens` gives them,
        traceable; None: the decisions.
    """

    name: str
    space: Space
    metrics: dict[str, np.ndarray]
    codes: np.ndarray
    classes: np.ndarray
    pool: bool
    objectives: dict[str, str]
    index: index_lib.Index
    equals: index_lib.Index | None = None
    canonical_form: Callable[[Arch], Arch] | None = None
    features: Callable[[Arch], Any] | None = None
    tokens: Callable[[Arch], dict[str, jax.Array]] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        rows, whole = f"{len(self):,}", self.space.cardinality
        if len(self) < whole:
            rows += f" of {display.count(whole)}"
        parts = [f"{rows} architectures", f"{self.unique:,} networks", f"metrics {list(self.metrics)}"]
        for name in self.objectives or self.metrics:
            if unknown := int(np.sum(np.isnan(self.metrics[name]))):
                parts.append(f"{unknown:,} without {name}")
        return f"Table({self.name!r}, {', '.join(parts)})"

    @functools.cached_property
    def representatives(self) -> np.ndarray:
        """The first row of the class of each row, int32 [rows]."""
        _, first, member = np.unique(self.classes, return_index=True, return_inverse=True)
        return first[member].astype(np.int32)

    @property
    def unique(self) -> int:
        """The number of different networks: of classes."""
        return len(np.unique(self.classes))

    def _check_metric(self, name: str) -> None:
        if name not in self.metrics:
            raise ValueError(
                f"{self.name}: {name!r} is not a metric of the table{nearest(name, self.metrics)} Its "
                f"metrics are {list(self.metrics)}."
            )

    def row(self, arch: Arch) -> jax.Array:
        """The row of an architecture or of an equal network (`canonical_form`), int32 []; -1 for none."""
        row = self.index.find(self.space.encode(self.space.canonical(arch)))
        if self.canonical_form is None or self.equals is None:
            return row
        equal = self.equals.find(_forms(self.space, self.canonical_form, arch))
        return jnp.where(row >= 0, row, equal)

    def metric(self, name: str) -> "Metric":
        """A function from an architecture to one metric, float32 []; NaN without a row."""
        self._check_metric(name)
        return Metric(self, name)

    def lookup(self, arch: Arch) -> dict[str, jax.Array]:
        """All metrics of an architecture, float32 [] each; NaN where it has no row."""
        row = self.row(arch)
        return {name: _gather(values, row) for name, values in self.metrics.items()}

    def canonical(self, arch: Arch) -> Arch:
        """The architecture of the first row of the same class.

        With it a search queries each network once, and sees only the first of rows that were trained
        separately, as in nasbench201. An architecture without a row stays as it is.
        """
        code, row = self.space.encode(self.space.canonical(arch)), self.row(arch)
        first = jnp.asarray(self.codes)[jnp.asarray(self.representatives)[jnp.maximum(row, 0)]]
        return self.space.decode(jnp.where(row[..., None] >= 0, first, code))

    def best(self, name: str) -> tuple[Arch, float]:
        """The (first) architecture with the best value of a metric, and that value; on the host."""
        self._check_metric(name)
        if name not in self.objectives:
            raise ValueError(f"{self.name}: make the table with objectives={{{name!r}: 'max'}} or 'min'.")
        values = self.metrics[name]
        row = int((np.nanargmax if self.objectives[name] == "max" else np.nanargmin)(values))
        return self.space.decode(self.codes[row]), float(values[row])


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric of a table as a function of the architecture; equal if both are: static under jit."""

    table: Table
    name: str

    def __call__(self, arch: Arch) -> jax.Array:
        """The metric of an architecture, float32 []; NaN where it has no row."""
        return _gather(self.table.metrics[self.name], self.table.row(arch))


def _gather(values: np.ndarray, row: jax.Array) -> jax.Array:
    return jnp.where(row >= 0, jnp.asarray(values)[jnp.maximum(row, 0)], jnp.float32(jnp.nan))


def _forms(space: Space, canonical: Callable[[Arch], Arch], archs: Arch) -> jax.Array:
    """The codes int32 [..., length] of the canonical forms of architectures with any leading axes."""
    codes = space.encode(archs)

    def form(code: jax.Array) -> jax.Array:
        return space.encode(space.canonical(canonical(space.decode(code))))

    return jax.vmap(form)(codes.reshape(-1, space.length)).reshape(codes.shape)


def from_arrays(
    name: str,
    space: Space,
    archs: Arch,
    metrics: Mapping[str, Any],
    objectives: Mapping[str, str] | None = None,
    classes: Any = None,
    *,
    canonical: Callable[[Arch], Arch] | None = None,
    features: Callable[[Arch], Any] | None = None,
    tokens: Callable[[Arch], dict[str, jax.Array]] | None = None,
) -> Table:
    """Makes a table of architectures and their metrics.

    Args:
      name: of the table, for messages.
      space: the search space.
      archs: a batch of hard architectures, leading axis [rows].
      metrics: numbers [rows] by name; NaN where unknown.
      objectives: "max" or "min" by metric; needed for what is searched for.
      classes: ints [rows], equal for rows of the same network; by default every row is its own.
      canonical: a traceable function from an architecture to the form that all equal networks share,
        instead of `classes`: it knows equal networks that have no row of their own, too.
      features, tokens: of the table, see `Table`.

    Example:
      >>> space = Space(width=Choice(64, 128), op=Choice("conv", "attention"))
      >>> measured, objectives = {"accuracy": np.array([71, 74, 73, 78], np.float32)}, {"accuracy": "max"}
      >>> table = tabular.from_arrays("mine", space, space.enumerate(), measured, objectives=objectives)
      >>> float(table.metric("accuracy")(space.largest()))
      78.0
    """
    check_space(space, name)
    for key, indices in archs.items():
        if np.asarray(indices).dtype.kind == "f":
            raise TypeError(
                f"{name}: the architectures have {np.asarray(indices).dtype} for {key!r}, expected integers, "
                "the indices of options. Option values go through space.from_dict."
            )
    space.check(archs)
    with jax.ensure_compile_time_eval():
        codes = np.asarray(space.encode(space.canonical(archs)))
    if codes.ndim != 2 or not len(codes):
        raise ValueError(f"{name}: architectures need a leading axis [rows]; their codes are {codes.shape}.")
    order = np.lexsort(codes.T[::-1])
    twice = np.flatnonzero((codes[order][1:] == codes[order][:-1]).all(axis=1))
    if len(twice):
        a, b = sorted(order[twice[0] : twice[0] + 2].tolist())
        raise ValueError(
            f"{name}: rows {a} and {b} (from 0) are one architecture, "
            f"{space.to_dict(space.decode(codes[a]))}; keep one of them, or average their metrics. The "
            f"metrics are {list(metrics)}."
        )
    equals = None
    if canonical is not None:
        if classes is not None:
            raise ValueError(f"{name}: give classes or canonical, and not both.")
        with jax.ensure_compile_time_eval():
            forms = np.asarray(_forms(space, canonical, space.decode(codes)))
        different, first, classes = np.unique(forms, axis=0, return_index=True, return_inverse=True)
        classes = classes.reshape(-1)
        equals = index_lib.make(space.sizes, different, first)
    if not metrics:
        raise ValueError(f"{name}: there are no metrics; a table has at least one number for each row.")
    rows, objectives = len(codes), dict(objectives or {})
    values = {key: _read_only(_column(name, key, x, rows)) for key, x in metrics.items()}
    for key, objective in objectives.items():
        if key not in values or objective not in ("max", "min"):
            raise ValueError(
                f"{name}: objectives has {key!r}: {objective!r}; expected 'max' or 'min' by metric, of which "
                f"there are {list(values)}."
            )
    classes = np.arange(rows) if classes is None else np.asarray(classes)
    if classes.shape != (rows,) or classes.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: classes are {classes.dtype} {list(classes.shape)}, expected ints [{rows}]."
        )
    # Labels of 64 bits would wrap around: only which rows are equal counts then.
    if classes.dtype.itemsize > 4:
        classes = np.unique(classes, return_inverse=True)[1]
    return Table(
        name,
        space,
        values,
        _read_only(codes.astype(np.int32)),
        _read_only(classes.astype(np.int32)),
        pool=rows < space.cardinality,
        objectives=objectives,
        index=index_lib.make(space.sizes, codes),
        equals=equals,
        canonical_form=canonical,
        features=features,
        tokens=tokens,
    )


def _column(name: str, metric: str, values: Any, rows: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        column = np.asarray(values, np.float32)
    if column.shape != (rows,):
        raise ValueError(f"{name}: metric {metric!r} is {list(column.shape)}, expected [{rows}] numbers.")
    if np.isinf(column).any():
        raise ValueError(
            f"{name}: metric {metric!r} is infinite in row {int(np.argmax(np.isinf(column)))} (from 0); "
            "expected finite numbers of float32, and NaN for unknown ones."
        )
    return column


def _read_only(values: np.ndarray) -> np.ndarray:
    values.flags.writeable = False  # they become constants of compiled programs
    return values
