"""Data in an object store are copied to this machine once, and read there."""

import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from jaxnas import data, files
from jaxnas.data import source_files, vectors
from jaxnas.data.images import load as load_images
from jaxnas.data.text import load_text
from tools import convert_data


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jaxnas" / "copies"


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_copy_is_made_once_and_anew_when_an_object_changes(bucket, store, cache, caplog):
    for name, content in (("a/one", b"1"), ("a/deep/two", b"22"), ("ab/three", b"333")):
        store.put(f"bucket/x/{name}", content)
    store.put("bucket/x/a/empty/", b"")  # What the console of the store makes for a folder.
    first = source_files.local_copy("gs://bucket/x/a")
    assert files_in(first) == {"one", "deep/two"}
    assert (first / "deep" / "two").read_bytes() == b"22" and first.name == "a"
    assert "Copying 2 objects of gs://bucket/x/a, 0.0 MB" in caplog.text
    caplog.clear()
    assert source_files.local_copy("gs://bucket/x/a/") == first and not caplog.text
    part = source_files.local_copy("gs://bucket/x", "a/deep")
    assert files_in(part) == {"a/deep/two"}
    assert source_files.local_copy("gs://bucket/x/ab/three").read_bytes() == b"333"
    store.put("bucket/x/a/one", b"9")  # As long as it was.
    second = source_files.local_copy("gs://bucket/x/a")
    assert (second / "one").read_bytes() == b"9" and (first / "one").read_bytes() == b"1"
    assert not any(map(files.is_leftover, cache.iterdir())) and len(list(cache.iterdir())) == 4
    assert source_files.local_copy("~/x") == pathlib.Path("~/x").expanduser()
    with pytest.raises(FileNotFoundError, match="there is nothing"):
        source_files.local_copy("gs://bucket/x", "b")


def test_what_changes_while_it_is_copied_is_not_kept(bucket, store, cache, monkeypatch):
    store.put("bucket/x/one", b"1")
    commit = os.makedirs

    def makedirs(path, **options):
        store.put("bucket/x/one", b"2")
        commit(path, **options)

    monkeypatch.setattr(source_files.os, "makedirs", makedirs)
    with pytest.raises(OSError, match="bucket/x"):
        source_files.local_copy("gs://bucket/x")
    assert list(cache.iterdir()) == []


def test_what_lies_in_a_bucket_is_that_on_a_disk(bucket, store, cache, tmp_path, text_files):
    convert_data.convert("wikitext2", text_files, tmp_path / "tfds")
    random = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for number in range(6):
            image = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
            image.save(tmp_path / "pets" / kind / f"{number}.png")
    for folder in ("tfds", "pets"):
        for path in sorted((tmp_path / folder).rglob("*")):
            if path.is_file():
                store.put(f"bucket/{folder}/{path.relative_to(tmp_path / folder)}", path.read_bytes())
    store.put("bucket/tfds/other/1.0.0/large", b"not copied")

    here, there = (load_text("wikitext2", data_dir=x) for x in (tmp_path / "tfds", "gs://bucket/tfds"))
    np.testing.assert_array_equal(here.test.tokens, there.test.tokens)
    assert not list(cache.rglob("large"))
    with pytest.raises(FileNotFoundError, match="bucket/no"):
        load_images("mnist", data_dir="gs://bucket/no")

    for options in ({}, dict(size=4, in_memory=False, workers=0)):
        here, there = (data.from_folder(path, **options) for path in (tmp_path / "pets", "gs://bucket/pets"))
        assert there.name == here.name == "pets" and there.classes == ("cat", "dog")
        for role, split in here.splits.items():
            np.testing.assert_array_equal(split.images[:], there.splits[role].images[:])
            np.testing.assert_array_equal(split.labels, there.splits[role].labels)

    for name in ("given/small.txt", "tfds/embeddings/small.txt"):
        store.put(f"bucket/{name}", b"the 1.0 2.0\nthing 3.0 4.0\n")
    for name in ("gs://bucket/given/small.txt", "small"):
        found = vectors.find_vectors(name, "gs://bucket/tfds")
        np.testing.assert_array_equal(vectors.read_vectors(found, ["thing"]).table, [[3, 4]])
