"""A checkpoint as a search space: which of its parts may be cut, and what is left as a checkpoint again."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxnas import network
from jaxnas.annotations import Annotations
from jaxnas.axes.groups import analyze
from jaxnas.checks import check_counts
from jaxnas.choice import Choice
from jaxnas.cost import Cost, table_cost
from jaxnas.elastic.width import Table, combine, constant
from jaxnas.hf import checkpoint
from jaxnas.hf import inputs as inputs_lib
from jaxnas.hf.checkpoint import Config, with_layers
from jaxnas.hf.decoder import Decoder
from jaxnas.hf.names import Module
from jaxnas.inputs import one_example
from jaxnas.transform.order import order
from jaxnas.transform.places import Skip
from jaxnas.transform.rebuild import rebuilt
from jaxnas.transform.supernet import Supernet, supernet

_PARTS = ("attention", "mlp", "layers")
# Names of groups in an attention. Axes of size one belong to no group, and what is left has another name.
_KV_GROUPS, _QUERIES = ("kv_heads", "heads"), ("queries", "query/hidden")


@dataclasses.dataclass(frozen=True, eq=False)
class PrunableNetwork(Supernet):
    """A supernet of the sub-networks of a checkpoint.

    Its costs have, of a decoder, "kv_bytes" and "memory", too; see `memory_cost`. One architecture alone,
    `jaxnas.extract`'s, is written as a checkpoint by `save`.

    Attributes:
      module, config: of `load`.
      deployment: the batch and the length of the texts that "memory" is for; None for no such costs.
    """

    module: Module
    config: Config
    deployment: tuple[int, int] | None

    @property
    def vocabulary(self) -> int | None:
        """How many different tokens a decoder knows; None of an image classifier."""
        return self.module.vocabulary if isinstance(self.module, Decoder) else None

    @property
    def loader(self) -> str:
        """The class of transformers that loads what `save` writes."""
        return "AutoModelForCausalLM" if self.vocabulary else "AutoModelForImageClassification"

    def annotations(self, inputs: Any) -> Annotations:
        """See `Supernet`."""
        found = super().annotations(inputs)
        if self.deployment is None or not isinstance(self.module, Decoder):
            return found
        more = memory_tables(self, found, self.module, *self.deployment, self.module.dtype)
        return dataclasses.replace(found, costs=more)

    def save(self, folder: str | os.PathLike, variables: Any) -> tuple[str, ...]:
        """Writes the checkpoint of one architecture, with its variables; see `jaxnas.hf.save`."""
        if self.space.cardinality > 1:
            raise ValueError(
                f"save: the network has {self.space.cardinality:,} architectures; extract one, by "
                "jaxnas.extract(net, variables, arch, verify=batch)."
            )
        module, own, _ = rebuilt(self, variables, rebuild(self.module), self.groups.inputs)
        return checkpoint.save(pathlib.Path(folder), module, own, self.config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prunable:
    """The parts of a checkpoint that a search may cut.

        net, variables = Prunable(checkpoint="smollm2").load(task)

    Attributes:
      checkpoint: see `load`.
      hidden: shares of each layer's hidden units that may be kept; () to keep all.
      heads: whether each layer may keep fewer heads: key/value heads with their query heads, or all heads
        where each has keys of its own.
      width: shares of the residual stream that may be kept; () to keep all of it.
      skip: parts that may be left out, of "attention", "mlp" and "layers".
      form: of the supernet, see `jaxnas.supernet`.
      dtype: of parameters and computation.
      calibration: batches of training data by whose activations all parts are ordered, most important first;
        0 to leave them as stored.
      calibration_rows: rows of such a batch.
      batch, length: of the texts that a budget of "memory" is for; 0 for as long as the task's.
    """

    checkpoint: str
    hidden: tuple[float, ...] = (0.25, 0.375, 0.5, 0.625, 0.75, 1.0)
    heads: bool = True
    width: tuple[float, ...] = ()
    skip: tuple[str, ...] = ("attention", "mlp")
    form: Literal["auto", "masked", "switch"] = "auto"
    dtype: Any = jnp.float32
    calibration: int = 8
    calibration_rows: int = 1
    batch: int = 1
    length: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "calibration", "length", least=0, group="Prunable")
        check_counts(self, "calibration_rows", "batch", group="Prunable")
        for name in ("hidden", "width"):
            shares = getattr(self, name)
            if any(not 0 < share <= 1 for share in shares) or len(set(shares)) < len(shares):
                raise ValueError(f"Prunable: {name} is {shares}, expected different shares above 0, up to 1.")
        if unknown := [part for part in self.skip if part not in _PARTS]:
            raise ValueError(f"Prunable: skip has {unknown[0]!r}, expected some of {', '.join(_PARTS)}.")

    def load(self, task: Any, mesh: Mesh | None = None, seed: int = 0) -> tuple[Any, Any]:
        """Reads the checkpoint, and orders its parts by importance on training data.

        Args:
          task: a loaded task of `jaxnas.tasks`, or another object with `inputs`, `batches` and `preprocess`.
          mesh: see `load`.
          seed: of the order of the training data.

        Returns:
          The supernet and the variables of all of it.

        Raises:
          ValueError: what `load` refuses; a tokenizer that is not the checkpoint's; too few training data.
        """
        module, variables, config = checkpoint.load(self._named(), self.dtype, mesh)
        inputs_lib.check_data(task, config)
        inputs = one_example(task.inputs)
        net = self.network(module, variables, config, inputs)
        if self.calibration:
            batches = task.batches("train", self.calibration_rows, seed)
            given = [task.preprocess(batches.at(number)) for number in range(self.calibration)]
            variables = order(net, variables, [jax.tree.map(jnp.asarray, one) for one in given])
        return net, variables

    def adapted(self, task: Any) -> Any:
        """The task with the checkpoint's own tokenizer, or its pixels; see `jaxnas.hf.inputs.adapted`."""
        return inputs_lib.adapted(task, checkpoint.config_of(self._named()))

    def _named(self) -> str:
        if not self.checkpoint:
            raise ValueError(
                "Prunable: checkpoint is missing. Give the folder of a Hugging Face checkpoint, or a name of "
                "the hub; in a binary --set network.checkpoint=FOLDER."
            )
        return self.checkpoint

    def network(self, module: Module, variables: Any, config: Config, inputs: Any) -> PrunableNetwork:
        """The supernet of a module of `load`, for inputs of some shape."""
        groups = analyze(module, variables, inputs)
        choices = self._choices(module, groups.groups)
        decisions = {} if choices else {"checkpoint": Choice("whole")}
        made = supernet(groups, choices, decisions=decisions, form=self.form, verify=False)
        deployment = None
        if isinstance(module, Decoder):
            deployment = self.batch, self.length or jax.tree.leaves(inputs)[0].shape[1]
        fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(Supernet)}
        return PrunableNetwork(**fields, module=module, config=config, deployment=deployment)

    def _choices(self, module: Module, groups: Mapping[str, Any]) -> dict[str, Any]:
        choices: dict[str, Any] = {}
        if self.width:
            choices["width"] = Choice(*_sizes(self.width, module.width))
        if self.hidden:
            shares = self.hidden
            choices |= _by_layer("layers_*/mlp/hidden", module.hidden, groups, lambda n: _sizes(shares, n))
        if self.heads:
            for kind in _KV_GROUPS:
                counts = module.kv_groups if isinstance(module, Decoder) else module.heads
                choices |= _by_layer(f"layers_*/attention/{kind}", counts, groups, lambda n: range(1, n + 1))
        patterns = {"attention": "layers_*/attention", "mlp": "layers_*/mlp", "layers": "layers_*"}
        return choices | {patterns[part]: Skip() for part in self.skip}


