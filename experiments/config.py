"""Configs of the binaries: frozen dataclasses, overridden by name, printed, stored, compared.

A registry of configs is a plain dictionary from names to instances. A binary reads

    def main(argv):
        config, workdir = config_lib.from_flags(CONFIGS)

    def run():
        config_lib.define_flags(CONFIGS, default="digits")
        app.run(main)
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import pathlib
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from absl import app, flags, logging
from jaxnas.training.loop import DivergedError

from experiments import typed
from jaxnas.files import diff, plain, write_json
from jaxnas.training.checkpoint import CheckpointError
from jaxnas.training.workdir import WorkdirError

__all__ = [
    "ConfigError",
    "define_flags",
    "diff",
    "from_dict",
    "from_flags",
    "override",
    "pretty",
    "select",
    "store",
    "to_dict",
    "to_json",
]

Config = TypeVar("Config")
# The flags below belong, in --help, to the binary that defines them.
flags.disclaim_key_flags()


class ConfigError(ValueError):
    """A config name, field name or value that is not one."""


def select(registry: Mapping[str, Config], name: str) -> Config:
    """Returns the config of a name, or raises ConfigError with the nearest name and all of them."""
    if name not in registry:
        raise ConfigError(f"there is no config {name!r}. {_suggest(name, list(registry))}")
    return registry[name]


def override(config: Config, assignments: Sequence[str]) -> Config:
    """Returns a config with some fields replaced.

    Args:
      config: a frozen dataclass, whose fields may be dataclasses.
      assignments: such as "seed=3", "training.steps=300", "widths=64,96", "limit=none".

    Returns:
      A new config; `config` is unchanged.

    Raises:
      ConfigError: not of the form name=value, an unknown field, or a value of another type.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals:
            raise ConfigError(f"--set {assignment}: expected name=value, such as seed=3")
        types_of = _field_types(type(config))
        if name not in types_of:
            groups = sorted({n.rpartition(".")[0] for n in types_of if "." in n})
            if name in groups:
                inner = ", ".join(n for n in types_of if n.startswith(f"{name}."))
                raise ConfigError(f"--set {assignment}: {name} is a group; set one of {inner}")
            raise ConfigError(
                f"--set {assignment}: there is no field {name!r}. {_suggest(name, list(types_of))}"
            )
        try:
            value = typed.parse(text, types_of[name])
        except typed.WrongType:
            expected = typed.name(types_of[name])
            raise ConfigError(f"--set {assignment}: {name} takes {expected}, not {text.strip()!r}") from None
        changes[name] = value
    # All at once: what the fields have to do with each other is checked when all are there.
    return _replace(config, changes)


def store(config: Any, workdir: pathlib.Path, *, ran: bool) -> None:
    """Writes config.json; before a config `ran` only where there is none, since it may be refused."""
    path = workdir / "config.json"
    if ran or not path.exists():
        write_json(path, to_dict(config))


def to_dict(config: Any) -> dict[str, Any]:
    """Returns a config as nested dictionaries that JSON can hold."""
    return plain(dataclasses.asdict(config))


def to_json(config: Any) -> str:
    """Returns a config as JSON text."""
    return json.dumps(to_dict(config), indent=2) + "\n"


