"""Files are whole or not there, whoever is killed when; JSON says what is wrong with it."""

import contextlib
import functools
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

from jaxnas import files

ROOT = pathlib.Path(__file__).parents[1]


class Killed(BaseException):
    """What a process that ends there would not come back from."""


@contextlib.contextmanager
def killed_at(stop, monkeypatch):
    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files.os, stop, killed)
        yield


def test_plain_values():
    value = {
        "a": (1, np.float32(0.5), jnp.int32(2)),
        "b": np.array([[1.0, np.nan]]),
        "c": jnp.array([1.5, jnp.inf], jnp.bfloat16),
        "d": [True, np.bool_(False), None, float("-inf"), "text"],
    }
    plain = {"a": [1, 0.5, 2], "b": [[1.0, None]], "c": [1.5, None], "d": [True, False, None, None, "text"]}
    assert files.plain(value) == plain
    refusals.check(
        (lambda: files.plain([object()]), TypeError, "object"),
        (lambda: files.plain({1: 2}), TypeError, "keys", "1"),
    )


def test_a_digest_is_of_values_and_not_of_who_holds_them():
    array = np.arange(6, dtype=np.int32)
    assert files.digest({"a": array, "b": "x"}) == files.digest({"b": "x", "a": jnp.asarray(array)})
    alike = array, [array], (array, None), (None, array)
    others = *alike, array[::2], array.view(np.float32), array.astype(np.int64), array.reshape(2, 3)
    texts = [np.array([str(i + (i == place)) for i in range(3000)], object) for place in (-1, 1500)]
    others += tuple(texts)
    assert len(set(map(files.digest, others))) == len(others)


def test_a_corrupt_json_file_is_named(tmp_path):
    def reading(content, name):
        def read():
            (tmp_path / "result.json").write_bytes(content)
            files.read_json(tmp_path / "result.json")

        return read, ValueError, "result.json", name

    refusals.check(
        reading(b"", "empty"),
        reading(b'{"a": 1,\n"b"', "line 2"),
        reading(b"[" * 100_000, "nested"),
        (lambda: files.read_json(tmp_path / "results.json"), FileNotFoundError, "mean result.json"),
    )


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a file [1]"
    for write, old, new, read in (
        (files.write_bytes, b"old", b"new", pathlib.Path.read_bytes),
        (files.write_text, "old", "n\u00e9w\n", lambda path: path.read_bytes().decode()),
        (files.write_json, {"a": 1}, {"a": [2, "\u00e9"]}, files.read_json),
    ):
        for stop in ("fsync", "replace"):  # Before the bytes are on disk; before they are in their place.
            write(path, old)
            with killed_at(stop, monkeypatch):
                write(path, new)
            assert read(path) == old
            write(path, new)
            assert read(path) == new
            assert os.listdir(tmp_path) == [path.name]


def test_what_a_killed_writer_left_goes_after_a_day(tmp_path):
    """Not before: another process may be writing it."""
    path, left, fresh = (tmp_path / name for name in ("a[1]", ".a[1].tmp-1234", ".a[1].tmp-5678"))
    for leftover in (left, fresh, tmp_path / ".a1.tmp-1234"):
        leftover.write_bytes(b"half")
    kept = [".a1.tmp-1234", ".a[1].tmp-5678", "a[1]"]
    os.utime(left, (time.time() - 90_000,) * 2)
    files.write_bytes(path, b"whole")
    assert sorted(os.listdir(tmp_path)) == kept
    (left / "inner").mkdir(parents=True)
    os.utime(left, (time.time() - 90_000,) * 2)
    with files.temporary_folder(path) as folder:
        assert folder.parent == tmp_path and not os.listdir(folder)
    assert sorted(os.listdir(tmp_path)) == kept
    assert files.is_leftover(fresh) and not files.is_leftover(path)


def test_a_full_disk_says_what_was_needed_and_what_is_kept(tmp_path):
    """Files may not grow beyond a limit here, as on a disk that is full."""
    path, lines, room = tmp_path / "file", tmp_path / "lines.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    files.write_bytes(path, b"old")
    files.append_lines(lines, [{"a": 1}])
    cases = (
        (files.write_bytes, path, b"x" * 5000, "5,000 bytes", "The old file is kept"),
        (files.write_bytes, tmp_path / "new", b"x" * 5000, "5,000 bytes", "Nothing was written"),
        (files.append_lines, lines, [{"a": "x" * 4992}], "5,002 bytes", "The lines before are kept"),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, room[1]))
    try:
        for write, where, what, *names in cases:
            call = functools.partial(write, where, what)
            refusals.check((lambda call=call: call(), OSError, str(where), "File too large", *names))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert path.read_bytes() == b"old" and files.read_lines(lines) == [{"a": 1}]
    assert sorted(os.listdir(tmp_path)) == ["file", "lines.jsonl"]


