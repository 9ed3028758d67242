"""Configs of the binaries: plain objects, overridden by name, printed, stored, compared.

A config holds a task, a network, a recipe and settings as the objects that they are, so each field is
declared once, by its own class. `--set network.dtype=bfloat16` replaces a field of such an object, after
the text is read as the type of the field.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import linecache
import os
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from jaxnas import display, files, runs, trackers
from jaxnas.experiments import typed
from jaxnas.recipes import Distillation, Uniform
from jaxnas.report import result
from jaxnas.space import Space
from jaxnas.tasks import Task
from jaxnas.training import Training
from jaxnas.training.plain import field_names, is_dtype, to_dict

DTYPES = ("float32", "bfloat16")


class ConfigError(ValueError):
    """A config name, field name or value that is not one, or a file without a config."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides the course of a run; paths are flags and stay out of it.

    Attributes:
      name: of the config.
      about: what it is for, in a line.
      seed: of everything that is random.
      task: what the network is trained for, and on what.
      network: with a `space`; the supernet. Or what has a method `load(task, mesh, seed)` that returns the
        supernet with its weights, as `jaxnas.hf.Prunable`.
      training: of the supernet.
      recipe: which architectures a step trains.
      evolution: how the search space moves before its last supernet is trained; None if it stays.
      search: how an architecture is found.
      distill: how an architecture that is trained alone from inherited weights learns from a teacher, by
        default the largest one; None to learn from the labels. A checkpoint is distilled as it is searched.
      retraining: of an architecture alone; None for the settings of `training`, from which
        `--set retraining.learning_rate=1e-4` starts.
      measure: from (network, task, batch size) to the `jaxnas.latency.LatencyTable` that `search.latency`
        asks for; None for one decision at a time.
      architectures: architectures to compare with, as option values, by name.
      log: names of trackers that show the run, as `--set log=tensorboard,wandb`; see `jaxnas.trackers.of`.
    """

    name: str
    about: str = ""
    seed: int = 0
    task: Task
    network: Any
    training: Training
    recipe: Any = Uniform()
    evolution: runs.SpaceEvolution | None = None
    search: runs.Search = runs.Search()
    distill: Distillation | None = None
    retraining: Training | None = None
    measure: Any = None
    architectures: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    log: tuple[trackers.Name, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(getattr(self.network, "space", None), Space) or self.pretrained):
            raise ConfigError(
                f"config {self.name!r}: network is a {type(self.network).__name__} without a `space`; a "
                "network is a Flax module with the search space as a field."
            )
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed is {self.seed}, expected 0 to {2**32 - 1}.")
        try:
            result.check_names(self.architectures)
        except ValueError as error:
            raise ConfigError(f"config {self.name!r}: {error}") from error
        if isinstance(self.log, str) or (wrong := {*self.log} - {*trackers.NAMES}):
            given = self.log if isinstance(self.log, str) else wrong.pop()
            raise ConfigError(
                f"config {self.name!r}: log has {given!r}; expected a tuple of {', '.join(trackers.NAMES)}."
            )

    @property
    def pretrained(self) -> bool:
        """Whether the network comes with its weights."""
        return hasattr(self.network, "load")

    @property
    def alone(self) -> Training:
        """How an architecture is trained alone: on the devices of `training`."""
        own, devices = self.retraining or self.training, ("devices", "model_devices")
        return dataclasses.replace(own, **{name: getattr(self.training, name) for name in devices})


def find(registry: Mapping[str, Config], name: str) -> Config:
    """The config of a name, or in a Python file that has `CONFIG`, or several in `CONFIGS`.

    These are in a tuple, a list or a dict, and `path.py:name` says which. What is missing, fails or has no
    config raises a ConfigError.
    """
    path, colon, wanted = name.partition(".py:")
    if not name.endswith(".py") and not colon:
        if name not in registry:
            raise ConfigError(
                f"there is no config {name!r}{_near(name, registry, '_')} `jaxnas` lists all; "
                "--config=path/to/my_config.py is one of your own"
            )
        return registry[name]
    path = files.as_path(path + ".py" if colon else name).resolve()
    if not path.is_file():
        raise ConfigError(f"--config: there is no file {path}")
    # Under a name, since the types of the fields of its classes are looked up in the module later.
    loader = SourceFileLoader(f"config_{path.stem}", str(path))
    module = types.ModuleType(loader.name)
    module.__file__ = str(path)
    sys.modules[loader.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line = next((f.lineno for f in reversed(inspect.trace()) if f.filename == str(path)), None)
        code = linecache.getline(str(path), line or 0).strip()
        at = f"line {line} of {path}, `{code}`," if line else str(path)
        raise ConfigError(f"--config: {at} fails with {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    several = by_name(getattr(module, "CONFIGS", ()), f"--config: CONFIGS of {path}")
    config = several.get(wanted) if colon else getattr(module, "CONFIG", None)
    if not isinstance(config, Config):
        has = f"; its CONFIGS are {', '.join(several)}" if several else ""
        raise ConfigError(
            f"--config: {path} has no config{f' {wanted!r}' if colon else ''}: set CONFIG = Config(name=..., "
            "task=..., network=..., training=...), or CONFIGS to several, of which --config=path.py:name "
            f"takes one, with `from jaxnas.experiments import Config`{has}"
        )
    return config


def by_name(configs: Any, what: str) -> dict[str, Config]:
    """Several configs, a tuple, a list or a dict, by name; `what` is the beginning of an error."""
    given = configs.values() if isinstance(configs, Mapping) else configs
    values = [*given] if isinstance(given, Iterable) else [given]
    if strange := [value for value in values if not isinstance(value, Config)]:
        raise ConfigError(f"{what} holds {strange[0]!r}, which is no Config")
    found = {config.name: config for config in values}
    if len(found) < len(values):
        names = ", ".join(repr(config.name) for config in values)
        raise ConfigError(f"{what} are {names}; give each a name of its own")
    return dict(configs) if isinstance(configs, Mapping) else found


def override(config: Config, assignments: Sequence[str]) -> Config:
    """A config with some fields replaced, as by "seed=3", "network.space=par(6)" and "search.limit=none".

    Another form than name=value, an unknown field or a value of another type raises a ConfigError.
    """
    texts: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = map(str.strip, assignment.partition("="))
        if not equals:
            raise ConfigError(f"--set {assignment}: expected name=value, such as seed=3")
        texts[name] = text
    # Objects that are named by their class come first, then fields, then those that begin as `training`'s.
    fields = _fields(config)
    named = {name for name in texts if name in fields and fields[name].classes}
    own = {name for name in texts if name.startswith("retraining.") and config.retraining is None}
    for names in (named, texts.keys() - named - own, own):
        if names and names <= own:
            config = dataclasses.replace(config, retraining=config.training)
        fields = _fields(config)
        # All at once: what the fields have to do with each other is checked when all are there.
        config = _replace(
            config, {name: _parse(fields, name, x) for name, x in texts.items() if name in names}
        )
    return config


class _Field(NamedTuple):
    """A field of a config: its value, its type, and the classes by name that it takes an object of."""

    value: Any
    hint: Any
    classes: Mapping[str, type]

    @property
    def group(self) -> bool:
        """Whether it holds an object with fields."""
        value = self.value
        plain = not dataclasses.is_dataclass(value) or isinstance(value, (type, Space))
        return not plain and bool(field_names(value))


def _fields(value: Any, prefix: str = "") -> dict[str, _Field]:
    """The fields of an object by their dotted names, each group before its own."""
    hints, found = typing.get_type_hints(type(value)), {}
    classes = {field.name: field.metadata.get("classes", {}) for field in dataclasses.fields(value)}
    for name in field_names(value):
        field = _Field(getattr(value, name), hints.get(name, Any), classes[name])
        found[prefix + name] = field
        found |= _fields(field.value, f"{prefix}{name}.") if field.group else {}
    return found


def _parse(fields: Mapping[str, _Field], name: str, text: str) -> Any:
    """The value of an assignment."""
    set_, leaves = f"--set {name}={text}:", [known for known, field in fields.items() if not field.group]
    if name not in fields:
        near = _near(name, leaves, ".")
        raise ConfigError(f"{set_} there is no field {name!r}{near} There are: {', '.join(leaves)}")
    field = fields[name]
    if field.classes:
        if text != "none" and text not in field.classes:
            raise ConfigError(f"{set_} {name} takes none or one of {', '.join(field.classes)}")
        return None if text == "none" else field.classes[text]()
    if field.group:
        if text == "none" and (field.hint is Any or type(None) in typing.get_args(field.hint)):
            return None
        inner = ", ".join(known for known in leaves if known.startswith(f"{name}."))
        raise ConfigError(f"{set_} {name} is a group; set one of {inner}")
    if isinstance(field.value, Space):
        try:
            return typed.space(text)
        except ValueError as error:
            raise ConfigError(f"{set_} {error}") from error
    if is_dtype(field.value):
        if text not in DTYPES:
            raise ConfigError(f"{set_} {name} takes one of {', '.join(DTYPES)}, not {text!r}")
        return getattr(jnp, text)
    try:
        return typed.parse(text, field.hint)
    except ValueError:
        raise ConfigError(f"{set_} {name} takes {typed.name(field.hint)}, not {text!r}") from None


def _replace(value: Any, changes: Mapping[str, Any]) -> Any:
    """An object with the fields of these dotted names replaced."""
    new = {name: part for name, part in changes.items() if "." not in name}
    for group in {name.partition(".")[0] for name in changes if "." in name}:
        inner = {x.removeprefix(f"{group}."): y for x, y in changes.items() if x.startswith(f"{group}.")}
        new[group] = _replace(getattr(value, group), inner)
    return value.clone(**new) if isinstance(value, nn.Module) else dataclasses.replace(value, **new)


def one_line(config: Config, workdir: os.PathLike) -> str:
    """Describes a run in one line."""
    what = f"{config.name}: {type(config.network).__name__} on {config.task.name}"
    return f"{what}, {config.training.steps:,} steps, in {workdir} (--verbose prints every setting)"


def pretty(config: Config) -> str:
    """A config as aligned lines, one a field."""
    flat = {name: field.value for name, field in _fields(config).items() if not field.group}
    width = max(map(len, flat), default=0)
    return "\n".join(f"  {name:<{width}}  {_show(value)}" for name, value in flat.items())


def _show(value: Any) -> str:
    if isinstance(value, Space):
        return f"{display.count(value.cardinality)} architectures" if value.cardinality > 1e6 else repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__
    return repr(to_dict(value))


def _near(name: str, names: Iterable[str], separator: str) -> str:
    """The end of a sentence about an unknown name: the nearest ones, as a whole or by a part of them."""

    def likeness(full: str) -> float:
        parts = (full, *full.split(separator))
        return max(difflib.SequenceMatcher(None, name, part).ratio() for part in parts)

    found = {one: likeness(one) for one in names}
    nearest = [one for one, value in found.items() if value == max(found.values()) > 0.6]
    return f"; did you mean {' or '.join(map(repr, nearest[:3]))}?" if nearest else "."
