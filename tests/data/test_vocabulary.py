"""Vocabularies: bytes, words and sub-words to numbers and back."""

import dataclasses
import sys

import numpy as np
import pytest
import refusals
from hypothesis import given
from hypothesis import strategies as st

from jaxnas.data.splits import ROLES
from jaxnas.data.text import load_text
from jaxnas.data.vocabulary import WordVocabulary

WORD_LISTS = st.lists(st.sampled_from("a b cc <unk> é".split()), max_size=5)


@given(st.lists(WORD_LISTS, max_size=6), WORD_LISTS)
def test_words_round_trip(lines, rest):
    vocabulary = WordVocabulary(counts=np.zeros(6, np.int64), words=("a", "b", "cc", "é", "<eos>", "<unk>"))
    whole = "".join("".join(f" {w}" for w in line) + " \n" for line in lines)
    whole += "".join(f" {w}" for w in rest)
    tokens = vocabulary.encode(whole)
    assert tokens.dtype == np.int32
    assert len(tokens) == len(lines) + len(rest) + sum(map(len, lines))
    assert vocabulary.decode(tokens) == whole


def load(text_root, number=340):
    return load_text("wikitext2", data_dir=text_root, tokenizer=f"bpe:{number}")


@pytest.fixture(scope="module")
def pieces(corpus, text_root):
    pytest.importorskip("tokenizers")
    return load(text_root)


def test_sub_words_of_wikitext(pieces, corpus, wikitext, text_root):
    vocabulary = pieces.vocabulary
    assert vocabulary.size == 340 == len(vocabulary.words) == len(set(vocabulary.words))
    both = np.concatenate([pieces.train.tokens, pieces.search.tokens])
    np.testing.assert_array_equal(vocabulary.counts, np.bincount(both, minlength=340))
    # Numbers are by frequency, but for what is cut elsewhere at the ends of documents.
    assert np.all(np.diff(vocabulary.counts[:50]) <= 3) and vocabulary.counts[-9:].max() == 0
    for role in ("validation", "test"):
        stream = getattr(pieces, role)
        assert stream.tokens.dtype == np.int32
        assert vocabulary.decode(stream.tokens) == wikitext[role]
    for role in ROLES:
        a, b = getattr(pieces, role), getattr(corpus, role)
        assert a.n_bytes == b.n_bytes and len(b) < len(a) < a.n_bytes
        assert a.documents[-1] == b.documents[-1]
    again = load(text_root)  # learned again they are the same
    assert again.vocabulary.definition == vocabulary.definition


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_sub_words_round_trip(pieces, content):
    tokens = pieces.vocabulary.encode(content)
    assert tokens.dtype == np.int32
    assert pieces.vocabulary.decode(tokens) == content


def test_sub_words_that_cannot_be(pieces, text_root, monkeypatch):
    with pytest.raises(ValueError, match="bpe:100000"):
        load(text_root, 100000)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="pip install 'jaxnas"):
        load(text_root)


def test_tokens_of_another_vocabulary(corpus):
    size, decode = corpus.vocabulary.size, corpus.vocabulary.decode
    small = WordVocabulary(counts=np.zeros(2, np.int64), words=("<eos>", "<unk>"))
    refusals.check(
        (lambda: decode([0, -1]), ValueError, f"[0, {size})", "-1"),
        (lambda: decode([0, size]), ValueError, f"[0, {size})", f"got {size}"),
        (lambda: dataclasses.replace(corpus, vocabulary=small), ValueError, "vocabulary has 2"),
    )
    assert decode([]) == ""
