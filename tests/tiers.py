"""Tiers of the suite: quick (`make test`), full (`make test-all`, which CI runs) and nightly.

The tier of a test follows from what it reaches: a training, an evaluator, a whole search in one program, a
mesh, another process, an export or PyTorch makes it full, an object store or Ray nightly. What is divided by
hand are cases of a table (`cases`, `more`, `nightly`, `pairs`) and supernets of some size (the mark `more`).
"""

import inspect
import itertools
import pathlib
import types

import pytest

TIERS = ("quick", "full", "nightly")
_ROOT = str(pathlib.Path(__file__).parent)
# Names that a test, its fixtures or the helpers that they call refer to.
_FULL = {"fit", "prepare", "train_seeds", "make_evaluator", "calibrate", "scan", "export_subnet", "torch"}
_FULL |= {"make_scorer", "subprocess", "multiprocessing", "processes", "run_parallel", "runpy"}
_NIGHTLY = {"bucket", "ray_cluster"}


def more(*cases):
    """Further cases for `parametrize` and `fixture(params=...)`, which the quick tier leaves out."""
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.more) for c in cases]


def nightly(*cases):
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.nightly) for c in cases]


def cases(every, quick):
    """All cases of a table, of which the quick tier takes some."""
    return [case if case in quick else more(case)[0] for case in every]


def pairs(rows, columns, chosen=()):
    """All pairs of two tables: the first row, the first column and chosen pairs; the others are nightly."""
    rows, columns = list(rows), list(columns)
    every = [(row, column) for row in rows for column in columns]
    kept = [pair for pair in every if pair[0] == rows[0] or pair[1] == columns[0] or pair in chosen]
    return [*kept, *nightly(*(pair for pair in every if pair not in kept))]


def tier_of(item):
    fixtures = itertools.chain(*item._fixtureinfo.name2fixturedefs.values())
    names = _reached([item.function, *(one.func for one in fixtures)]) | set(item.fixturenames)
    if item.get_closest_marker("nightly") or names & _NIGHTLY:
        return "nightly"
    marked = item.get_closest_marker("more") or item.get_closest_marker("eight_devices")
    return "full" if marked or names & _FULL else "quick"


def _reached(functions):
    """All names in the code of functions, and of the functions of the tests that these refer to."""
    names, seen = set(), set()
    waiting = [(inspect.unwrap(function).__code__, function.__globals__) for function in functions]
    while waiting:
        code, scope = waiting.pop()
        if code in seen or not code.co_filename.startswith(_ROOT):
            continue
        seen.add(code)
        names.update(code.co_names)
        waiting += [(inner, scope) for inner in code.co_consts if isinstance(inner, types.CodeType)]
        named = [scope.get(name) for name in code.co_names]
        places = [scope, *(vars(one) for one in named if isinstance(one, types.ModuleType))]
        for name in code.co_names:
            for found in (place[name] for place in places if callable(place.get(name))):
                function = inspect.unwrap(found)
                if isinstance(function, types.FunctionType):
                    waiting.append((function.__code__, function.__globals__))
    return names
