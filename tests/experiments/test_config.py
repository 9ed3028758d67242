"""Configs: every field of every object can be set, wrong ones are explained, files of a user's own work."""

import dataclasses
import functools
import json
import pathlib

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from small_tasks import perceptron, task_of

from jaxnas import Space, runs, spaces
from jaxnas.experiments import config as config_lib
from jaxnas.experiments import session as session_lib
from jaxnas.experiments.config import Config, ConfigError
from jaxnas.experiments.configs import CONFIGS
from jaxnas.recipes import Fixed, Uniform
from jaxnas.report import result
from jaxnas.runs.searching import Found
from jaxnas.tasks import Images
from jaxnas.training import Training

DIGITS, GUMBEL = CONFIGS["autoformer_digits"], CONFIGS["autoformer_digits_gumbel"]
WORDS, DEEP = CONFIGS["wikitext2_small"], CONFIGS["wikitext2_deep"]


def get(config, name):
    for part in name.split("."):
        config = getattr(config, part)
    return config


def fields(config):
    """The lines of `pretty`: what stands for each field."""
    return dict(line.split(None, 1) for line in config_lib.pretty(config).splitlines())


def test_any_field_of_any_object_can_be_set():
    space = spaces.vit((8, 16), (1, 2), (1, 2), (1.0, 2.0))
    for config, assignment, value, *others in (
        (DIGITS, " seed = 3 ", 3),
        (DIGITS, "task.mixup=1", 1.0),
        (DIGITS, "task.data=a=b", "a=b"),
        (DIGITS, "network.dtype=bfloat16", jnp.bfloat16),
        (DIGITS, "network.form=switch", "switch"),
        (DIGITS, "training.batch_size=none", None),
        (DIGITS, "search.method.strategy.evaluations=100", 100),
        (DIGITS, "search.latency=2", 2),
        (DEEP, "search.method.steps=(10, 20,30)", (10, 20, 30)),
        (DEEP, "search.method.steps=7", (7,)),
        (GUMBEL, "recipe.cost=none", None, "recipe.cost_weight=0"),
        (WORDS, "network.cutoffs=[10,20]", (10, 20)),
        (WORDS, "network.space=par(blocks=6)", spaces.par(6), "recipe.reference=none"),
        (DIGITS, "network.space=vit((8, 16), (1, 2), (1, 2), (1.0, 2.0))", space),
    ):
        changed = config_lib.override(config, [*others, assignment])
        name = assignment.partition("=")[0].strip()
        assert get(changed, name) == value and type(get(changed, name)) is type(value)
        before, after = fields(config), fields(changed)
        also = {other.partition("=")[0] for other in others}
        assert {key for key in after if before[key] != after[key]} <= {name, *also}
        assert config_lib.to_dict(changed) != config_lib.to_dict(config)


def test_an_object_is_set_by_its_class_and_then_by_its_fields():
    changed = config_lib.override(DIGITS, ["search.method.steps=2,4", "search.method=trials"])
    assert changed.search.method == runs.Trials(steps=(2, 4))
    assert config_lib.override(changed, ["search.method=none"]).search.method is None


def test_what_changes_no_weights_may_differ_when_a_run_goes_on():
    again = config_lib.override(DIGITS, ["network.remat=true", "training.prefetch=0", "search.limit=3"])
    assert session_lib.deciding_of(again) == session_lib.deciding_of(DIGITS)
    other = config_lib.override(DIGITS, ["network.drop_path_rate=0.3"])
    assert session_lib.deciding_of(other) != session_lib.deciding_of(DIGITS)


def test_later_assignments_win_and_the_original_stays():
    before = config_lib.to_dict(DIGITS)
    assert config_lib.override(DIGITS, ["seed=1", "training.steps=2000", "seed=4"]).seed == 4
    assert config_lib.to_dict(DIGITS) == before
    # Checked when all are there: neither of these is possible without the other.
    config_lib.override(DIGITS, ["training.warmup_steps=1500", "training.steps=2000"])