def from_dict(cls: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Makes a config from nested dictionaries, the inverse of `to_dict`.

    Raises:
      ConfigError: an unknown field, a missing field without default, or a value of another type.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for name in values:
        if name not in fields:
            raise ConfigError(f"there is no field {where + name!r}. {_suggest(name, list(fields))}")
    arguments = {}
    for name, field in fields.items():
        if name not in values:
            if field.default is field.default_factory is dataclasses.MISSING:
                raise ConfigError(f"the field {where + name!r} is missing")
            continue
        value, hint = values[name], hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            arguments[name] = from_dict(hint, value, f"{where}{name}.")
            continue
        try:
            arguments[name] = typed.check(value, hint)
        except typed.WrongType:
            raise ConfigError(f"the field {where + name!r} takes {typed.name(hint)}, not {value!r}") from None
    return cls(**arguments)


def pretty(config: Any) -> str:
    """Returns a config as aligned lines, one a field, to be printed when a run starts."""
    flat = {name: _get(config, name.split(".")) for name in _field_types(type(config))}
    width = max(map(len, flat), default=0)
    return "\n".join(f"  {name:<{width}}  {value!r}" for name, value in flat.items())


def define_flags(registry: Mapping[str, Any], default: str | None = None) -> None:
    """Defines --config, --workdir and --set; called once, before `absl.app.run`."""
    names = ", ".join(registry)
    flags.DEFINE_string("config", default, f"Name of the config: {names}.")
    define_run_flags()
    flags.DEFINE_multi_string("set", [], "Replaces a field of the config, as in --set training.steps=300")


def define_run_flags() -> None:
    """Defines what every binary with a workdir has: --workdir and --traceback."""
    flags.DEFINE_string(
        "workdir", None, "Directory that the run writes to; made if it is not there. Required."
    )
    flags.DEFINE_boolean("traceback", False, "Show where in the code an error message comes from.")


def run(main: Callable[[list[str]], None]) -> None:
    """Runs a binary; a mistake of its user ends it with the message alone.

    `--traceback` shows where in the code such a message comes from. Errors of other kinds are defects
    and always show it.
    """

    def guarded(argv: list[str]) -> None:
        try:
            main(argv)
        except (ValueError, OSError, CheckpointError, WorkdirError, DivergedError) as error:
            if flags.FLAGS.traceback:
                raise
            sys.exit(f"error: {error}")

    app.run(guarded)


def from_flags(registry: Mapping[str, Config]) -> tuple[Config, str]:
    """Reads --config, --set and --workdir; wrong ones end the program with a message.

    Returns:
      The config, and the workdir as it was given.
    """
    values = flags.FLAGS
    try:
        if values.config is None:
            raise ConfigError(f"--config is missing. It is one of: {', '.join(registry)}")
        if not values.workdir:
            raise ConfigError("--workdir is missing. It is the directory that the run writes to")
        config = override(select(registry, values.config), values.set)
    except ValueError as error:  # also what a config's own checks raise
        raise app.UsageError(str(error)) from error
    # Orbax logs some twenty lines at INFO for each checkpoint; --verbosity=0 shows them.
    if not values["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    return config, values.workdir


def _field_types(cls: type, prefix: str = "") -> dict[str, Any]:
    """{"seed": int, "training.steps": int} for a dataclass."""
    hints = typing.get_type_hints(cls)
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            flat.update(_field_types(hint, f"{prefix}{field.name}."))
        else:
            flat[prefix + field.name] = hint
    return flat


def _replace(config: Any, changes: Mapping[str, Any]) -> Any:
    """A config with the fields of these dotted names replaced."""
    new = {name: value for name, value in changes.items() if "." not in name}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        group, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(group, {})[rest] = value
    new |= {group: _replace(getattr(config, group), inner) for group, inner in groups.items()}
    return dataclasses.replace(config, **new)


def _get(config: Any, names: list[str]) -> Any:
    for name in names:
        config = getattr(config, name)
    return config


def _suggest(name: str, valid: list[str]) -> str:
    """Names the nearest valid name and lists all of them; "steps" is near "training.steps"."""

    def likeness(full: str) -> float:
        return max(
            difflib.SequenceMatcher(None, name, full).ratio(),
            difflib.SequenceMatcher(None, name, full.rpartition(".")[2]).ratio(),
        )

    nearest = max(valid, key=likeness, default="")
    hint = f"Did you mean {nearest}? " if nearest and likeness(nearest) > 0.5 else ""
    return f"{hint}There are: {', '.join(valid)}"
