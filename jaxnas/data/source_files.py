"""Files of a user: plain or compressed bytes, and text in a given encoding."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import pathlib
import zipfile
import zlib

from jaxnas import files


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file, plain or compressed by gzip or xz or as the one member of a zip archive.

    The content decides whether and how it is compressed, not the name.

    Raises:
      ValueError: an empty or damaged file, or an archive of several files.
    """
    data = files.as_path(path).read_bytes()
    size = len(data)
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        elif data[:6] == b"\xfd7zXZ\x00":
            data = lzma.decompress(data)
        elif data[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
                if len(members) != 1:
                    raise ValueError(f"{path} holds {len(members)} files, expected one; unpack it.")
                data = archive.read(members[0])
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: truncated or corrupt, {size} bytes ({error}). Copy it again.") from error
    if not data:
        raise ValueError(f"{path} is empty. Copy it again.")
    return data


def decode(path: str | os.PathLike, data: bytes, encoding: str = "utf-8") -> str:
    """Returns the bytes of a file as text, without a byte order mark.

    Args:
      path: for messages.
      data: content of the file.
      encoding: as Python names it.

    Raises:
      ValueError: an unknown encoding, or bytes that it does not have.
    """
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except LookupError as error:
        raise ValueError(f"encoding is {encoding!r}, unknown to Python; try 'latin-1'.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: expected text in {encoding}, found the byte {data[error.start]:#04x} at offset "
            f"{error.start:,}. Give its encoding, such as 'latin-1' or 'utf-16'."
        ) from error


def read_text(path: str | os.PathLike, encoding: str = "utf-8") -> str:
    """Reads a text, plain or compressed; see `read_bytes` and `decode`.

    Raises:
      FileNotFoundError: no such file, or a folder.
    """
    path = files.as_path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected a file.")
    return decode(path, read_bytes(path), encoding)


def find_source(folder: str | os.PathLike, *names: str) -> pathlib.Path:
    """Finds the first of some files in a folder or its subfolders, also compressed (.xz, .gz, .zip).

    Raises:
      FileNotFoundError: there is none.
    """
    root = pathlib.Path(folder)
    for place in (root, *sorted(path for path in root.glob("*") if path.is_dir())):
        for name in names:
            for suffix in ("", ".xz", ".gz", ".zip"):
                if (path := place / (name + suffix)).is_file():
                    return path
    raise FileNotFoundError(f"{folder} has no file {' or '.join(names)}.")
