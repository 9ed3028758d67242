"""Measures what the suite costs: ``pytest -p suite_cost``, then ``python tests/suite_cost.py FILE...``.

Each test, with the fixtures that it sets up, gets a line in the file that ``$SUITE_COST`` names (one for each
worker). Tracing, lowering and compiling are figures of JAX that exclude each other; `own` and `children` are
processor seconds of this process and of child processes that ended.
"""

import collections
import json
import os
import resource
import sys
import time

import pytest

_KINDS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_spans = []  # (start, seconds, kind, seconds without what is nested), in the order of their ends
_starts = []  # names of programs started


def _listen(event, seconds, **_):
    if kind := _KINDS.get(event):
        start, own = time.monotonic() - seconds, seconds
        while _spans and _spans[-1][0] >= start:
            inner = _spans.pop()
            own -= inner[1]
            _done[inner[2]] += inner[3]
            _counts[inner[2]] += 1
        _spans.append((start, seconds, kind, max(own, 0.0)))


_done, _counts = collections.Counter(), collections.Counter()


def pytest_configure(config):
    import jax

    jax.monitoring.register_event_duration_secs_listener(_listen)
    starts = ("subprocess.Popen", "os.fork")
    sys.addaudithook(lambda event, _: _starts.append(event) if event in starts else None)


def _now():
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.monotonic(), own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _done.clear(), _counts.clear(), _spans.clear(), _starts.clear()
    before = _now()
    result = yield
    wall, own, children = (after - past for after, past in zip(_now(), before, strict=True))
    for _, _, kind, seconds in _spans:
        _done[kind] += seconds
        _counts[kind] += 1
    line = dict(test=item.nodeid, wall=wall, own=own, children=children, starts=len(_starts))
    line |= {kind: _done[kind] for kind in _KINDS.values()} | {"programs": _counts["compile"]}
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    with open(f"{os.environ['SUITE_COST']}.{worker}", "a") as file:
        file.write(json.dumps(line) + "\n")
    return result


def main(paths):
    """Prints a table by file, dearest first, and the sums."""
    files = collections.defaultdict(collections.Counter)
    for path in paths:
        for text in open(path):
            line = json.loads(text)
            for name in (line.pop("test").split("::")[0], "all"):
                files[name].update(line | {"tests": 1})
    columns = ("wall", "own", "children", "trace", "lower", "compile", "programs", "starts", "tests")
    print("| file | " + " | ".join(columns) + " |\n|---" * 1 + "|---" * len(columns) + "|")
    for name, sums in sorted(files.items(), key=lambda pair: -pair[1]["own"] - pair[1]["children"]):
        print(f"| {name} | " + " | ".join(f"{sums[column]:.0f}" for column in columns) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
