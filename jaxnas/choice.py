"""A choice: the options of one decision of a search space, and when the decision counts."""

import copy
import dataclasses
import difflib
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Option = int | float | str
_MOST = 10_000  # positions of a choice; a number of another kind, as of parameters, would fill the memory


def nearest(given: Any, known) -> str:
    """The end of a sentence about an unknown value: "; did you mean 'depth'?", or "." if none is near."""
    by_text = {str(x): x for x in known}
    near: list[Any] = [x for x in by_text.values() if isinstance(x, numbers.Real)]
    if isinstance(given, numbers.Real) and near:
        near = [min(near, key=lambda x: abs(x - given))]
    else:
        near = [by_text[x] for x in difflib.get_close_matches(str(given), by_text, 1, 0.5)]
    return f"; did you mean {near[0]!r}?" if near else "."


def plain_options(options) -> tuple[Option, ...]:
    """Returns the options as plain, unique Python values.

    Raises:
      TypeError: an option is neither an int, a float nor a str.
      ValueError: there is none, one is given twice, or one fits neither int32 nor float32.
    """
    plain = []
    for option in options:
        if isinstance(option, np.generic):
            option = option.item()
        if isinstance(option, bool) or not isinstance(option, int | float | str):
            raise TypeError(
                f"Choice: options are int, float or str, got {option!r} of type "
                f"{type(option).__name__}. Give each option as an argument of its own."
            )
        if isinstance(option, float) and not abs(option) <= float(np.finfo(np.float32).max):
            raise ValueError(f"Choice: option {option!r} is not a finite float32.")
        if isinstance(option, int) and not -(2**31) <= option < 2**31:
            raise ValueError(f"Choice: option {option!r} is beyond the range of int32.")
        if option in plain:
            raise ValueError(f"Choice: option {option!r} is given twice; options are unique.")
        plain.append(option)
    if not plain:
        raise ValueError("Choice: no options given; a choice has at least one.")
    return tuple(plain)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Choice:
    """One decision of a space: its options, and when it is active.

    Attributes:
      options: the options, unique; of a repeated choice, those of any position.
      length: the number of repetitions, or None for a choice made once.
      active: the name of an int choice; position l is active iff l < its value.
      condition: (name, options): active iff that choice has one of these options.
      per_position: the options of each position where they differ, else None.

    Example:
      >>> space = Space(depth=Choice(1, 2), heads=Choice(2, 4).repeat(2, active="depth"))
      >>> space.cardinality
      6
    """

    options: tuple[Option, ...]
    length: int | None
    active: str | None
    condition: tuple[str, tuple[Option, ...]] | None
    per_position: tuple[tuple[Option, ...], ...] | None

    def __init__(self, *options: Option):
        object.__setattr__(self, "options", plain_options(options))
        for name in ("length", "active", "condition", "per_position"):
            object.__setattr__(self, name, None)

    def replace(self, **changes: Any) -> "Choice":
        """Returns this choice with other attributes; `Space` checks that they fit together."""
        new = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(new, name, value)
        return new

    def repeat(self, length: int, active: str | None = None) -> "Choice":
        """Returns this choice made once for each position, for each layer for example.

        Args:
          length: the number of positions, from 1 to 10,000.
          active: the name of an int choice; position l is active iff l < its value.
        """
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= _MOST:
            raise ValueError(f"repeat: length is an int from 1 to {_MOST:,}, got {length!r}.")
        if self.length is not None:
            raise ValueError(f"repeat: this choice is already repeated {self.length} times.")
        return self.replace(length=length, active=active)

    def at_positions(self, *rows: Sequence[Option]) -> "Choice":
        """Returns this repeated choice with some of its options at each position.

        A layer that takes its input from any layer below it, for example:

            Choice(*range(4)).repeat(4).at_positions(*(range(position + 1) for position in range(4)))
        """
        if self.length is None or len(rows) != self.length:
            repeated = "not repeated" if self.length is None else f"repeated {self.length} times"
            raise ValueError(
                f"at_positions: options are given for {len(rows)} positions, and this choice is {repeated}."
            )
        plain = tuple(plain_options(row) for row in rows)
        for position, option in ((place, option) for place, row in enumerate(plain) for option in row):
            if option not in self.options:
                raise ValueError(
                    f"at_positions: {option!r}, at position {position}, is not one of the options "
                    f"{self.options}{nearest(option, self.options)}"
                )
        return self.replace(per_position=plain)

    def when(self, name: str, *options: Option) -> "Choice":
        """Returns this choice, active only where the choice `name` has one of these options.

        Where both are repeated, position l looks at position l.
        """
        if self.condition is not None:
            raise ValueError(
                f"when: this choice already depends on {self.condition[0]!r}; let one of the two depend on "
                "the other instead."
            )
        return self.replace(condition=(name, plain_options(options)))

    def options_at(self, position: int = 0) -> tuple[Option, ...]:
        """Returns the options at a position; an index counts within these."""
        return self.options if self.per_position is None else self.per_position[position]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this choice in one hard architecture: () or (length,)."""
        return () if self.length is None else (self.length,)

    @property
    def width(self) -> int:
        """The largest number of options at a position: the last axis of a soft architecture."""
        return max(map(len, self.per_position)) if self.per_position else len(self.options)

    @property
    def sizes(self) -> np.ndarray:
        """The number of options at each position, int32 [] or [length]."""
        if self.length is None:
            return np.asarray(len(self.options), np.int32)
        return np.asarray([len(self.options_at(p)) for p in range(self.length)], np.int32)

    @property
    def table(self) -> np.ndarray:
        """Option values by index, [width], or [length, width] where positions differ.

        int32 if all are ints, else float32; short positions are padded with their last option.
        """
        if any(isinstance(o, str) for o in self.options):
            raise TypeError(f"table: options {self.options} are not all numbers.")
        dtype = np.int32 if all(isinstance(o, int) for o in self.options) else np.float32
        if self.per_position is None:
            return np.asarray(self.options, dtype)
        rows = [row + row[-1:] * (self.width - len(row)) for row in self.per_position]
        return np.asarray(rows, dtype).reshape(len(rows), self.width)

    def index(self, option: Option, position: int = 0) -> int:
        """Returns the index of an option at a position; raises ValueError, with the nearest option."""
        options = self.options_at(position)
        if isinstance(option, bool) or option not in options:
            raise ValueError(f"{option!r} is not one of the options {options}{nearest(option, options)}")
        return options.index(option)

    def keep(self, rows: list[tuple[Option, ...]]) -> "Choice":
        """Returns this choice with these options at its first positions, in their order; the others go."""
        kept = tuple(o for o in self.options if any(o in row for row in rows)) or self.options
        if self.length is None:
            return self.replace(options=kept)
        same = all(row == kept for row in rows)
        return self.replace(options=kept, length=len(rows), per_position=None if same else tuple(rows))

    def to_json(self) -> dict[str, Any]:
        """Returns a plain dict of this choice, which `from_json` reads."""
        out = {
            "options": list(self.options),
            "length": self.length,
            "active": self.active,
            "when": self.condition and [self.condition[0], list(self.condition[1])],
            "per_position": self.per_position and [list(row) for row in self.per_position],
        }
        return {name: value for name, value in out.items() if value is not None}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Choice":
        """Returns the choice that `to_json` wrote."""
        if not isinstance(values, Mapping):
            raise TypeError(f"Choice.from_json: expected a dict that to_json wrote, got {values!r}.")
        unknown = set(values) - {"options", "length", "active", "when", "per_position"}
        if unknown or "options" not in values:
            raise ValueError(f"Choice.from_json: unknown keys {sorted(unknown)}, or no 'options'.")
        when, rows = values.get("when"), values.get("per_position")
        choice = Choice(*values["options"]).replace(
            length=values.get("length"),
            active=values.get("active"),
            condition=None if when is None else (when[0], tuple(when[1])),
        )
        return choice if rows is None else choice.at_positions(*rows)

    def __repr__(self) -> str:
        text = f"Choice({', '.join(map(repr, self.options))})"
        if self.length is not None:
            text += f".repeat({self.length}"
            text += f", active={self.active!r})" if self.active else ")"
        if self.condition is not None:
            text += f".when{(self.condition[0], *self.condition[1])!r}"
        if self.per_position is not None:
            text += f" with options {list(self.per_position)} by position"
        return text


def parents(choice: Choice) -> list[str]:
    """The names of the choices on which a choice depends."""
    names = [] if choice.active is None else [choice.active]
    return names + ([] if choice.condition is None else [choice.condition[0]])


def check_parents(name: str, choice: Choice, choices: Mapping[str, Choice]) -> None:
    """Checks that a choice can depend on its parents; raises ValueError."""
    for parent in parents(choice):
        if parent not in choices:
            raise ValueError(
                f"Space: {name!r} depends on {parent!r}, which is not a choice of the "
                f"space{nearest(parent, choices)}"
            )
    if choice.active is not None:
        depth = choices[choice.active]
        if choice.length is None or depth.length is not None:
            raise ValueError(
                f"Space: {name!r} is active up to {choice.active!r}: the first must be repeated, and the "
                "second not."
            )
        depths = [o for o in depth.options if isinstance(o, int) and o >= 0]
        if len(depths) < len(depth.options):
            raise ValueError(
                f"Space: {name!r} is active up to {choice.active!r}, whose options {depth.options} must all "
                "be ints of at least 0."
            )
        if choice.length < (most := max(depths)):
            raise ValueError(
                f"Space: {name!r} is repeated {choice.length} times, but {choice.active!r} goes up to {most}."
            )
    if choice.condition is not None:
        kind, wanted = choices[choice.condition[0]], choice.condition[1]
        for option in wanted:
            if option not in kind.options:
                raise ValueError(
                    f"Space: {name!r} is active when {choice.condition[0]!r} is {option!r}, not one of its "
                    f"options {kind.options}{nearest(option, kind.options)}"
                )
        if kind.length is not None and kind.length != choice.length:
            raise ValueError(
                f"Space: {name!r} (length {choice.length}) depends on {choice.condition[0]!r} (length "
                f"{kind.length}): the lengths must be equal."
            )
    if choice.per_position is not None and len(choice.per_position) != choice.length:
        count = len(choice.per_position)
        raise ValueError(
            f"Space: {name!r} has options for {count} positions, but is repeated {choice.length} times."
        )


def element_name(name: str, choice: Choice, position: int) -> str:
    """The name of one decision, as "depth" or "num_heads[3]"."""
    return name if choice.length is None else f"{name}[{position}]"
