"""Original files of data sets, and what `tools.convert_data` makes of them."""

import gzip
import io
import json
import lzma
import struct
import tarfile

import in_process
import numpy as np
import pytest
import refusals
from PIL import Image
from small_texts import decoded, dump, play

from jaxnas import data, tasks
from jaxnas.data.encoded import SourceImages
from jaxnas.data.images import load as load_images
from jaxnas.data.text import load_text
from tools import convert_data

LABELS = np.arange(20, dtype=np.uint8) % 10
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
SYNSETS = ("n01440764", "n01443537", "n15075141")  # the first two and the last class


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder):
    """The four files, small, in two spellings; returns the test images."""
    random = np.random.default_rng(0)
    for prefix, count, mark in (("train", 40, "."), ("t10k", 20, "-")):
        images, labels = random.integers(0, 256, (count, 28, 28), np.uint8), np.resize(LABELS, count)
        (folder / f"{prefix}-images{mark}idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{prefix}-labels{mark}idx1-ubyte").write_bytes(idx(labels))
    return images[..., None]


def cifar(count=20):
    return np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), np.uint8)


def write_binary(folder, names=BATCHES, labels=LABELS[:, None]):
    for name in names:
        pixels = cifar().transpose(0, 3, 1, 2).reshape(20, -1)
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    return cifar()


def write_binary_100(folder):
    return write_binary(folder, ("train", "test"), np.stack([LABELS, LABELS], axis=1))


def write_png(folder):
    for name in BATCHES:
        Image.fromarray(cifar().reshape(20, 1024, 3)).save(folder / f"{name}.png")
    for split, count in (("train", 100), ("test", 20)):
        (folder / f"{split}_lables.json").write_text(json.dumps(np.resize(LABELS, count).tolist()))
    return cifar()


@pytest.mark.parametrize(
    ("name", "write", "first", "train"),
    [
        ("fashion_mnist", write_mnist, "T-shirt/top", 40),
        ("cifar10", write_binary, "airplane", 100),
        ("cifar10", write_png, "airplane", 100),
        ("cifar100", write_binary_100, "0", 20),
    ],
)
def test_images_of_one_size(name, write, first, train, tmp_path):
    import tensorflow_datasets as tfds

    (tmp_path / "files" / "inner").mkdir(parents=True)
    images, root = write(tmp_path / "files" / "inner"), tmp_path / "tfds"
    done = in_process.run("tools.convert_data", name, str(tmp_path / "files"), f"--data_dir={root}")
    assert done.status == 0 and name in done.stdout
    given = tasks.Images(data=name, search_fraction=0.5).load(root).dataset
    np.testing.assert_array_equal(given.test.images, images)
    np.testing.assert_array_equal(given.test.labels, LABELS)
    assert len(given.train) + len(given.search) == train and given.classes[0] == first
    assert given.num_classes == 100 if name == "cifar100" else 10
    source = tfds.data_source(f"{name}:1.0.0", split="test", data_dir=root, download=False)
    np.testing.assert_array_equal(source[3]["image"], images[3])
    # What was prepared is kept, and the files are needed no more.
    assert convert_data.convert(name, tmp_path / "files", root).parent.name == name


def encoded(value, height, width, form="JPEG", mode="RGB"):
    buffer = io.BytesIO()
    options = {"quality": 95, "subsampling": 0} if form == "JPEG" else {}
    Image.fromarray(np.full((height, width, 3), value, np.uint8)).convert(mode).save(buffer, form, **options)
    return buffer.getvalue()


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def imagenet(tmp_path):
    """ImageNet of two tiny archives, of 24 and 12 images, whose brightness is their number, prepared."""
    folder = tmp_path / "archives"
    folder.mkdir()
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for number, label in enumerate(SYNSETS):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as inner:
                for i in range(8):
                    form, mode = ("PNG", "RGB") if i == 1 else ("JPEG", ("RGB", "L", "CMYK")[i % 3])
                    content = encoded(10 * (8 * number + i), 40 + i, 90 - 7 * i, form, mode)
                    add(inner, f"{label}_{i}.JPEG", content)
            add(outer, f"{label}.tar", buffer.getvalue())
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as archive:
        for i in range(12):
            add(archive, f"ILSVRC2012_val_{i + 1:08}.JPEG", encoded(20 * i, 30, 50 + i))
    convert_data.convert("imagenet2012", folder, tmp_path / "tfds")
    return tmp_path / "tfds"


