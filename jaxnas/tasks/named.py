"""Data that are given as they are, or by a name and then loaded."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

from jaxnas.tasks.task import Task, check_role


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named(Task):
    """What tasks share whose data may be named.

    Attributes:
      data: the name of a data set, or the data themselves.
    """

    data: Any

    kind: ClassVar[type]  # of the data themselves
    makers: ClassVar[str]  # functions that make them, for messages
    names: ClassVar[bool] = True  # whether there are data by name
    hint: ClassVar[str] = "Set search_fraction to 0.2, say."  # how data get the role "search", for messages

    def __post_init__(self) -> None:
        if isinstance(self.data, str) and not self.names:
            raise ValueError(
                f"{type(self).__name__}: data is {self.data!r}; expected what {self.makers} returns."
            )
        if not isinstance(self.data, (str, self.kind)):
            name = "a name, or " if self.names else ""
            raise ValueError(
                f"{type(self).__name__}: data is a {type(self.data).__name__}; expected {name}what "
                f"{self.makers} returns."
            )

    @property
    def name(self) -> str:  # pyrefly: ignore[bad-override] # of the data, so it is not set
        """The name of the data."""
        return self.data if isinstance(self.data, str) else self.data.name

    @property
    def loaded(self) -> Any:
        """The data themselves.

        Raises:
          ValueError: they are not loaded yet.
        """
        if isinstance(self.data, str):
            raise ValueError(
                f"The {self.examples} of {self.data!r} are not loaded yet; call task.load() first."
            )
        return self.data

    def load(self, data_dir: Any = None, source_dir: Any = None) -> Self:
        """The task with its data loaded; see `jaxnas.data.load` and `load_text` for folders and errors."""
        if not isinstance(self.data, str):
            return self
        return dataclasses.replace(self, data=self.read(data_dir, source_dir))

    def read(self, data_dir: Any, source_dir: Any) -> Any:
        """The data of the name."""
        raise ValueError(f"{type(self).__name__}: {self.data!r} is no data; give what {self.makers} returns.")

    def part(self, parts: dict[str, Any], role: str, allowed: tuple[str, ...], use: str) -> Any:
        """The data of a role that may be used so.

        Args:
          parts: the data by role.
          role: which of them.
          allowed: roles that the use may have.
          use: for messages.

        Raises:
          ValueError: the role may not be used so, or there are no such data.
        """
        check_role(self.name, role, allowed, use)
        if role not in parts:
            hint = f" {self.hint}" if role == "search" else ""
            raise ValueError(
                f"{self.name} has no {self.examples} of the role {role!r}, only of {', '.join(parts)}: "
                f"nothing was held out of training for it.{hint}"
            )
        return parts[role]
