"""Tasks whose data are given as they are, or by a name and then loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from jaxnas.checks import check_flags
from jaxnas.tasks.task import Task, check_role

D = TypeVar("D", bound=Any)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named(Task, Generic[D]):
    """The part of a task whose data are given by a name, or as they are.

    Attributes:
      data: the name of a data set, or the data themselves, or a rule with a `name` that generates them. They
        have a method `whole()`, see `data.splits.Parts`.
    """

    data: Any

    kind: ClassVar[type]  # of the data themselves
    makers: ClassVar[str]  # functions that make them, for messages
    rules: ClassVar[tuple[type, ...]] = ()  # of objects that generate the data when they are loaded

    def __post_init__(self) -> None:
        if not isinstance(self.data, (str, self.kind, *self.rules)):
            raise ValueError(
                f"{type(self).__name__}: data is a {type(self.data).__name__}; expected a name, or what "
                f"{self.makers} returns."
            )
        given = {field.name: (field.type, getattr(self, field.name)) for field in dataclasses.fields(self)}
        flags = {
            name: value
            for name, (kind, value) in given.items()
            if kind in (bool, "bool") or (kind == "bool | None" and value is not None)
        }
        check_flags(type(self).__name__, **flags)

    @property
    def name(self) -> str:  # pyrefly: ignore[bad-override] # of the data, so it is not set
        """The name of the data."""
        return self.data if isinstance(self.data, str) else self.data.name

    @property
    def dataset(self) -> D:
        """The data themselves.

        Raises:
          ValueError: they are not loaded yet.
        """
        if not isinstance(self.data, self.kind):
            raise ValueError(
                f"The {self.examples} of {self.name!r} are not loaded yet; call task.load() first."
            )
        return self.data

    @property
    def sizes(self) -> dict[str, int]:
        """The number of examples in each role."""
        return {role: len(split) for role, split in self.dataset.splits.items()}

    def load(self, data_dir: Any = None) -> Self:
        """The task with its data loaded; see `jaxnas.data.load` and `load_text` for folders and errors."""
        if isinstance(self.data, self.kind):
            return self
        return dataclasses.replace(self, data=self.read(data_dir))

    def read(self, data_dir: Any) -> D:
        """The data of the name or the rule."""
        raise ValueError(f"{type(self).__name__}: {self.data!r} is no data; give what {self.makers} returns.")

    def whole(self) -> Self:
        """The task with nothing held out for a search, for a retraining; see `whole` of its data."""
        whole = self.dataset.whole()
        return self if whole is self.dataset else dataclasses.replace(self, data=whole)

    def preprocessing(self) -> Mapping[str, Any]:
        """With the name of each class and the word of each token, where the data have them."""
        words = getattr(getattr(self.dataset, "vocabulary", None), "words", None)
        known = {"classes": getattr(self.dataset, "classes", None), "words": words}
        return {**super().preprocessing(), **{name: x for name, x in known.items() if x is not None}}

    def part(self, parts: Mapping[str, Any], role: str, *, train: bool = False) -> Any:
        """The data of a role, of data by role.

        Raises:
          ValueError: a role that may not be trained on, or evaluated, or that the data do not have.
        """
        use = "training" if train else "an evaluation"
        check_role(self.name, role, ("train", "search") if train else ("search", "validation", "test"), use)
        if role not in parts:
            raise ValueError(
                f"{self.name} has no {self.examples} of the role {role!r}, only of {', '.join(parts)}. Hold "
                "some out of training, as by search_fraction=0.2."
            )
        return parts[role]
