"""A text file of one's own for language models."""

from __future__ import annotations

import os

from jaxnas.data.corpus import Corpus
from jaxnas.data.source_files import read_text
from jaxnas.data.text import Text, check_fraction, check_tokenizer, hold_out_end, make_corpus
from jaxnas.files import as_path


def from_text(
    path: str | os.PathLike,
    validation: str | os.PathLike | None = None,
    test: str | os.PathLike | None = None,
    *,
    name: str | None = None,
    tokenizer: str = "byte",
    encoding: str = "utf-8",
    search_fraction: float = 0.2,
    validation_fraction: float = 0.05,
    test_fraction: float = 0.05,
) -> Corpus:
    """Makes a corpus of text files, plain or compressed by gzip, xz or zip.

    Without files of their own, the end of the text is for the test, what is before it for the validation,
    and the end of what is left for a search. It is cut at the end of a line or of a word.

    Args:
      path: of the text to train on.
      validation: of the text to watch networks on; None to hold a part of the text out.
      test: of the text for the networks that are chosen; None to hold a part of the text out.
      name: of the data; by default that of the file.
      tokenizer: "byte", "word", or "sentencepiece:8000" for so many sub-words, which are learnt in each call;
        or the folder of a checkpoint with a tokenizer.json, or such a file.
      encoding: of the files, as Python names it.
      test_fraction: share of the bytes that is held out for the test, where there is no file.
      validation_fraction: likewise for the validation, of what is left.
      search_fraction: likewise for a search, of what is left to train on; 0 for no search.

    Raises:
      FileNotFoundError: no such file.
      ValueError: an empty file, one in another encoding (which says at which byte), an unknown tokenizer, or
        a text too short for its roles.
      ImportError: sub-words without the package sentencepiece.
    """
    fractions = {"test": test_fraction, "validation": validation_fraction}
    for role, fraction in {**fractions, "search": search_fraction}.items():
        check_fraction(f"from_text: {role}_fraction", fraction)
    check_tokenizer(tokenizer)
    name = name or as_path(path).name
    paths = {"train": path, "validation": validation, "test": test}
    texts = {
        role: Text(read_text(file, encoding).encode(), [0])
        for role, file in paths.items()
        if file is not None
    }
    for role, fraction in fractions.items():
        if role not in texts:
            texts["train"], texts[role] = hold_out_end(name, texts["train"], role, fraction)
    return make_corpus(name, texts, tokenizer, search_fraction, None)
