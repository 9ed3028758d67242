"""The floors of the house: a room imports only from floors below its own, and from none beside it."""

import ast
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
FLOORS = (
    ("files", "choice", "checks", "display", "executors"),
    ("counting", "option_values", "processes"),
    ("space",),
    ("spaces", "data", "search", "predictors", "tabular", "elastic"),
    ("inputs", "products", "tensors", "trackers"),
    ("annotations", "axes"),
    ("network",),
    ("calibration",),
    ("testing",),
    ("transform",),
    ("supernets",),
    ("cost", "subnet"),
    ("weights",),
    ("latency", "artifacts", "hf", "nnx", "optuna", "evosax", "proxies"),
    ("onnx",),
    ("tasks",),
    ("recipes",),
    ("training",),
    ("report",),
    ("runs",),
    ("experiments",),
    ("benchmarks", "tools"),
)
SHARED = ("layers", "schema")  # of the networks in `supernets`
TOP = ("benchmarks", "tools")  # these and `experiments` take names from the package itself
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "jaxnas" else parts[0]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        package, *rest = (node.module or "").split(".")
        if package in TOP:
            yield package, node.lineno
        elif package == "jaxnas":
            for name in [rest[0]] if rest else [alias.name for alias in node.names]:
                yield name, node.lineno


def test_a_room_imports_only_from_floors_below():
    files = [path for name in ("jaxnas", *TOP) for path in (ROOT / name).rglob("*.py")]
    assert len(files) > 80
    rooms = {path: room_of(path) for path in files}
    assert set(rooms.values()) - {"__init__"} == set(FLOOR)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {other}"
        for path, own in rooms.items()
        if own != "__init__"  # the package gathers names
        for other, line in imported(path)
        if other != own
        and (other in FLOOR or own not in (*TOP, "experiments"))
        and FLOOR[other] >= FLOOR[own]
    ]
    assert not wrong


def test_a_wing_of_supernets_imports_from_no_other():
    """A wing is the package, or the file, of one system; several share the files of `SHARED` alone."""
    house = ROOT / "jaxnas" / "supernets"
    for path in house.rglob("*.py"):
        own, *_ = path.relative_to(house).with_suffix("").parts
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = [f"{node.module}.{alias.name}".split(".") for node in nodes for alias in node.names]
        used = {name[2] for name in names if name[:2] == ["jaxnas", "supernets"]}
        assert own == "__init__" or used <= {own, *SHARED}, path


def test_tests_mirror_the_packages():
    def folders(path):
        return {path.name for path in path.iterdir() if path.is_dir()} - {"__pycache__"}

    for part in ("", "supernets"):
        assert folders(ROOT / "tests" / part) == folders(ROOT / "jaxnas" / part)


def test_importing_the_library_loads_no_laboratory():
    """And every package is an attribute of it, imported when it is first used."""
    code = """
import sys, jaxnas
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("jaxnas.")}
print(*loaded & set(jaxnas._LATER), *{"orbax", "sklearn", "tensorflow_datasets"} & set(sys.modules))
for name in jaxnas._LATER:
    assert getattr(jaxnas, name).__name__ == f"jaxnas.{name}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
