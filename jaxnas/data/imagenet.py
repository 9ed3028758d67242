"""TFDS builder of ImageNet 2012 from its two original archives, without TensorFlow."""

import os
import pathlib
import tarfile
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from jaxnas import files
from jaxnas.data.offline_builder import OfflineBuilder
from jaxnas.data.source_files import check_there

WHERE = (
    "They are ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar of ImageNet's task 1 and 2 of 2012, as they"
    " come, not unpacked; image-net.org gives them to those who register"
)
# The bytes of each archive and their SHA-256, as TFDS has them.
ARCHIVES = {
    "ILSVRC2012_img_train.tar": (
        147_897_477_120,
        "b08200a27a8e34218a0e58fde36b0fe8f73bc377f4acea2d91602057c3ca45bb",
    ),
    "ILSVRC2012_img_val.tar": (
        6_744_924_160,
        "c7e06a6c0baccf06d8dbeb6577d71efff84673a5dbdd50633ab44f8ea0456ae0",
    ),
}
# The mean and standard deviation of each channel that all published networks are trained with, from 0 to 255.
MEAN = 255 * np.array([0.485, 0.456, 0.406], np.float32)
STD = 255 * np.array([0.229, 0.224, 0.225], np.float32)


class Imagenet2012(OfflineBuilder, skip_registration=True):
    """ImageNet 2012: encoded images of many sizes in 1,000 classes, 1,281,167 / 50,000 ("validation").

    Files are stored as they are, in the order of the archives; few of them are no JPEG or not RGB, which
    Pillow sees when it decodes them. The classes of the validation images come with TFDS, and the test images
    have no published ones. About 155 GB are read twice and written once.
    """

    name = "imagenet2012"
    VERSION = tfds.core.Version("5.1.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = WHERE

    def _info(self):
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=_published("labels.txt")),
            "file_name": tfds.features.Text(),
        }
        return self.described("ImageNet 2012, from its archives", features, ("image", "label"))

    def digest(self, folder: str | os.PathLike) -> str:
        """Compares the archives with their published checksums, and returns a digest of both.

        Raises:
          FileNotFoundError: an archive is missing.
          ValueError: one is another than the published one.
        """
        folder = pathlib.Path(folder)
        check_there(folder, ARCHIVES, WHERE)
        for name, (size, expected) in ARCHIVES.items():
            if (found := (folder / name).stat().st_size) != size:
                raise ValueError(
                    f"{folder / name} has {found:,} bytes, and the published archive {size:,}; copy it again."
                    " Other images, in folders by class, are read by data.from_folder(..., in_memory=False)"
                )
            if (digest := files.sha256(folder / name)) != expected:
                raise ValueError(
                    f"{folder / name} has the SHA-256 {digest}, and the published archive {expected}; copy it"
                    " again"
                )
        return files.digest("\n".join(digest for _, digest in ARCHIVES.values()).encode())

    def _split_generators(self, dl_manager):
        train, validation = (pathlib.Path(dl_manager.manual_dir) / name for name in ARCHIVES)
        return {
            "train": self._generate_examples(train_images(train)),
            "validation": self._generate_examples(validation_images(validation)),
        }

    def _generate_examples(self, images: Iterator) -> Iterator:
        for i, (name, label, content) in enumerate(images):
            yield i, {"image": content, "label": label, "file_name": name}


def train_images(path: str | os.PathLike) -> Iterator[tuple[str, str, bytes]]:
    """Name, class and content of each image of the archive of training images, an archive for each class.

    Raises:
      ValueError: an archive whose name is no class of ImageNet.
    """
    classes = set(_published("labels.txt"))
    with tarfile.open(path, "r|") as archive:
        for member in archive:
            label = member.name.removesuffix(".tar")
            if label not in classes:
                raise ValueError(
                    f"{path}: expected archives of classes, as n01440764.tar, found {member.name}"
                )
            with tarfile.open(fileobj=archive.extractfile(member), mode="r|") as images:
                for name, content in _files(images):
                    yield name, label, content


def validation_images(path: str | os.PathLike) -> Iterator[tuple[str, str, bytes]]:
    """Name, class and content of each image of the archive of validation images.

    Raises:
      ValueError: a file without a number from 1 to 50,000 in its name.
    """
    labels = _published("validation_labels.txt")
    with tarfile.open(path, "r|") as archive:
        for name, content in _files(archive):
            number = name.removesuffix(".JPEG").rpartition("_")[2]
            if not number.isdecimal() or not 1 <= int(number) <= len(labels):
                raise ValueError(f"{path}: expected files such as ILSVRC2012_val_00000001.JPEG, found {name}")
            yield name, labels[int(number) - 1], content


def _files(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if (file := archive.extractfile(member)) is not None:  # A folder is none.
            yield pathlib.PurePosixPath(member.name).name, file.read()


def _published(name: str) -> list[str]:
    """The lines of a file of ImageNet's that comes with TFDS."""
    return tfds.core.tfds_path(f"datasets/imagenet2012/{name}").read_text().split()