WRITE_FOREVER = """
import sys
from jaxnas import files
for i in range(10**9):
    files.write_bytes(sys.argv[1], bytes([65 + i % 26]) * 100_000)
    if i == 5: print("writing", flush=True)
"""


def test_several_processes_write_one_file_and_are_killed(tmp_path):
    path, command = tmp_path / "file", [sys.executable, "-c", WRITE_FOREVER, str(tmp_path / "file")]
    writers = [subprocess.Popen(command, stdout=-1, stderr=-1, cwd=ROOT) for _ in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == b"writing\n"
    contents = [path.read_bytes() for _ in range(100)]
    for writer in writers:
        assert writer.poll() is None
        writer.kill()
        writer.communicate()
    for content in (*contents, path.read_bytes()):
        assert len(content) == 100_000 and len(set(content)) == 1


def test_a_folder_is_replaced_complete_or_not_at_all(tmp_path, monkeypatch):
    folder = tmp_path / "runs [1]" / "subnet"
    old, new = {"a": b"1", "b": b"2"}, {"a": b"3", "c": b"4"}

    def content():
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    for stop in ("fsync", "replace"):
        files.replace_folder(folder, old, known=["c"])
        (folder / ".a.tmp-1234").write_bytes(b"left by a killed process")
        with killed_at(stop, monkeypatch):
            files.replace_folder(folder, new, known=["b"])
        assert content().items() >= old.items()
        files.replace_folder(folder, new, known=["b"])
        assert content() == new and os.listdir(folder.parent) == ["subnet"]
    (folder / "notes.txt").write_text("mine")
    refusals.check(
        (lambda: files.replace_folder(folder, old, known=["c"]), FileExistsError, "notes.txt"),
        (lambda: files.replace_folder(folder / "a", old), FileExistsError, str(folder / "a")),
    )
    assert content() == new | {"notes.txt": b"mine"}


def test_a_folder_is_committed_once(tmp_path):
    final = tmp_path / "data" / "1.0.0"
    for name, left in (("first", []), ("second", ["second"])):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "file").write_text(name)
        files.commit_folder(tmp_path / name, final)
        assert (final / "inner" / "file").read_text() == "first"
        assert sorted(os.listdir(tmp_path)) == ["data", *left]
    shutil.rmtree(final)
    final.write_text("in the way")
    with pytest.raises(OSError):
        files.commit_folder(tmp_path / "second", final)


def test_damaged_arrays_are_named(tmp_path):
    path = tmp_path / "part.npz"
    arrays = {"codes": np.arange(12).reshape(3, 4), "seconds": np.float64(0.5), "none": np.zeros((0, 2))}
    files.write_arrays(path, arrays)
    got = files.read_arrays(path)
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), got, arrays)
    whole = path.read_bytes()
    np.save(tmp_path / "one.npy", np.ones(3))
    flipped = bytearray(whole)
    flipped[whole.index(b"codes") + 30] ^= 4
    for content in (b"", whole[:100], whole[:-1], bytes(flipped), (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(content)
        refusals.check((lambda: files.read_arrays(path), ValueError, "part.npz", f"{len(content)} bytes"))


def test_lines_end_where_they_are_cut(tmp_path):
    path = tmp_path / "history.jsonl"
    assert files.read_lines(path) == []
    files.truncate_lines(path, 3)
    records = [{"index": i, "note": "\u2028\r\n"} for i in range(4)]
    files.append_lines(path, records[:1])
    files.append_lines(path, records[1:])
    assert files.read_lines(path, ("index",)) == records
    whole = path.read_bytes()
    for cut in (1, 5):  # A killed writer leaves a part of a line.
        path.write_bytes(whole[:-cut])
        assert files.read_lines(path, ("index",)) == records[:3]
        files.append_lines(path, records[3:])
        assert path.read_bytes() == whole
    for line, message in (("[1]", "object"), ("{}", "'index'"), ("x", "JSON")):
        path.write_text('{"index": 0}\n' + line + '\n{"index": 2}\n')
        where = "line 2", "history.jsonl", message
        refusals.check((lambda: files.read_lines(path, ("index",)), ValueError, *where))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    files.append_lines("~/lines.jsonl", [{"a": 1}])
    files.write_text(pathlib.Path("~", "text.txt"), "text")
    assert files.as_path("~") == tmp_path == files.absolute("~")
    assert files.as_path("~nobody/x") == pathlib.Path("~nobody/x")
    assert {path.name for path in tmp_path.iterdir()} == {"lines.jsonl", "text.txt"}
