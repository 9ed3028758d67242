"""Prepares real data as array_record, without TensorFlow and offline.

`prepare` writes a dataset where TFDS looks for it, so that afterwards
`tfds.data_source("digits", data_dir=...)` reads it as well.
"""

import contextlib
import io
import os
import pathlib
import re

import tensorflow_datasets as tfds
from absl import logging

from jaxnas import files
from jaxnas.data.copies import local_copy
from jaxnas.data.datasets import reading
from jaxnas.data.image_builders import Cifar10, Cifar100, Digits, FashionMnist, Mnist
from jaxnas.data.imagenet import Imagenet2012
from jaxnas.data.sentence_builders import Cr, ImdbReviews, ListOps, Mpqa, Mr, Sst2, Sst5, Subj, Trec
from jaxnas.data.text_builders import Enwik8, TinyShakespeare, WikiText2

_IMAGES = (Digits, Mnist, FashionMnist, Cifar10, Cifar100, Imagenet2012)
_TEXTS = (WikiText2, Enwik8, TinyShakespeare)
_SENTENCES = (Sst5, Sst2, Trec, Mr, Subj, Cr, Mpqa, ImdbReviews, ListOps)
BUILDERS = {builder.name: builder for builder in (*_IMAGES, *_TEXTS, *_SENTENCES)}


def prepare(
    name: str,
    data_dir: str | os.PathLike | None = None,
    source_dir: str | os.PathLike | None = None,
) -> pathlib.Path | None:
    """Writes a dataset of `BUILDERS` as array_record, unless it is there already.

    Several processes may do this at once, and each may be killed: the dataset's folder appears
    complete or not at all. What is made of original files has their digest in its path, so that other
    files are never taken for them.

    Args:
      name: of the dataset, such as "digits" or "fashion_mnist".
      data_dir: TFDS's data folder; None is TFDS's own default, ~/tensorflow_datasets.
      source_dir: the folder with the original files; None for "digits", which needs none, and for what was
        prepared before.

    Returns:
      The dataset's folder, `data_dir/name/digest/version`; of "digits" `data_dir/name/version`. None if no
      files are given, and it was not prepared before.

    Raises:
      FileNotFoundError: the original files are missing.
      ValueError: they are damaged; or none are given, and it was prepared from several sets of them.
      OSError: `data_dir` cannot be written, or what is there is damaged.
    """
    with reading(f"{data_dir}/{name}"):
        final = pathlib.Path(BUILDERS[name](data_dir=data_dir).data_path)
    if where := BUILDERS[name].MANUAL_DOWNLOAD_INSTRUCTIONS:
        if source_dir is None:
            digests = sorted(p for p in final.parent.glob("*") if re.fullmatch("[0-9a-f]{16}", p.name))
            found = [path / final.name for path in digests if (path / final.name).exists()]
            if len(found) > 1:
                raise ValueError(
                    f"{name} was prepared from {len(found)} different sets of original files, in"
                    f" {', '.join(str(path.parent) for path in found)}; name the folder with the files that"
                    " you mean (source_dir), or delete the folders of the others"
                )
            return found[0] if found else None
        source_dir = local_copy(source_dir)
        if not source_dir.is_dir():
            raise FileNotFoundError(f"there is no folder {source_dir}. {where}")
        final = final.parent / BUILDERS[name](data_dir=data_dir).digest(source_dir) / final.name
    if final.exists():
        return final
    # TFDS's own temporary name comes from Python's global random state, which two processes can
    # share, so each prepares in a folder that is really its own.
    with files.temporary_folder(final.parent) as own:
        logging.info("Preparing %s in %s", name, final)
        builder = BUILDERS[name](data_dir=own, file_format="array_record")
        tfds.disable_progress_bar()
        config = tfds.download.DownloadConfig(manual_dir=source_dir, try_download_gcs=False)
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints that it downloads.
            builder.download_and_prepare(download_config=config)
        files.commit_folder(builder.data_path, final)
    return final
