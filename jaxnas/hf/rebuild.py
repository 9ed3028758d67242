"""A pretrained module at other sizes, for `jaxnas.extract(..., rebuild=)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxnas.hf.checkpoint import with_layers
from jaxnas.hf.decoder import Decoder
from jaxnas.hf.families import Module
from jaxnas.hf.memory import KV_GROUPS

# Names of the groups of query heads. Axes of size one belong to no group, and what is left has another name.
_QUERIES = ("queries", "query/hidden")


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
            fields["kv_groups"] = row("attention", KV_GROUPS, module.kv_groups)
            fields["group_heads"] = row("attention", _QUERIES, module.group_heads)
        else:
            fields["heads"] = row("attention", ("heads",), module.heads)
        kept = [i for i in range(count) if sizes.get(f"layers_{i}", 1)]
        return with_layers(module.clone(width=sizes.get("width", module.width), **fields), kept)

    return made