def values_of(pixels):
    """The number of each image, whose values may be off by 3 in a JPEG."""
    assert pixels.std((1, 2)).max() < 3
    return np.round(pixels[:, 8, 8].mean(-1) / 10).astype(int).tolist()


def test_images_of_many_sizes_are_decoded_on_demand(imagenet):
    def load(**options):
        return load_images("imagenet2012", data_dir=imagenet, **dict(image_size=16, workers=0) | options)

    given = load(search_fraction=0.25)
    task = tasks.Images(data=given)
    assert task.sizes == {"train": 18, "search": 6, "test": 12}
    assert given.num_classes == 1000 and given.classes[0] == SYNSETS[0] and given.image_shape == (16, 16, 3)
    np.testing.assert_allclose(given.mean / 255, [0.485, 0.456, 0.406], rtol=1e-6)
    seen = {}
    for split in (given.train, given.search):
        seen |= dict(zip(values_of(split.images[:]), split.labels.tolist(), strict=True))
    assert seen == {i: (0, 1, 999)[i // 8] for i in range(24)}
    # The published classes of the first validation images.
    first = [given.classes[label] for label in given.test.labels[:3]]
    assert first == ["n01751748", "n09193705", "n02105855"]
    assert values_of(given.test.images[:]) == list(range(0, 24, 2))
    whole = task.whole()
    assert isinstance(whole.dataset.train.images, SourceImages) and whole.sizes["train"] == 24
    again = tasks.Images(data="imagenet2012", search_fraction=0.25, image_size=8).load(imagenet)
    np.testing.assert_array_equal(again.dataset.train.labels, given.train.labels)
    assert again.inputs.shape == (1, 8, 8, 3)
    kept = list(imagenet.glob("imagenet2012/*/labels-*.npz"))
    assert len(kept) == 2
    for path in kept:  # labels that are damaged are gathered again
        path.write_bytes(b"PK")
    np.testing.assert_array_equal(load(search_fraction=0.25).train.labels, given.train.labels)
    refusals.check(
        (lambda: load(image_size=None), ValueError, "image_size"),
        (lambda: load_images("digits", image_size=224), ValueError, "image_size is 224"),
    )


def texts(name, root):
    """The bytes of each part."""
    corpus = load_text(name, data_dir=root, tokenizer="byte", search_fraction=0)
    return {role: stream.tokens.astype(np.uint8).tobytes() for role, stream in corpus.splits.items()}


def test_texts_are_those_of_the_files(text_files, tmp_path, wikitext):
    for name in ("wikitext2", "tiny_shakespeare"):
        convert_data.convert(name, text_files, tmp_path)
    assert texts("wikitext2", tmp_path) == {role: text.encode() for role, text in wikitext.items()}
    play_ = play()
    first = int(len(play_) * 0.9)
    second = first + (len(play_) - first) // 2
    parts = play_[:first], play_[first:second], play_[second:]
    assert list(texts("tiny_shakespeare", tmp_path).values()) == [part.encode() for part in parts]


def test_enwik8_has_its_size_and_documents(tmp_path, monkeypatch):
    whole = dump() * 100_000  # as large as the real one
    (tmp_path / "enwik8.xz").write_bytes(lzma.compress(whole, preset=0))
    convert_data.convert("enwik8", tmp_path, tmp_path / "tfds")
    corpus = load_text("enwik8", data_dir=tmp_path / "tfds")
    assert [len(corpus.splits[role]) for role in ("validation", "test")] == [5_000_000] * 2
    assert corpus.vocabulary.decode(corpus.test.tokens[:1000]).encode() == dump()
    # The rest of a page that was cut is a document, too.
    assert corpus.validation.documents[0] == 0 and corpus.search.tokens[:8].tolist() == list(b"  <page>")


TREES = {
    "train": [
        "(4 (2 A) (4 (4 fine) (2 film)))",
        "(0 (2 It) (0 (0 fails) (2 .)))",
        "(2 (2 A) (2 film))",
        "(1 (1 dull) (2 .))",
        "(3 (3 fun) (2 .))",
    ]
    * 2,
    "dev": ["(3 (2 It) (3 (3 works) (2 .)))", "(1 (1 Dull) (2 film))", "(2 (2 An) (2 hour))"],
    "test": ["(4 (4 Fine) (2 .))", "(1 (2 It) (1 (1 drags) (2 .)))"],
}
FILES = {
    **{f"sst_trees.{part}.txt": "\n".join([*lines, ""]).encode() for part, lines in TREES.items()},
    "TREC.train.all": "".join(f"{i % 6} What 's caf\u00e9 {i} ?\n" for i in range(60)).encode("latin-1"),
    "TREC.test.all": b"0 What is it ?\n5 How many ?\n",
    "rt-polarity.all": "".join(f"{i % 2} it's a caf\u00e9 , {i} . \n" for i in range(60)).encode("latin-1"),
    "subj.all": b"".join(b"%d an opinion %d\n" % (i % 2, i) for i in range(60)),
    "custrev.all": b"0 \n" + b"".join(b"%d n't work %d\n" % (i % 2, i) for i in range(60)),
    "mpqa.all": "".join(f"{i % 2} caf\u00e9 {i}\n" for i in range(60)).encode(),
    "imdb.train.tsv": b"".join(b"%d\t%d\tDon't watch. Ever!<br />\n" % (i % 2, i % 9) for i in range(40)),
    "imdb.test.tsv": b"1\t9\tWatch...\n0\t1\tDon't\n",
    "test_d20s.tsv": b"3\t( ( [MIN 3 ) 4 ] )\n",
    **{f"wiki.{part}.tokens": b" a \n" for part in ("train", "valid", "test")},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def sizes(*counts):
    roles = ("train", "search", "test") if len(counts) == 3 else ("train", "test")
    return dict(zip(roles, counts, strict=True))


def test_labeled_texts_with_their_parts_and_classes(files, tmp_path):
    for name, classes, parts, whole in (
        ("sst5", 5, sizes(10, 3, 2), sizes(10, 2) | {"validation": 3}),
        ("sst2", 2, sizes(8, 2, 2), sizes(8, 2) | {"validation": 2}),
        ("trec", 6, sizes(48, 12, 2), sizes(60, 2)),
        *((name, 2, sizes(43, 11, 6), sizes(54, 6)) for name in ("mr", "subj", "cr", "mpqa")),
        ("imdb_reviews", 2, sizes(32, 8, 2), sizes(40, 2)),
    ):
        convert_data.convert(name, files, tmp_path)
        task = tasks.Text(data=name).load(tmp_path)
        assert (task.dataset.num_classes, task.sizes, task.whole().sizes) == (classes, parts, whole), name
    assert decoded(task.dataset, "train")[0][0] == "do n't watch . ever !"
    words = tasks.Text(data="mr").load(tmp_path).dataset.vocabulary.words
    assert {"it", "'s", "caf\u00e9", ","} <= set(words)
    # The test part of those that have no official one is the same for every seed.
    seeds = (tasks.Text(data="mr", seed=seed, tokens="bytes").load(tmp_path).dataset for seed in (0, 1))
    first, second = (decoded(dataset, "test") for dataset in seeds)
    assert first == second


def test_sentences_and_phrases_of_trees(files, tmp_path):
    for name in ("sst5", "sst2"):
        convert_data.convert(name, files, tmp_path)
    fine = tasks.Text(data="sst5").load(tmp_path).dataset
    assert decoded(fine, "train")[:3] == [("a fine film", 4), ("it fails .", 0), ("a film", 2)]
    assert fine.vocabulary.size == 8 + 2 and fine.unknown == {"train": 0, "search": 3, "test": 1}
    phrases = tasks.Text(data="sst5", phrases=True).load(tmp_path).dataset
    expected = [("a", 2), ("fine", 4), ("film", 2), ("fine film", 4), ("a fine film", 4), ("it", 2)]
    expected += [("fails", 0), (".", 2), ("fails .", 0), ("it fails .", 0), ("a film", 2)]
    expected += [("dull", 1), ("dull .", 1), ("fun", 3), ("fun .", 3)]
    assert decoded(phrases, "train") == expected
    assert decoded(phrases, "test") == decoded(fine, "test") and len(phrases.search) == 3
    binary = tasks.Text(data="sst2", phrases=True).load(tmp_path).dataset
    assert decoded(binary, "train") == [(text, int(label > 2)) for text, label in expected if label != 2]
    # A share that is held out leaves the development part to watch a retraining with.
    both = tasks.Text(data="sst5", search_fraction=0.5).load(tmp_path)
    assert both.sizes == {"train": 5, "search": 5, "validation": 3, "test": 2}
    assert both.whole().sizes == {"train": 10, "validation": 3, "test": 2}
    shared = tasks.Text(data="sst5", phrases=True, search_fraction=0.2)
    refusals.check((lambda: shared.load(tmp_path), ValueError, "phrases"))


def test_listops_has_none_of_the_official_expressions_in_training(files, monkeypatch):
    rule = data.ListOps(examples=60, search_examples=9, max_depth=3, max_args=3, min_length=0, max_length=24)
    features, splits = convert_data._listops(files, rule)
    assert features["label"].num_classes == 10 and splits["test"] == [{"text": "[MIN 3 4 ]", "label": 3}]
    every = [example["text"] for split in splits.values() for example in split]
    assert len(every) == 70 == len(set(every))


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("mnist", "train-labels.idx1-ubyte", None, "train-labels"),
        ("mnist", "train-labels.idx1-ubyte", idx(LABELS), "20 labels"),
        ("mnist", "train-labels.idx1-ubyte", idx(np.full(40, 10, np.uint8)), "up to 10"),
        ("mnist", "train-labels.idx1-ubyte", idx(LABELS)[:-1], "expected 20"),
        ("mnist", "train-labels.idx1-ubyte", b"\x89PNG\r\n", "no IDX"),
        ("cifar10", "test_batch.bin", b"x" * 100, "3,073"),
        ("wikitext2", "wiki.test.tokens", b" a \n \xff", "at offset 5"),
        ("enwik8", "enwik8", b"abc", "100,000,000"),
        ("sst5", "sst_trees.dev.txt", b"(3 ok)\n(3 ok)\n(3 ok) ok\n", "line 3"),
        (
            "sst5",
            "sst_trees.train.txt",
            FILES["sst_trees.train.txt"] + FILES["sst_trees.dev.txt"],
            "cut them",
        ),
        ("trec", "TREC.test.all", b"0 What ?\n6 How ?\n", "line 2"),
        ("imdb_reviews", "imdb.test.tsv", b"1\t9\tGood\n1\tGood\n", "line 2"),
    ],
)
def test_files_that_are_missing_or_damaged(name, file, content, message, files, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    if name in ("mnist", "cifar10"):
        (write_mnist if name == "mnist" else write_binary)(folder)
    for path in files.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    call = [name, str(folder), f"--data_dir={tmp_path / 'tfds'}"]
    refusals.check((lambda: convert_data.main(call), SystemExit, message, convert_data.FILES[name]))
    assert not list((tmp_path / "tfds").glob("*/1*"))  # Nothing half-made is left.
