"""Files that a user has: plain or compressed, and text in an encoding that is said."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterable

from jaxnas import files

_COMPRESSIONS = ("", ".xz", ".gz", ".zip")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file, plain or compressed by gzip or xz or as the one member of a zip archive.

    Args:
      path: the file; the content decides whether and how it is compressed, not the name.

    Returns:
      What it holds, not empty.

    Raises:
      ValueError: empty, truncated or corrupt, or an archive of several files; the message says
        which file and what was found.
    """
    data = files.as_path(path).read_bytes()
    size = len(data)
    kind = "file"
    try:
        if data[:2] == b"\x1f\x8b":
            kind = "gzip file"
            data = gzip.decompress(data)
        elif data[:6] == b"\xfd7zXZ\x00":
            kind = "xz file"
            data = lzma.decompress(data)
        elif data[:4] == b"PK\x03\x04":
            kind = "zip archive"
            data = _only_member(path, data)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: truncated or corrupt {kind} of {size} bytes ({error}); copy it again"
        ) from error
    if not data:
        raise ValueError(f"{path}: expected some content, found an empty {kind}; copy it again")
    return data


def _only_member(path: str | os.PathLike, data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            names = ", ".join(member.filename for member in members[:5])
            raise ValueError(
                f"{path}: expected a zip archive of one file, found {len(members)} ({names}); unpack"
                " it and name the folder with its files"
            )
        return archive.read(members[0])


def decode(path: str | os.PathLike, data: bytes, encoding: str = "utf-8") -> str:
    """Returns the bytes of a file as text, without a byte order mark.

    Args:
      path: the file, for messages.
      data: what it holds.
      encoding: as Python names it.

    Raises:
      ValueError: no such encoding, or bytes that it does not have; the message says which file and byte.
    """
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except LookupError as error:
        raise ValueError(f"encoding is {encoding!r}, which Python does not know; try 'latin-1'") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: expected text in {encoding}, found the byte {data[error.start]:#04x} at offset"
            f" {error.start:,} ({error.reason}); give its encoding, as encoding='latin-1' or 'utf-16', or"
            " copy the file again"
        ) from error


def find_source(folder: str | os.PathLike, names: tuple[str, ...], where: str) -> pathlib.Path:
    """Returns the path of the first file that is there, also with .xz, .gz or .zip after its name.

    Args:
      folder: where to look, and behind its own files in the folders that are directly in it.
      names: the names the file may have.
      where: a sentence that says where the file is had.

    Raises:
      FileNotFoundError: none of these is in the folder.
    """
    root = pathlib.Path(folder)
    for place in (root, *sorted(path for path in root.glob("*") if path.is_dir())):
        for name in names:
            for suffix in _COMPRESSIONS:
                if (path := place / (name + suffix)).is_file():
                    return path
    raise FileNotFoundError(
        f"{folder} has no file {' or '.join(names)}, plain or with .xz, .gz or .zip after its name. {where}"
    )


def check_there(folder: pathlib.Path, names: Iterable[str], where: str) -> None:
    """Raises FileNotFoundError if some of the files are not in a folder; `where` says how to get them."""
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{folder} has no file {' and no '.join(missing)}. {where}")


def read_text(path: str | os.PathLike, encoding: str = "utf-8") -> str:
    """Reads a text, plain or compressed; see `read_bytes` and `decode`.

    Raises:
      FileNotFoundError: no such file, or a folder.
      ValueError: as `read_bytes` and `decode`.
    """
    path = files.as_path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected a file.")
    return decode(path, read_bytes(path), encoding)
