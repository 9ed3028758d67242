"""Bytes that a compiled program communicates, by kind of collective, read from its text."""

from __future__ import annotations

import collections
import math
import re

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "f32": 4}
_BYTES |= {"f64": 8, "s64": 8, "u64": 8}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


def communicated(text: str) -> dict[str, tuple[int, int]]:
    """Bytes that each device communicates in one call, and numbers of collectives, by kind.

    The size of a collective is that of its result (of a reduce-scatter, that of its operands). Loop bodies
    count once per iteration, and the most expensive branch of a conditional counts.

    Args:
      text: of a compiled program, `compiled.as_text()`.

    Returns:
      {"all-reduce": (bytes, number), ...} of those that there are.
    """
    lines: dict[str, list[str]] = collections.defaultdict(list)
    entry, name = "", ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            name = found[1]
            entry = name if line.startswith("ENTRY") else entry
        elif name:
            lines[name].append(line)
    memory: dict[str, collections.Counter] = {}

    def total(name: str) -> collections.Counter:
        """Bytes ("all-reduce") and numbers ("#all-reduce") of a computation and what it calls."""
        if name not in memory:
            memory[name] = collections.Counter()
            for line in lines[name]:
                memory[name] += _of_line(line)
        return memory[name]

    def _of_line(line: str) -> collections.Counter:
        counts: collections.Counter = collections.Counter()
        body = line.split(", metadata=")[0]
        kind = re.search(rf" ({'|'.join(_KINDS)})(-start)?\(", body)
        if kind:
            result, operands = body.split(kind[0])
            size = _bytes(operands.split(")")[0]) if kind[1] == "reduce-scatter" else _bytes(result)
            if kind[2] and kind[1] != "all-reduce":  # A pair of the operand and the result.
                size -= _bytes(operands.split(")")[0])
            return collections.Counter({kind[1]: size, f"#{kind[1]}": 1})
        if found := re.search(r"body=%?([\w.\-]+)", body):
            for key, value in total(found[1]).items():
                counts[key] += value * _turns(line, lines)
        elif found := re.search(r"branch_computations=\{([^}]*)\}", body):
            branches = [total(one.strip().lstrip("%")) for one in found[1].split(",")]
            counts += max(branches, key=lambda one: sum(one[kind] for kind in _KINDS))
        elif found := re.search(r"(?:true_computation|false_computation)=", body):
            pair = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", body)
            counts += max(map(total, pair), key=lambda one: sum(one[kind] for kind in _KINDS))
        else:
            for called in re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", body):
                counts += total(called)
        return counts

    counts = total(entry)
    return {kind: (counts[kind], counts[f"#{kind}"]) for kind in _KINDS if counts[f"#{kind}"]}


def _turns(line: str, lines: dict[str, list[str]]) -> int:
    """How often a loop turns: as XLA says, or the number that its condition compares with; 1 if unknown."""
    if known := re.search(r"known_trip_count\W+n\W+(\d+)", line):
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", line)
    numbers = re.findall(
        r"s32\[\][^ ]* constant\((\d+)\)", "\n".join(lines[condition[1]] if condition else [])
    )
    return max(map(int, numbers), default=1)


def _bytes(text: str) -> int:
    """Bytes of all shapes in a text."""
    shapes = [(kind, dims) for kind, dims in _SHAPE.findall(text) if kind in _BYTES]
    return sum(_BYTES[kind] * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in shapes)
