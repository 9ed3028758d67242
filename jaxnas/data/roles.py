"""What parts of the data may be used for, and arrays that nobody changes: of images and of texts."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Self, TypeVar

import numpy as np

ROLES = ("train", "search", "validation", "test")
P = TypeVar("P", bound=Any)  # The data of one `role`, which a method `join` joins with those of another.


def check_role(role: str) -> None:
    """Raises ValueError for a role that is not known."""
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}, expected one of {', '.join(ROLES)}")


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns a view of an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Parts(Generic[P]):
    """Data in disjoint parts, one for each role. A task refuses a part for a use that its role is not for.

    Args:
      name: of the data.
      train: to train on, without the other parts.
      search: compares architectures in a search; None if nothing was held out.
      validation: watches networks that are trained; None for none.
      test: for the networks that were chosen.

    Raises:
      ValueError: a part in the place of another, or none to train on or for the test.
    """

    name: str
    train: P
    search: P | None = None
    validation: P | None = None
    test: P

    def __post_init__(self):
        if missing := {"train", "test"} - set(self.splits):
            raise ValueError(
                f"{self.name} has no data of the role {' or '.join(map(repr, sorted(missing)))}; "
                "only those of 'search' and 'validation' may be left out."
            )
        for role, part in self.splits.items():
            if part.role != role:
                raise ValueError(
                    f"{self.name}: {role} is data of the role {part.role!r}; expected the role {role!r}."
                )

    @property
    def splits(self) -> dict[str, P]:
        """The parts that there are, by role."""
        splits = {role: getattr(self, role) for role in ROLES}
        return {role: part for role, part in splits.items() if part is not None}

    def whole(self) -> Self:
        """The data whose part to train on includes what was held out for a search."""
        if self.search is None:
            return self
        return dataclasses.replace(self, train=self.train.join(self.search), search=None)
