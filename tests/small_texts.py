"""Small texts of the shape of the real ones, their files, and a corpus of them; fixtures of every test."""

import gzip
import lzma
import statistics
import zipfile

import numpy as np
import pytest

from jaxnas.data.text import load_text
from tools import convert_data

WORDS = "the of and in to a was The on as for with by is 's @-@ \u2013 Senj\u014d <unk> , ; ( )".split()


def article(rng, title, lines):
    """An article as WikiText-2 has them; its table has a row that looks like a title."""
    text = [" ", f" = {title} = ", " "]
    for i in range(lines):
        text.append(" " + " ".join(rng.choice(WORDS, rng.integers(3, 40))) + " . ")
        if i % 3 == 2:
            text += [" ", " = = Part = = ", " ", " = Wins ; L = ", " 3 ; 4 "]
    return "".join(line + "\n" for line in text) + " \n"


def play():
    rng = np.random.default_rng(1)
    return "".join(
        f"{rng.choice(['ROMEO', 'JULIÉT'])}:\n{' '.join(rng.choice(WORDS, 9))}\n\n" for _ in range(60)
    )


def dump():
    """1,000 bytes of pages, and what was before the first."""
    pages = "".join(f"  <page>\n    <title>{i} é</title>\n  </page>\n" for i in range(30))
    return ("<mediawiki>\n" + pages).encode()[:1000]


@pytest.fixture(scope="module")
def wikitext():
    rng = np.random.default_rng(0)
    parts = {}
    for split, n in (("train", 20), ("validation", 3), ("test", 2)):
        parts[split] = "".join(article(rng, f"{split} number {i}", 4 + i % 3) for i in range(n))
    return parts


@pytest.fixture(scope="module")
def text_files(tmp_path_factory, wikitext):
    folder = tmp_path_factory.mktemp("files")
    contents = {split: part.encode() for split, part in wikitext.items()}
    (folder / "wikitext-2.train.txt.xz").write_bytes(lzma.compress(contents["train"]))
    (folder / "wikitext-2.valid.txt").write_bytes(gzip.compress(contents["validation"]))
    (folder / "wiki.test.tokens").write_bytes(contents["test"])
    (folder / "input.txt").write_bytes(play().encode())
    with zipfile.ZipFile(folder / "enwik8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enwik8", dump())
    return folder


@pytest.fixture(scope="module")
def text_root(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="module")
def corpus(text_files, text_root):
    convert_data.convert("wikitext2", text_files, text_root)
    return load_text("wikitext2", data_dir=text_root)


def prepare_examples(folder, features, **splits):
    """A set `some_examples` as TFDS prepares it: a record for each example of a split."""
    import tensorflow_datasets as tfds

    class SomeExamples(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("2.0.0")
        code_path = None

        def _info(self):
            made = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=made, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {split: enumerate(examples) for split, examples in splits.items()}

        def _generate_examples(self):
            """What TFDS wants to be there."""

    builder = SomeExamples(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return builder.data_path


def decoded(dataset, role):
    split = dataset.splits[role]
    rows = zip(split.inputs["tokens"], split.inputs["mask"], split.labels, strict=True)
    return [(dataset.vocabulary.decode(tokens[mask]).strip(), int(label)) for tokens, mask, label in rows]


FUNCTIONS = {"[MIN": min, "[MAX": max, "[SM": lambda values: sum(values) % 10}
FUNCTIONS["[MED"] = lambda values: int(statistics.median(values))


def expression_value(text):
    """The value of an expression of ListOps, its levels, and the most arguments that an operation has."""
    symbols = iter(text.split())

    def node(symbol):
        if symbol not in FUNCTIONS:
            return int(symbol), 1, 0
        inner = []
        while (following := next(symbols)) != "]":
            inner.append(node(following))
        values, depths, widths = zip(*inner, strict=True)
        return FUNCTIONS[symbol](values), 1 + max(depths), max(len(inner), *widths)

    found = node(next(symbols))
    assert next(symbols, None) is None
    return found