def test_a_wrong_assignment_says_what_was_expected():
    def case(config, assignment, *names):
        return lambda: config_lib.override(config, [assignment]), ValueError, *names

    refusals.check(
        case(DIGITS, "training.stesp=3", "'training.stesp'", "'training.steps'"),
        case(WORDS, "steps=3", "'training.steps'", "'retraining.steps'"),
        case(DIGITS, "seeds=3", "'seed'", "'task.seed'"),
        case(DIGITS, "network.parent=3", "'network.parent'"),
        case(DIGITS, "search.method.strategy.space=par(6)", "'search.method.strategy.space'"),
        case(DIGITS, "training=3", "training.steps", "training.batch_size"),
        case(DIGITS, "seed", "name=value"),
        case(DIGITS, "seed=1.5", "seed", "integer", "'1.5'"),
        case(DIGITS, "task.flip=1", "task.flip", "true or false", "'1'"),
        case(DIGITS, "training.learning_rate=fast", "number", "'fast'"),
        case(DIGITS, "training.steps=0", "training.steps is 0"),
        case(DIGITS, "training.clip=x", "training.clip", "none", "'x'"),
        case(DIGITS, "network.dtype=int8", "network.dtype", "bfloat16", "'int8'"),
        case(DIGITS, "search.method=argmin", "search.method", "argmax"),
        case(DEEP, "search.method.steps=1,a", "1,1", "'1,a'"),
        case(DIGITS, "recipe=relaxed", "recipe.distill"),
        case(WORDS, "architectures=x", "architectures"),
        case(DIGITS, "network.space=par(open('x'))", "par"),
        case(DIGITS, "network.space=pra(6)", "'pra'", "'par'"),
        case(DIGITS, "network.space=vit(1)", "3"),
        case(DIGITS, "network.space=par(6)", "ViT"),
        case(DIGITS, 'network.space=autoformer("big")', "'tiny'", "'big'"),
        case(GUMBEL, "recipe.order=jiont", "'joint'"),
        case(GUMBEL, "recipe.cost=none", "cost"),
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_plain_json_with_a_line_for_each_field(name):
    config = CONFIGS[name]
    plain = config_lib.to_dict(config)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["task"]["type"] == type(config.task).__name__ and plain["name"] == name
    if not config.pretrained:  # a checkpoint's space is known when it is read
        assert Space.from_json(plain["network"]["space"]) == config.network.space

    def count(value):
        objects = dataclasses.is_dataclass(value) and not isinstance(value, (type, Space))
        names = config_lib.field_names(value) if objects else ()
        return sum(count(getattr(value, name)) for name in names) if names else 1

    lines = config_lib.pretty(config).splitlines()
    assert len(lines) == count(config) == len(fields(config)) and all(line.startswith("  ") for line in lines)
    assert fields(config)["training.steps"] == str(config.training.steps)
    assert "object at 0x" not in config_lib.pretty(config) + json.dumps(plain)
    # Every field that is a plain value can be set to what it is.
    values = {field: get(config, field) for field in fields(config) if field != "name"}
    plain_ones = [f"{name}={x}" for name, x in values.items() if type(x) in (int, float, bool, str)]
    assert config_lib.to_dict(config_lib.override(config, plain_ones)) == plain


def test_arrays_and_functions_are_told_apart_in_json():
    zeros, ones = (config_lib.to_dict(x) for x in (np.zeros(100), np.ones(100)))
    assert zeros != ones and zeros.startswith("float64[100] sha256:")
    assert config_lib.to_dict({"f": spaces.par, "d": jnp.bfloat16}) == {"f": "par", "d": "bfloat16"}
    fixed = config_lib.to_dict(Fixed({"hidden": jnp.array([1, 0])}))
    assert fixed == {"type": "Fixed", "arch": {"hidden": [1, 0]}, "distill": None}


def test_a_config_needs_a_network_with_a_space_a_search_that_begins_and_a_known_name():
    common = dict(name="mine", task=Images(data="digits"), training=Training(steps=3))
    own = Config(network=perceptron(), **common)
    assert isinstance(own.recipe, Uniform) and own.alone == own.training
    assert Config(network=perceptron(), retraining=Training(steps=9), **common).alone.steps == 9
    assert config_lib.find(CONFIGS, "autoformer_digits") is DIGITS
    refusals.check(
        (lambda: Config(network=nn.Dense(3), **common), ConfigError, "'mine'", "Dense", "`space`"),
        (lambda: config_lib.find(CONFIGS, "autoformer_digit"), ConfigError, "'autoformer_digits'"),
        (lambda: config_lib.find(CONFIGS, "mnistt"), ConfigError, "'mnistt'", "fashion_mnist"),
        (lambda: config_lib.find(CONFIGS, "zzz"), ConfigError, "'zzz'"),
    )


# ---- Files of a user's own.

HEAD = """
from __future__ import annotations

import dataclasses
import flax.linen as nn
from jaxnas.experiments import Config
from jaxnas import Choice, Space, tasks
from jaxnas.training import Training

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(tasks.Images):
    data: str = "digits"
    power: float | None = None

class Network(nn.Module):
    space: Space
    sizes: tuple[int, ...] = (1, 2)

    def __call__(self, inputs, arch=None, *, train=False):
        return inputs

def make(name, steps=3):
    network = Network(Space(width=Choice(1, 2)))
    return Config(name=name, task=Mine(), network=network, training=Training(steps=steps))
"""


def write(folder, end):
    path = folder / "my_config.py"
    path.write_text(HEAD + end)
    return path


def test_a_file_of_a_users_own_works_as_a_name_does(tmp_path, monkeypatch):
    path = write(tmp_path, 'CONFIG = make("one")\nCONFIGS = {"two": make("two", 5)}\n')
    one = config_lib.find(CONFIGS, str(path))
    changed = config_lib.override(one, ["task.power=2", "network.sizes=3,4", "training.steps=7"])
    assert (changed.task.power, changed.network.sizes, changed.training.steps) == (2.0, (3, 4), 7)
    assert config_lib.to_dict(changed)["network"]["type"] == "Network" and one.name == "one"
    assert fields(changed)["task.power"] == "2.0"
    refused = lambda: config_lib.override(one, ["network.size=3"]), ConfigError, "did you mean 'network"
    refusals.check(refused)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("STEPS = 9\n")
    write(tmp_path, 'from beside import STEPS\nCONFIG = make("near", STEPS)\n')
    assert config_lib.find(CONFIGS, "my_config.py").training.steps == 9
    own = pathlib.Path(config_lib.__file__).parent / "configs" / "autoformer.py"
    assert config_lib.find(CONFIGS, f"{own}:autoformer_digits").name == "autoformer_digits"


def test_several_configs_are_found_by_their_names(tmp_path):
    two = 'make("two", 5)'
    for number, several in enumerate((f'(make("one"), {two})', f"[{two}]", two, f'{{"two": {two}}}')):
        (tmp_path / str(number)).mkdir()
        path = write(tmp_path / str(number), f"CONFIGS = {several}\n")
        assert config_lib.find(CONFIGS, f"{path}:two").training.steps == 5


def test_a_file_without_a_config_says_what_is_missing_or_where_it_fails(tmp_path):
    def case(number, end, name, *names):
        (tmp_path / str(number)).mkdir()
        path = write(tmp_path / str(number), end)
        last = len(path.read_text().splitlines())
        names = [one.format(next=last, path=path) for one in names]
        return lambda: config_lib.find(CONFIGS, f"{path}{name}"), ConfigError, *names

    cases = (
        ('CONFIGS = (make("one"), make("two"))\n', "", "one, two"),
        ('CONFIGS = {"a": make("one"), "b": make("one")}\n', ":a", "'one'"),
        ('CONFIGS = (make("one"), 3)\n', ":one", "{path}", "3"),
        ("pass\n", "", "CONFIG = Config("),
        ("CONFIG = 3\n", "", "CONFIG = Config("),
        ('CONFIGS = {"two": make("two")}\n', ":tow", "two"),
        ('CONFIG = make("one")\n', ":two", "'two'"),
        ("x = 1\n\n1 / 0\n", "", "line {next} of {path}", "`1 / 0`", "ZeroDivisionError"),
        ("x = (\n", "", "SyntaxError"),
        ("import no_such_module_here\n", "", "ModuleNotFoundError", "no_such_module_here"),
        ('CONFIG = make("x", 0)\n', "", "ValueError", "training.steps is 0"),
        ("raise SystemExit('no')\n", "", "SystemExit", "no"),
    )
    missing = tmp_path / "mine.py"
    refusals.check(
        *(case(number, *one) for number, one in enumerate(cases)),
        (lambda: config_lib.find(CONFIGS, str(missing)), ConfigError, str(missing)),
        (lambda: config_lib.find(CONFIGS, f"{missing}:two"), ConfigError, str(missing)),
    )


def test_settings_that_a_selection_would_ignore_and_names_that_are_taken_are_refused(tmp_path):
    task, net = task_of("images"), perceptron()
    small = net.space.smallest()
    found = Found(small, {"another": small}, ())

    def named(name):
        return lambda: dataclasses.replace(DIGITS, architectures={"mine": {}, name: {}}), ConfigError, name

    def compared(name):
        finish = functools.partial(runs.finish, task, net, {}, found, runs.Lab(tmp_path))
        return lambda: finish(named={name: small}), ValueError, name

    refusals.check(
        (lambda: runs.Search(most=9, most_share=0.5), ValueError, "search.most is 9", "most_share"),
        (lambda: runs.Pruning(at_once=True, tune_steps=3), ValueError, "tune_steps is 3", "at_once"),
        (lambda: runs.Search("strategy"), TypeError, "'strategy'", "ByStrategy"),
        *map(named, (*result.OWN_NAMES, "random:3")),
        *map(compared, (*result.OWN_NAMES, "random:3", "another")),
    )
