"""An objective is known by its code: what changes it, and what does not."""

import functools

import jax

from jaxnas.search.history import digest_of

SOURCE = """
EPOCHS = 3

def train(values):
    return values["width"] * EPOCHS

def objective(values, rate=0.1):
    'Trains.'
    return train(values) + rate if "c" in {"c", "d"} else 0

class Objective:
    def __init__(self, epochs=1):
        self.epochs, self.calls = epochs, 0
    def __call__(self, values):
        self.calls += 1
        return self.epochs * objective(values)
    def method(self, values):
        return self(values)

def scaled(scale):
    calls = 0
    def objective(values):
        nonlocal calls
        calls += 1
        return scale * train(values)
    return objective
"""
CHANGES = {
    "EPOCHS = 3": "EPOCHS = 4",
    '["width"]': '["depth"]',
    "* EPOCHS": "+ EPOCHS",
    "rate=0.1": "rate=0.2",
    "+ rate if": "- rate if",
    '{"c", "d"}': '{"c", "e"}',
    "return train(values) +": "return abs(train(values)) +",
}


def made(old="", new=""):
    assert old in SOURCE
    module = {"__name__": "own"}
    exec(SOURCE.replace(old, new), module)
    return module


def test_a_digest_changes_with_the_code_and_not_with_what_is_said_of_it_or_counted():
    module, objective = made(), made()["objective"]
    same = (
        jax.jit(objective),
        made("'Trains.'", "'Trains a network.'")["objective"],
        made("\n    return train", "\n\n    # As it is.\n    return train")["objective"],
    )
    assert {digest_of(one) for one in same} == {digest_of(objective)}
    scaled = module["scaled"](2)
    before = digest_of(scaled)
    assert scaled({"width": 1}) == 6 and digest_of(scaled) == before
    called = module["Objective"]()
    before = digest_of(called)
    assert called({"width": 1}) > 3 and called.calls == 1 and digest_of(called) == before
    others = [made(*change)["objective"] for change in CHANGES.items()]
    others += [module["Objective"](), made("EPOCHS = 3", "EPOCHS = 4")["Objective"](), module["Objective"](2)]
    others += [module["Objective"](2).method, module["Objective"](3).method]
    others += [scaled, module["scaled"](3), *(functools.partial(objective, rate=rate) for rate in (1, 2))]
    assert len({digest_of(one) for one in (objective, *others)}) == len(others) + 1


def test_what_is_not_written_in_python_has_a_name_alone():
    assert digest_of(abs) != digest_of(float) != digest_of(functools.partial(abs))