def rebuild(module: Module) -> Callable[[Mapping[str, int]], Module]:
    """The function that makes a pretrained module at the sizes of an extracted network.

    Args:
      module: of `load`, which was analyzed.

    Returns:
      For `jaxnas.extract(net, variables, arch, verify=tokens, rebuild=rebuild(module))`: a function from
      sizes by the names of groups, and 0 or 1 of modules that may be skipped, to the module. Layers that are
      skipped are dropped; of a layer whose attention or MLP is skipped, its size is 0.
    """

    def made(sizes: Mapping[str, int]) -> Module:
        count = len(module.hidden)

        def size(layer: int, part: str, groups: tuple[str, ...], whole: int) -> int:
            where = f"layers_{layer}/{part}"
            if not sizes.get(where, 1):
                return 0
            return next((sizes[f"{where}/{name}"] for name in groups if f"{where}/{name}" in sizes), whole)

        def row(part: str, groups: tuple[str, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(size(i, part, groups, whole[i]) for i in range(count))

        fields = {"hidden": row("mlp", ("hidden",), module.hidden)}
        if isinstance(module, Decoder):
            fields["kv_groups"] = row("attention", _KV_GROUPS, module.kv_groups)
            fields["group_heads"] = row("attention", _QUERIES, module.group_heads)
        else:
            fields["heads"] = row("attention", ("heads",), module.heads)
        kept = [i for i in range(count) if sizes.get(f"layers_{i}", 1)]
        return with_layers(module.clone(width=sizes.get("width", module.width), **fields), kept)

    return made


def memory_cost(
    net: Any, inputs: Any, module: Decoder, batch: int, length: int, dtype: Any = jnp.bfloat16
) -> Cost:
    """The costs of the sub-networks of a decoder, with the bytes that they need in use.

    Args:
      net: a `jaxnas.transform.Supernet` of the module.
      inputs: of the network; see `jaxnas.cost`.
      module: of `load`, which was analyzed.
      batch, length: of the texts that are generated: examples, and tokens each.
      dtype: of weights and cache.

    Returns:
      As `jaxnas.cost`, with two further costs: "kv_bytes", the key/value cache of a text of `length` tokens,
      of which a layer with a window keeps no more than that; and "memory", the bytes of all weights and of
      `batch` caches.

    Raises:
      ValueError: a batch or length below 1; a network whose costs cannot be told exactly.
    """
    if batch < 1 or length < 1:
        raise ValueError(f"memory_cost: expected a batch and a length of at least 1; got {batch}, {length}.")
    recorded = network.annotated(net, inputs)
    params = tuple(entry for spec in recorded.specs.values() for entry in spec.sizes)
    more = memory_tables(net, recorded, module, batch, length, dtype)
    return table_cost({"params": params, "macs": recorded.macs, **more}, net.space)


def memory_tables(
    net: Any, recorded: Annotations, module: Decoder, batch: int, length: int, dtype: Any
) -> dict[str, tuple[Table, ...]]:
    """The tables of "kv_bytes" and "memory"; see `memory_cost`."""
    size, dim = jnp.dtype(dtype).itemsize, module.form.head_dim
    tables = {place.name: place.table(net.space) for place in net.places}

    def cached(layer: int, groups: int, window: int | None) -> Table:
        where = f"layers_{layer}/attention"
        found = [tables[f"{where}/{name}"] for name in _KV_GROUPS if f"{where}/{name}" in tables]
        gates = [tables[name] for name in (f"layers_{layer}", where) if name in tables]
        tokens = length if window is None else min(length, window)
        heads = found[0] if found else constant(groups)
        return combine(lambda *factors: 2 * dim * size * tokens * math.prod(factors), heads, *gates)

    params = tuple(entry for spec in recorded.specs.values() for entry in spec.sizes)
    caches = tuple(map(cached, range(len(module.windows)), module.kv_groups, module.windows))
    memory = (
        *(combine(lambda count: count * size, entry) for entry in params),
        *(combine(lambda count: count * batch, entry) for entry in caches),
    )
    return {"kv_bytes": caches, "memory": memory}


def whole(folder: str | os.PathLike) -> Prunable:
    """A checkpoint of which nothing may be cut, as a network of one architecture."""
    return Prunable(checkpoint=str(folder), hidden=(), heads=False, skip=(), calibration=0)


def _by_layer(
    pattern: str, sizes: tuple[int, ...], groups: Mapping[str, Any], options: Callable[[int], Iterable[int]]
) -> dict[str, Choice]:
    """The choice of a size in each layer: a place for each, or a choice for each if their sizes differ."""
    named = {pattern.replace("*", str(layer)): size for layer, size in enumerate(sizes)}
    named = {name: size for name, size in named.items() if name in groups}
    if len(different := set(named.values())) == 1:
        return {pattern: Choice(*options(*different))}
    return {name: Choice(*options(size)) for name, size in named.items()}


def _sizes(shares: tuple[float, ...], size: int) -> list[int]:
    return sorted({max(1, math.floor(share * size + 0.5)) for share in shares})
