"""A network that knows nothing of jaxnas as a supernet: one program for all sizes, exact extraction."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.annotations import Annotations
from jaxnas.axes.groups import Groups, Traced
from jaxnas.axes.models import paths
from jaxnas.axes.program import Operation, Value
from jaxnas.axes.ties import Layout, Sum, atoms_of
from jaxnas.choice import Choice
from jaxnas.elastic.decisions import Decisions, static
from jaxnas.elastic.width import Table, Width, combine, constant, joint
from jaxnas.inputs import specification
from jaxnas.space import Arch, Space
from jaxnas.tensors import Path, unflatten
from jaxnas.testing import check_network
from jaxnas.transform import regions, turns
from jaxnas.transform.evaluate import run
from jaxnas.transform.places import Depth, Place, Size, Skip, places_of
from jaxnas.transform.sizes import NONE, Region, Sizes, outermost_first, place_of
from jaxnas.transform.specs import LayoutSpec, TurnSpec
from jaxnas.transform.tables import Branches, branches, gate_of, own_arch, products_of, when_read
from jaxnas.transform.turns import ByTurn, gate_of_width, mask_of_width, size_of_mask

Form = Literal["auto", "masked", "switch"]
# The mean share of products below which the form is "switch". One H200 was slower with branches at .7;
# smaller shares have not been measured there.
_BORDERS = {"cpu": 0.85, "gpu": 0.5, "tpu": 0.5}


def supernet(
    groups: Groups,
    choices: Mapping[str, Choice | Size | Skip | Depth],
    *,
    decisions: Mapping[str, Choice] | None = None,
    shared: Sequence[str] = (),
    form: Form = "auto",
    verify: bool = True,
) -> Supernet:
    """Makes a supernet of an analyzed network.

    Args:
      groups: of `jaxnas.analyze`.
      choices: by a pattern of the names of groups, as "blocks_*/hidden": a `Choice` of sizes, with a decision
        for each group that matches, or `Size`, a function of decisions. By a pattern of modules: `Skip()`,
        or `Depth(10, 11, 12)`. The decisions have the names of the patterns. `Choice(8, 16).repeat(turns)`
        of a group within a `lax.scan` is a size for each turn, and a module within one is skipped by turn.
      decisions: further choices, which the functions of `Size` take by name.
      shared: patterns whose matches share one decision.
      form: "masked" runs everything at full sizes, with masks; "switch" at active sizes, in switches over
        segments such as an attention or an MLP, which takes longer to compile; "auto" takes "switch" where
        random architectures have less than 85 % (CPU) or 50 % (accelerators) of the largest one's products.
      verify: compare a few architectures with their extracted networks, see `jaxnas.testing.check_network`.
        `training.fit` then has nothing to compare.

    Returns:
      A network with a `space`, called as `net.apply(variables, inputs, arch)`. Decisions of a space that the
      module has itself are in it, too.

    Raises:
      ValueError: a name that the module's own space has, a pattern that matches nothing, sizes that a group
        cannot have, a module that cannot be skipped, or a group whose extracted network differs.

    Example:
      >>> def mlp(variables, x):
      ...     params = variables["params"]
      ...     return jax.nn.relu(x @ params["up"]) @ params["down"]
      >>> variables = {"params": {"up": jnp.ones((4, 16)), "down": jnp.ones((16, 2))}}
      >>> groups = jaxnas.analyze(mlp, variables, jnp.ones((1, 4)))
      >>> net = jaxnas.supernet(groups, {"up/hidden": Choice(4, 8, 16)})
      >>> net.apply(variables, jnp.ones((1, 4)), net.space.smallest()).tolist()  # of 4 hidden units
      [[16.0, 16.0]]
    """
    own = groups.own
    if both := [name for name in own if name in choices or name in (decisions or {})]:
        raise ValueError(
            f"{both[0]!r} is a decision of {groups.model.name} itself; give this one another name, or "
            "another pattern."
        )
    named, places = places_of(groups, choices, {**own, **(decisions or {})}, shared)
    net = in_form(Supernet(groups, Space(**named), places, "masked"), form)
    if any(len(path) == 1 for path in groups.shapes):
        raise ValueError(
            f"The parameters of {groups.model.name} are one array; give them in a dict, as "
            "{'kernel': array}."
        )
    if verify:
        check_network(net, groups.inputs)
    return net


def in_form(net: Supernet, form: Form) -> Supernet:
    """The network in another form; see `supernet`."""
    if form not in get_args(Form):
        forms = ", ".join(map(repr, get_args(Form)))
        raise ValueError(f"{net.__name__}: form is {form!r}, expected one of {forms}.")
    if form == "auto":
        border = _BORDERS.get(jax.default_backend(), 0.5)
        form = "switch" if net.mean_products() < border else "masked"
    return dataclasses.replace(net, form=form)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Supernet:
    """A network whose sizes are chosen by an array at call time.

    Attributes:
      groups: of the analyzed network.
      space: its decisions; of one architecture, variables and shapes are those of the sub-network.
      places: what the decisions do.
      form: "masked" or "switch"; see `supernet`.
    """

    groups: Groups
    space: Space
    places: tuple[Place, ...]
    form: Literal["masked", "switch"]

    @property
    def __name__(self) -> str:
        return self.groups.model.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__name__}, {self.space!r}, form={self.form!r})"

    def described(self) -> dict[str, Any]:
        """The record of the network in a run: its space and its places."""
        traced = self.groups.traced(self.groups.inputs, False)
        order: dict[str, int] = {}
        ends: dict[str, int] = {}  # Linen calls the blocks of a mixture within it, and stores them elsewhere
        for number, op in enumerate(traced.program.nested()):
            for stop in range(1, len(op.scope) + 1):
                order.setdefault("/".join(op.scope[:stop]), number)
                ends.setdefault(op.scope[stop - 1], number)
        known = self.groups.groups

        def called(place: Place) -> tuple[int, int, int]:
            parts = place.name.split("/")[: -1 if place.name in known else None] or [""]
            prefixes = ("/".join(parts[:stop]) for stop in range(len(parts), 0, -1))
            found = [order[prefix] for prefix in prefixes if prefix in order] or [ends.get(parts[-1], -1)]
            return found[-1], -1 if place.turn is None else place.turn, found[0]

        places = {}
        for place in sorted(self.places, key=called):
            group, turn = known.get(place.name), "" if place.turn is None else f"[{place.turn}]"
            places[place.name + turn] = {
                "module": place.name if group is None else place.name.rpartition("/")[0],
                "kind": "module" if group is None else group.kind,
                "size": 1 if group is None else group.size,
                "turn": place.turn,
                "decisions": place.decisions,
                "kept": place.by_options(self.space),
            }
        return {"type": self.__name__, "space": self.space.to_json(), "places": places}

    def mean_products(self) -> float:
        """The mean multiply-accumulates of random architectures, as a share of the largest one's."""
        tables = self.annotations(self.groups.inputs).macs
        with jax.ensure_compile_time_eval():
            archs = jax.tree.map(np.asarray, self.space.sample(jax.random.key(0), 32))
            largest = jax.tree.map(np.asarray, self.space.largest())
        rows = [jax.tree.map(lambda x, i=i: x[i], archs) for i in range(32)]
        counted = [sum(table.at_host(arch) for table in tables) for arch in (largest, *rows)]
        return float(np.mean(counted[1:]) / max(counted[0], 1))

    def sizes(self) -> dict[str, Any]:
        """The sizes of the groups of one architecture, and 0 or 1 of modules that may be skipped.

        What a scan has by turn is a tuple. Decisions of the module itself have the values of their options.
        """
        found: dict[str, Any] = {group.name: group.size for group in self.groups}
        if full := self.groups.own:
            decided = self.space.to_dict(static(self.space))
            found |= {name: decided.get(name) for name in full}
        for place in self.places:
            now = place.table(self.space).maximum
            before = found[place.name] if place.turn else ()
            found[place.name] = now if place.turn is None else (*before, now)
        return found

    def clone(self, *, space: Space) -> Supernet:
        """The network with another space, as that of one architecture."""
        return dataclasses.replace(self, space=space)

    def init(self, key: jax.Array, inputs: Any, arch: Arch | None = None) -> dict[str, Any]:
        """Initial variables, or those that the network was analyzed with if it cannot make any."""
        model, shapes = self.groups.model, self.groups.shapes
        variables = model.variables if model.init is None else model.init(key, inputs)
        # Weights of a file may have another dtype than new ones.
        whole = {path: jnp.asarray(x, shapes[path].dtype) for path, x in paths(variables)}
        if self.space.cardinality > 1:
            return unflatten(whole)
        host, specs = static(self.space), self._specs
        used = {path: x for path, x in whole.items() if specs[path].shape(host) is not None}
        return unflatten({path: specs[path].active(x, host) for path, x in used.items()})

    def apply(
        self,
        variables: dict[str, Any],
        inputs: Any,
        arch: Arch | None = None,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Any = None,
    ) -> Any:
        """Calls the network.

        Args:
          variables: by collection, maximal; those of the sub-network if the space has one architecture.
          inputs: a pytree of arrays with a leading batch axis.
          arch: an architecture, hard or soft; None if there is one.
          train: whether the network runs as in training.
          mutable: whether to return updated collections, too, or their names.
          rngs: a key, or a dict of keys of which "dropout" is used.

        Returns:
          The outputs, or with `mutable` `(outputs, updates)`.
        """
        small = self.space.cardinality == 1
        rows = jax.tree.leaves(inputs)
        symbolic = not all(isinstance(size, int) for x in rows for size in x.shape)
        given = self.groups.inputs if symbolic else specification(inputs)
        own = self._own_arch(arch, small)
        decided = [] if small else list(own.values())
        shapes = own if small else jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), own)
        traced = self.groups.traced(given, train, shapes)
        sizes = self._sizes(traced, self._widths(arch), small)
        if symbolic:  # the leading axis of an export
            sizes = _with_batch(sizes, traced, rows[0].shape[0], small)
        key = rngs.get("dropout", next(iter(rngs.values()), None)) if isinstance(rngs, dict) else rngs
        key = jax.random.key(0) if key is None else key
        given = self._given(variables, sizes)
        cut = frozenset(sizes.sizes if small else sizes.widths or ())
        zero = [sizes.atoms(number) - cut for number in traced.program.inputs[: len(given)]]
        arguments = [*given, *rows, key, *decided]
        results, _ = run(traced.program, arguments, [*zero, *[NONE] * (len(rows) + 1 + len(decided))], sizes)
        count = traced.outputs.num_leaves
        outputs = jax.tree.unflatten(traced.outputs, results[:count])
        if mutable is False or mutable is None:
            return outputs
        stored = list(self.groups.shapes)
        updates = {stored[place]: x for place, x in zip(traced.updated, results[count:], strict=True)}
        kept = {p: x for p, x in updates.items() if x is not None and (mutable is True or p[0] in mutable)}
        return outputs, unflatten(self._untouched(variables, kept, sizes))

    def annotations(self, inputs: Any) -> Annotations:
        """The sizes of the network's variables and its products, for `jaxnas.network`."""
        traced = self.groups.traced(inputs, False)
        runs = self._branches(traced)
        macs = products_of(self, traced, self._scans(traced), runs)
        specs, shapes = self._specs, {}
        for path, x in self.groups.shapes.items():
            shape = x.shape if self.space.cardinality > 1 else specs[path].shape(static(self.space))
            if shape is not None:
                shapes[path] = self._boxes(path, x.dtype, shape)
        choices = [*(place.table(self.space) for place in self.places), *runs.values()]
        return Annotations(
            unflatten(shapes),
            {path[1:]: spec for path, spec in specs.items() if path[0] == "params"},
            {path: spec for path, spec in specs.items() if path[0] != "params"},
            tuple(macs),
            tuple(dict.fromkeys(choices)),
            traced.half_precision,
        )

    def _boxes(self, path: Path, dtype: Any, shape: Any) -> Any:
        """An array's shape with the names of its axes; of turns of a scan that are not alike, a dict."""
        names = self.groups.names[path]
        if isinstance(shape, dict):
            at = self._specs[path].axis
            names = (*names[:at], *names[at + 1 :])
            return {
                turn: nn.LogicallyPartitioned(jax.ShapeDtypeStruct(x, dtype), names)
                for turn, x in shape.items()
            }
        return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, dtype), names)

    def _given(self, variables: Any, sizes: Sizes) -> list[Any]:
        """The variables as the program takes them; None of those in a module that is skipped.

        Of a scan whose turns are not alike, a tuple of what each turn has.
        """
        if not sizes.small:
            cut = frozenset(sizes.widths or ())  # where they are used
            return [
                sizes.mask(x, [None if sizes.elastic(a) and sizes.elastic(a) <= cut else a for a in own])
                for x, own in zip(self.groups.arrays(variables), self.groups.layouts.values(), strict=True)
            ]
        host, specs = static(self.space), self._specs
        arrays = self.groups.arrays(variables, {path: spec.shape(host) for path, spec in specs.items()})
        unrolled = {one.axis for one in sizes.turns.values() if one.rows}
        for place, spec in enumerate(specs.values()):
            if isinstance(spec, TurnSpec) and spec.turns in unrolled:
                arrays[place] = spec.split(arrays[place], host)
        return arrays

    def _untouched(self, old: Any, new: dict[Path, Any], sizes: Sizes) -> dict[Path, Any]:
        """Updated collections, with the old values behind their active part."""
        if not sizes.small:
            before = dict(paths(old))
            return {path: sizes.keep(x, self.groups.layouts[path], before[path]) for path, x in new.items()}
        stored = dict(new)
        for path, x in new.items():
            if isinstance(spec := self._specs[path], TurnSpec) and isinstance(x, tuple):
                stored[path] = spec.joined({turn: row for turn, row in enumerate(x) if row is not None})
        return stored

    def _own_arch(self, arch: Arch | None, small: bool) -> dict[str, Any]:
        """The decisions of the module's own space: of NumPy for a sub-network."""
        own = own_arch(self.groups.own, self._own_space, None if small else arch)
        return own if small else {name: jnp.asarray(x) for name, x in own.items()}

    @functools.cached_property
    def _own_space(self) -> Space | None:
        own = {name: self.space.choices[name] for name in self.groups.own}
        return Space(**own) if own else None

    def _branches(self, traced: Traced) -> Branches:
        """Which branches run, where decisions of the module's own space say so."""
        return branches(traced, self.groups.own, self._own_space)

    @functools.cached_property
    def _kernels(self) -> frozenset[int]:
        return frozenset(group.atom for group in self.groups if group.kind == "kernel")

    def _widths(self, arch: Arch | None) -> dict[tuple[str, int | None], Width]:
        """The width of each place, by its name and turn."""
        read = Decisions(self.space, arch)
        return {(place.name, place.turn): place.width(self.space, read) for place in self.places}

    @functools.cached_property
    def tables(self) -> dict[int | None, tuple[dict[int, Table], dict[str, Table]]]:
        """The active sizes of atoms, and whether modules run: outside of scans (None), and in each turn."""
        every = [(place.name, place.turn, place.table(self.space)) for place in self.places]
        known, found = self.groups.groups, {}
        for now in {None, *(turn for _, turn, _ in every)}:
            here = [(name, table) for name, turn, table in every if turn in (None, now)]
            sizes = {known[name].atom: table for name, table in here if name in known}
            found[now] = sizes, {name: table for name, table in here if name not in known}
        return found

    @functools.cached_property
    def _specs(self) -> dict[Path, Any]:
        traced = self.groups.traced(self.groups.inputs, False)
        users: dict[Value, list[Operation]] = defaultdict(list)
        for op in traced.program.operations:
            for one in op.ins:
                users[one].append(op)
        scans, runs = list(self._scans(traced).values()), self._branches(traced)
        specs: dict[Path, Any] = {}
        for (path, layouts), number in zip(self.groups.layouts.items(), traced.program.inputs, strict=False):
            used = [when_read(op, number, self.tables[None][1], runs) for op in users[number]]
            specs[path] = self._spec(layouts, used, None)
            for one in scans:
                axis = place_of(one.scan.axis, layouts)
                differs = {group.atom for group in one.groups} & {a for x in layouts for a in atoms_of(x)}
                if axis >= 0 and (differs or one.modules):
                    reading = list(turns.readers(one.scan, traced.program, {number}))
                    alone = tuple(() if i == axis else x for i, x in enumerate(layouts))
                    gates = [self.tables[turn][1] for turn in range(one.scan.length)]
                    rows = (
                        self._spec(alone, [gate_of(op, own) for op in reading], turn).gated(one.runs(own))
                        for turn, own in enumerate(gates)
                    )
                    specs[path] = TurnSpec(one.scan.axis, axis, tuple(rows))
        return specs

    def _spec(self, layouts: tuple[Layout, ...], used: Sequence[Table], turn: int | None) -> LayoutSpec:
        """The axes of a variable, in one iteration of a scan or outside of scans, and when it is read."""
        own = tuple((a, t) for a, t in self.tables[turn][0].items() if any(a in atoms_of(x) for x in layouts))
        used = list(dict.fromkeys(used or [constant(1)]))
        gate = constant(1) if constant(1) in used else combine(lambda *x: max(x), *used)
        names = tuple("mlp" if self._hidden & atoms_of(x).keys() else None for x in layouts)
        return LayoutSpec(layouts, own, gate, self._kernels & {a for a, _ in own}, names)

    @functools.cached_property
    def _hidden(self) -> frozenset[int]:
        """Hidden channels that are axes of their own everywhere, so that they may be put in another order."""
        axes = (layout for every in self.groups.layouts.values() for layout in every)
        parts = {atom for x in axes for atom in atoms_of(x) if len(x) > 1 or isinstance(x[0], Sum)}
        return frozenset(one.atom for one in self.groups if one.kind == "hidden") - parts

    def _scans(self, traced: Traced) -> dict[int, ByTurn]:
        """The scans that have sizes or modules by turn, by the identity of their operations."""
        found: dict[int, ByTurn] = {}

        def of(scan: turns.Scan) -> ByTurn:
            return found.setdefault(id(scan.op), ByTurn(scan, [], {}, []))

        for name in dict.fromkeys(place.name for place in self.places if place.turn is not None):
            if name in self.groups.groups:
                of(turns.scan_of(traced, self.groups[name].atom)).groups.append(self.groups[name])
                continue
            program, region = regions.region_of(traced, name)
            around = turns.scan_around(traced, program)
            if around is None:
                raise ValueError(f"{name} is skipped by turn of a scan, and with these inputs it is in none.")
            of(around).modules[name] = id(program), region
            if turns.hands_on(traced, around, program, region):
                of(around).whole.append(name)
        return found

    def _sizes(self, traced: Traced, widths: dict[tuple[str, int | None], Width], small: bool) -> Sizes:
        gates: dict[int, list[tuple[Region, Any]]] = {}
        chosen, switched_gates = {}, {}
        for name, one in ((name, one) for (name, turn), one in widths.items() if turn is None):
            if name in self.groups.groups:
                chosen[self.groups[name].atom] = one
            else:
                program, region = regions.region_of(traced, name)
                switched_gates[region] = one
                gates.setdefault(id(program), []).append((region, gate_of_width(one)))
        gates = {program: outermost_first(found) for program, found in gates.items()}
        scans, constants = self._scans(traced), traced.trace.constants
        if small:
            sizes = {atom: w.maximum for atom, w in chosen.items()}
            made = Sizes(traced.layouts, sizes, None, gates, constants, self._kernels)
            for scan in scans.values():
                made = scan.small(made, widths)
            return made
        full = {group.atom: group.size for group in self.groups}
        masks = {atom: mask_of_width(w, full[atom], atom in self._kernels) for atom, w in chosen.items()}
        sizes, switched = {atom: size_of_mask(mask) for atom, mask in masks.items()}, None
        if self.form == "switch" and not any(joint(w).is_soft for w in widths.values()):
            switched = {atom: w for atom, w in chosen.items() if atom not in self._kernels}
        by_turn = {key: one.masked(widths, switched is not None) for key, one in scans.items()}
        for scan in by_turn.values():
            sizes, masks = {**sizes, **scan.rows.sizes}, {**masks, **scan.rows.masks}
        if switched is None:
            switched_gates = {}
        return Sizes(
            traced.layouts, sizes, masks, gates, constants, self._kernels, switched, switched_gates, by_turn
        )


def _with_batch(sizes: Sizes, traced: Traced, batch: Any, small: bool) -> Sizes:
    """Sizes with another number of examples, which may be symbolic.

    Raises:
      ValueError: the examples do not go through the network side by side.
    """
    factors = traced.trace.ties.factors([traced.batch])
    if not small or len(factors) != 1 or factors[0] in traced.trace.ties.fixed:
        raise ValueError("The network was analyzed for one number of examples, and cannot take any number.")
    return dataclasses.replace(sizes, sizes={**sizes.sizes, factors[0]: batch})
