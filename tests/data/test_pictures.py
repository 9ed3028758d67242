"""Image files in folders of classes."""

import logging

import numpy as np
import pytest
import refusals
from PIL import Image

from jaxnas import data, tasks


def picture(value, height=4, width=6, mode="RGB"):
    return Image.fromarray(np.full((height, width, 3), value, np.uint8)).convert(mode)


def write(root, tree, **options):
    """Makes folders of pictures: {"train/cat": 5} is five of them, each of a brightness of its own."""
    for number, (folder, count) in enumerate(tree.items()):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            picture(20 * number + i, **options).save(root / folder / f"{i:02}.png")
    return root


def test_a_folder_of_classes_is_divided_among_the_roles(tmp_path):
    write(tmp_path / "pets", {"cat": 10, "dog": 10})
    given = data.from_folder(tmp_path / "pets")
    assert (given.name, given.classes, given.image_shape) == ("pets", ("cat", "dog"), (4, 6, 3))
    assert tasks.Images(data=given).sizes == {"train": 13, "search": 3, "test": 4}
    seen = set()
    for split in given.splits.values():
        values = split.images[:, 0, 0, 0]
        assert (values // 20 == split.labels).all()
        seen |= set(values.tolist())
    assert seen == {*range(10), *range(20, 30)}
    again, other = (data.from_folder(tmp_path / "pets", held_out=data.HeldOut(seed=seed)) for seed in (0, 1))
    np.testing.assert_array_equal(again.train.images, given.train.images)
    assert (other.train.images != given.train.images).any()


def test_folders_of_roles_have_usual_names_but_train_alone_is_a_class(tmp_path):
    for names in ("train test val", "Train Test Valid", "training testing validation", "TRAIN TEST VAL"):
        root, sizes = tmp_path / names, dict(zip(names.split(), (5, 3, 4), strict=True))
        write(root, {f"{name}/{one}": n for name, n in sizes.items() for one in ("cat", "dog")}, mode="L")
        given = data.from_folder(root, held_out=data.HeldOut(search=0.4))
        assert given.classes == ("cat", "dog") and given.image_shape == (4, 6, 1)
        assert tasks.Images(data=given).sizes == {"train": 6, "search": 4, "validation": 8, "test": 6}
        values = given.validation.images[:, 0, 0, 0]
        assert sorted(values.tolist()) == [*range(80, 84), *range(100, 104)]
    assert data.from_folder(write(tmp_path / "cars", {"Train": 5, "car": 5})).classes == ("Train", "car")


def test_gray_and_colored_images_turned_and_scaled(tmp_path):
    write(tmp_path, {"cat": 5, "dog": 5})
    picture(255, mode="L").save(tmp_path / "cat" / "gray.jpg")
    picture(255, mode="P").save(tmp_path / "dog" / "palette.gif")
    turned = picture(255)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.resize((4, 6)).save(tmp_path / "dog" / "turned.jpg", exif=exif)
    (tmp_path / "cat" / "deeper").mkdir()
    picture(255).save(tmp_path / "cat" / "deeper" / "upper.PNG")
    given = data.from_folder(tmp_path)
    assert given.image_shape == (4, 6, 3)
    assert sum((split.images == 255).all((1, 2, 3)).sum() for split in given.splits.values()) == 4
    assert data.from_folder(tmp_path, 8).image_shape == (8, 8, 3)
    assert data.from_folder(tmp_path, size=(5, 2)).image_shape == (5, 2, 3)


def test_files_that_cannot_be_read_are_refused_and_what_is_no_image_left_out(tmp_path, caplog):
    write(tmp_path, {"cat": 6, "dog": 6})
    for name in ("notes.txt", ".hidden.png"):  # what is no image is named and left out
        (tmp_path / "cat" / name).write_text("")
    whole = (tmp_path / "cat" / "00.png").read_bytes()
    (tmp_path / "cat" / "00.png").write_bytes(whole[:-25])
    (tmp_path / "dog" / "05.png").write_bytes(b"no picture")
    message = r"2 of 12 images cannot be read: cat/00.png \(.*\), dog/05.png \(.*remove"
    with pytest.raises(ValueError, match=message):
        data.from_folder(tmp_path)
    for damaged in ("cat/00.png", "dog/05.png"):
        (tmp_path / damaged).unlink()
    with caplog.at_level(logging.WARNING):
        given = data.from_folder(tmp_path)
    assert "left out" in caplog.text and "notes.txt" in caplog.text and "hidden" not in caplog.text
    values = np.concatenate([split.images[:, 0, 0, 0] for split in given.splits.values()])
    labels = np.concatenate([split.labels for split in given.splits.values()])
    assert sorted(values.tolist()) == [*range(1, 6), *range(20, 25)]
    np.testing.assert_array_equal(labels, values // 20)


def test_folders_that_cannot_be_right_are_refused(tmp_path):
    def case(error, *names, then=lambda root: None, tree=(), **options):
        root = write(tmp_path / str(len(list(tmp_path.iterdir()))), dict(tree))
        root.mkdir(exist_ok=True)
        then(root)
        return lambda: data.from_folder(root, **options), error, *names

    def deep(root):
        Image.fromarray(np.zeros((4, 6), np.uint16)).save(root / "cat" / "deep.png")

    (tmp_path / "file").write_text("")
    pets = {"cat": 5, "dog": 5}
    roles = {"train/cat": 5, "train/dog": 5}
    refusals.check(
        (lambda: data.from_folder(tmp_path / "file"), FileNotFoundError, "is a file"),
        (lambda: data.from_folder(tmp_path / "nowhere"), FileNotFoundError, "is not there"),
        case(FileNotFoundError, "class/image"),
        case(FileNotFoundError, "class/image", then=lambda root: picture(1).save(root / "a.png")),
        case(ValueError, "'cat'", tree={"cat": 5}),
        case(ValueError, "no images in the folders of", "dog", tree={"cat": 5, "dog": 0}),
        case(ValueError, "'dog'", tree={"cat": 9, "dog": 1}, held_out=data.HeldOut(test=0.6)),
        case(ValueError, "of 2", tree=pets, then=lambda root: picture(1, 8).save(root / "cat" / "new.png")),
        case(ValueError, "cat/deep", tree=pets, then=deep),
        case(ValueError, "bird, dog", tree=roles | {"test/cat": 3, "test/bird": 2}),
        case(ValueError, "Train, test, training", tree={"Train/cat": 5, "training/cat": 5, "test/cat": 5}),
        case(ValueError, "tset", tree=roles | {"tset/cat": 3}),
        case(ValueError, "size is 0", tree=pets, size=0),
        case(ValueError, "'8'", tree=pets, size="8"),
        case(ValueError, "(1, 2, 3)", tree=pets, size=(1, 2, 3)),
    )
