"""Configs: overrides with checked types, errors that name the nearest, JSON there and back."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import types
from typing import Literal

import pytest
from absl import app
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import config as config_lib

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    steps: int = 300
    learning_rate: float = 1e-3
    dtype: Literal["float32", "bfloat16"] = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    dataset: str = "digits"
    seed: int = 0
    augment: bool = True
    widths: tuple[int, ...] = (64, 96)
    bounds: tuple[float, float] = (0.5, 2.0)
    stages: tuple[tuple[int, int], ...] = ((1, 2),)
    limit: int | None = None
    training: Training = Training()


@pytest.mark.parametrize(
    ("assignment", "field", "value"),
    [
        ("seed=3", "seed", 3),
        ("seed=-1", "seed", -1),
        ("dataset=a=b", "dataset", "a=b"),
        ("augment=false", "augment", False),
        ("augment=True", "augment", True),
        ("widths=1", "widths", (1,)),
        ("widths=(1, 2,3)", "widths", (1, 2, 3)),
        ("widths=[]", "widths", ()),
        ("bounds=1,2", "bounds", (1.0, 2.0)),
        ("stages=(1,2),(3,4)", "stages", ((1, 2), (3, 4))),
        ("stages=[[1,2],[3,4]]", "stages", ((1, 2), (3, 4))),
        ("limit=none", "limit", None),
        ("limit=7", "limit", 7),
        ("training.steps=5", "training.steps", 5),
        ("training.learning_rate=1", "training.learning_rate", 1.0),
        ("training.dtype=bfloat16", "training.dtype", "bfloat16"),
    ],
)
def test_override_sets_one_field(assignment, field, value):
    changed = config_lib.override(Config(), [assignment])
    holder = changed.training if field.startswith("training.") else changed
    got = getattr(holder, field.rpartition(".")[2])
    assert got == value and type(got) is type(value)
    lines = config_lib.diff(config_lib.to_dict(Config()), config_lib.to_dict(changed))
    assert all(line.startswith(f"{field}: ") for line in lines) and len(lines) <= 1


def test_later_overrides_win_and_the_original_stays():
    config = Config()
    changed = config_lib.override(config, ["seed=1", "training.steps=2", "seed=4"])
    assert (changed.seed, changed.training.steps) == (4, 2)
    assert config == Config()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "training.stesp=3",
            "no field 'training.stesp'. Did you mean training.steps? There are: d",
        ),
        ("steps=3", "Did you mean training.steps?"),
        ("sead=3", "Did you mean seed?"),
        ("training=3", "training is a group; set one of training.steps, training.learning_rate"),
        ("seed", "expected name=value"),
        ("seed=1.5", "seed takes an integer, not '1.5'"),
        ("seed=", "seed takes an integer, not ''"),
        ("augment=1", "augment takes true or false, not '1'"),
        ("training.learning_rate=fast", "takes a number, not 'fast'"),
        ("training.learning_rate=inf", "takes a number, not 'inf'"),
        ("training.dtype=float16", "takes one of float32, bfloat16, not 'float16'"),
        ("widths=1,a", "widths takes a list such as 1,1, not '1,a'"),
        ("bounds=1", "bounds takes a list such as 0.5,0.5, not '1'"),
        ("stages=1,2", "stages takes a list such as (1,1),(1,1), not '1,2'"),
        ("limit=few", "limit takes an integer or none, not 'few'"),
    ],
)
def test_a_wrong_override_says_what_was_expected(assignment, message):
    with pytest.raises(config_lib.ConfigError) as error:
        config_lib.override(Config(), [assignment])
    assert message in str(error.value)


def test_a_config_that_may_be_refused_replaces_none_that_ran(tmp_path):
    def stored():
        return json.loads((tmp_path / "config.json").read_text())["seed"]

    config_lib.store(Config(seed=1), tmp_path, ran=False)
    assert stored() == 1
    config_lib.store(Config(seed=2), tmp_path, ran=False)
    assert stored() == 1
    config_lib.store(Config(seed=2), tmp_path, ran=True)
    assert stored() == 2


def test_an_unknown_config_name_suggests_the_nearest():
    registry = {"digits": Config(), "fashion_mnist": Config(dataset="fashion_mnist")}
    assert config_lib.select(registry, "digits") == Config()
    with pytest.raises(config_lib.ConfigError, match="'digit'. Did you mean digits. There are: d"):
        config_lib.select(registry, "digit")


@settings(deadline=None)
@given(
    st.builds(
        Config,
        seed=st.integers(),
        dataset=st.text(),
        widths=st.lists(st.integers()).map(tuple),
        limit=st.none() | st.integers(),
        training=st.builds(Training, learning_rate=st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_json_there_and_back(config):
    assert config_lib.from_dict(Config, json.loads(config_lib.to_json(config))) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sede": 1}, "no field 'sede'. Did you mean seed?"),
        ({"training": {"step": 1}}, "no field 'training.step'. Did you mean steps?"),
        ({"seed": "1"}, "'seed' takes an integer, not '1'"),
        ({"seed": True}, "'seed' takes an integer, not True"),
        ({"training": {"learning_rate": None}}, "'training.learning_rate' takes a number"),
        ({"training": 3}, "'training' takes"),
    ],
)
def test_from_dict_refuses(values, message):
    with pytest.raises(config_lib.ConfigError) as error:
        config_lib.from_dict(Config, values)
    assert message in str(error.value)


def test_from_dict_names_a_missing_field():
    cls = dataclasses.make_dataclass("Needs", [("size", int)], frozen=True)
    with pytest.raises(config_lib.ConfigError, match="'size' is missing"):
        config_lib.from_dict(cls, {})


def test_diff_names_the_fields():
    now = dataclasses.replace(Config(), seed=4, training=Training(steps=9))
    before = config_lib.to_dict(Config(seed=3)) | {"old": 1}
    assert config_lib.diff(before, config_lib.to_dict(now)) == [
        "seed: 3 (checkpoint) / 4 (now)",
        "training.steps: 300 (checkpoint) / 9 (now)",
        "old: 1 (checkpoint) / absent (now)",
    ]


def test_pretty_has_a_line_for_each_field():
    lines = config_lib.pretty(Config()).splitlines()
    assert len(lines) == 10
    assert "  training.steps          300" in lines


BINARY = '''
    """Does a thing.

    Usage: python -m thing --config=small --workdir=DIR
    """
    import dataclasses
    from absl import app, logging
    from experiments import config as config_lib

    @dataclasses.dataclass(frozen=True)
    class Config:
        seed: int = 0

    CONFIGS = {"small": Config(), "large": Config(1)}

    def main(argv):
        config, workdir = config_lib.from_flags(CONFIGS)
        logging.info("too much")
        logging.warning("heed")
        print(workdir)
        print(config_lib.pretty(config))

    config_lib.define_flags(CONFIGS)
    app.run(main)
'''


@pytest.mark.parametrize(
    ("name", "workdir", "assignments", "message"),
    [
        ("small", None, [], "--workdir is missing"),
        (None, "w", [], "--config is missing. It is one of: small, large"),
        ("small", "w", ["seed=-1"], "seed is -1: at least 0"),
        ("small", "w", ["sed=1"], "Did you mean seed?"),
    ],
)
def test_wrong_flags_end_in_a_message(monkeypatch, name, workdir, assignments, message):
    @dataclasses.dataclass(frozen=True)
    class Checked:
        seed: int = 0

        def __post_init__(self):
            if self.seed < 0:
                raise ValueError(f"seed is {self.seed}: at least 0")

    given_flags = types.SimpleNamespace(config=name, workdir=workdir, set=assignments)
    monkeypatch.setattr(config_lib.flags, "FLAGS", given_flags)
    with pytest.raises(app.UsageError) as error:
        config_lib.from_flags({"small": Checked(), "large": Checked(1)})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--config=large", "--workdir=w", "--set", "seed=3"], 0, ["w", "seed  3", "heed"]),
        (["--config=smal", "--workdir=w"], 1, ["Did you mean small? There are: small, large"]),
        (["--help"], 1, ["Usage: python -m thing", "--config: Name of the config: small, large"]),
    ],
    ids=["set", "unknown", "help"],
)
def test_the_flags_of_a_binary(tmp_path, arguments, code, expected):
    binary = tmp_path / "thing.py"
    binary.write_text(textwrap.dedent(BINARY).lstrip())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(binary), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert "Traceback" not in output and "too much" not in output
    for part in expected:
        assert part in output
