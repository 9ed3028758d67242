"""Roles: uses that parts of the data are for, and read-only arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Self, TypeVar

import numpy as np

ROLES = ("train", "search", "validation", "test")
P = TypeVar("P", bound=Any)  # The data of one `role`, which a method `join` joins with those of another.


def check_role(role: str) -> None:
    """Raises ValueError for an unknown role."""
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}, expected one of {', '.join(ROLES)}")


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Parts(Generic[P]):
    """Data in disjoint parts, one for each role; a task rejects a part for a use that its role is not for.

    Args:
      name: of the data.
      train: trains networks.
      search: compares architectures; None if nothing was held out.
      validation: monitors trainings; None for none.
      test: measures the chosen networks.

    Raises:
      ValueError: a part in the place of another, or none for training or the test.
    """

    name: str
    train: P
    search: P | None = None
    validation: P | None = None
    test: P

    def __post_init__(self):
        if missing := {"train", "test"} - set(self.splits):
            raise ValueError(
                f"{self.name} has no data of the role {' or '.join(map(repr, sorted(missing)))}."
            )
        for role, part in self.splits.items():
            if part.role != role:
                raise ValueError(
                    f"{self.name}: {role} is data of the role {part.role!r}; expected the role {role!r}."
                )

    @property
    def splits(self) -> dict[str, P]:
        """The parts by role, without those that are None."""
        splits = {role: getattr(self, role) for role in ROLES}
        return {role: part for role, part in splits.items() if part is not None}

    def whole(self) -> Self:
        """The data with the part held out for a search joined to the training part."""
        if self.search is None:
            return self
        return dataclasses.replace(self, train=self.train.join(self.search), search=None)
