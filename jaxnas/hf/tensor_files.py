"""Files of tensors: one model.safetensors, or several with an index.

Tensors are read and written one at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import safetensors

from jaxnas import files

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class Tensors:
    """The tensors of a folder, which are read when they are asked for.

    Attributes:
      shapes: of all tensors, by name.
    """

    def __init__(self, folder: pathlib.Path):
        """Opens the files.

        Raises:
          ValueError: files that are missing or damaged, or an index that is not one of their tensors.
        """
        self._stack = contextlib.ExitStack()
        self._file_of: dict[str, safetensors.safe_open] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in _paths(folder):
            try:
                opened = self._stack.enter_context(safetensors.safe_open(path, "np"))
                for name in opened.keys():
                    self.shapes[name] = tuple(opened.get_slice(name).get_shape())
                    self._file_of[name] = opened
            except (safetensors.SafetensorError, OSError) as error:
                self.close()
                raise ValueError(f"{path} is no safetensors file, or it is damaged: {error}.") from error

    def read(self, name: str) -> np.ndarray:
        """One tensor; ValueError for another dtype than float32, float16 and bfloat16."""
        try:
            found = self._file_of[name].get_tensor(name)
        except (safetensors.SafetensorError, TypeError, AttributeError) as error:
            raise ValueError(f"{name} can't be read: {error}.") from error
        if found.dtype.name not in _DTYPES:
            raise ValueError(
                f"{name} has the dtype {found.dtype.name}, expected one of {', '.join(_DTYPES)}."
            )
        return found

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _paths(folder: pathlib.Path) -> list[pathlib.Path]:
    if (folder / WHOLE).exists():
        return [folder / WHOLE]
    if not (folder / INDEX).exists():
        found = sorted(path.name for path in folder.iterdir())
        raise ValueError(
            f"{folder} has neither {WHOLE} nor {INDEX}; it has {', '.join(found[:8]) or 'nothing'}. "
            "Weights of PyTorch (pytorch_model.bin) become safetensors with transformers' save_pretrained."
        )
    index = files.read_json(folder / INDEX)
    places = index.get("weight_map") if isinstance(index, Mapping) else None
    if not isinstance(places, Mapping) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"{folder / INDEX} has no weight_map from tensors to files.")
    names = sorted(set(places.values()))
    if outside := [name for name in names if name != os.path.basename(name)]:
        raise ValueError(f"{folder / INDEX} names {', '.join(outside)}, expected files of its own folder.")
    if lost := [name for name in names if not (folder / name).exists()]:
        raise ValueError(f"{folder / INDEX} names files that are not there: {', '.join(lost)}.")
    return [folder / name for name in names]


def write(
    path: pathlib.Path, tensors: Mapping[str, tuple[tuple[int, ...], np.dtype, Callable[[], np.ndarray]]]
) -> None:
    """Writes a safetensors file, one tensor after another; a reader sees the old file or the whole new one.

    Args:
      path: of the file.
      tensors: by name, the shape, the dtype, and a function that makes the tensor when its turn comes.

    Raises:
      ValueError: a dtype that is not float32, float16 or bfloat16.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    # As the safetensors library orders them: wide dtypes first, so that all are aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name][1].itemsize, name))
    end = 0
    for name in order:
        shape, dtype, _ = tensors[name]
        if dtype.name not in _DTYPES:
            raise ValueError(f"{name} has the dtype {dtype.name}, expected one of {', '.join(_DTYPES)}.")
        start, end = end, end + dtype.itemsize * int(np.prod(shape))
        header[name] = {"dtype": _DTYPES[dtype.name], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with files.replacing(path, end) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(np.ascontiguousarray(tensors[name][2]()).reshape(-1).view(np.uint8).data)
