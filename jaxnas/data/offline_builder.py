"""What the TFDS builders of this package share: they read original files, and download nothing."""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow_datasets as tfds

from jaxnas import files


class OfflineBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A builder of a data set whose original files are in a folder, or that needs none.

    The folder is TFDS's `DownloadConfig(manual_dir=...)`. A subclass says in `_generate_examples` what
    examples it makes of the parts of a split.
    """

    VERSION = tfds.core.Version("1.0.0")
    # TFDS looks for checksums of downloads beside the code, through importlib_resources, which it
    # doesn't install. There are no downloads.
    code_path = None

    def described(
        self, description: str, features: Mapping[str, Any], supervised_keys: tuple[str, str] | None = None
    ) -> tfds.core.DatasetInfo:
        """Returns what TFDS keeps of the data, whose stored order is that of the original files."""
        return tfds.core.DatasetInfo(
            builder=self,
            description=description,
            features=tfds.features.FeaturesDict(dict(features)),
            supervised_keys=supervised_keys,
            disable_shuffling=True,
        )

    def read(self, folder: str | os.PathLike | None) -> Mapping[str, tuple[Any, ...]]:
        """Returns the parts of each split, arrays or bytes; a bad file is found before anything is written.

        Args:
          folder: of the original files; None for data that need none.
        """
        raise NotImplementedError

    def digest(self, folder: str | os.PathLike) -> str:
        """Returns a digest of all that the original files hold, the same however they were compressed."""
        parts = []
        for split, content in sorted(self.read(folder).items()):
            for part in content:
                data = part if isinstance(part, bytes) else part.tobytes()
                parts.append(f"{split} {files.sha256(data)}")
        return files.digest("\n".join(parts).encode())

    def _split_generators(self, dl_manager):
        folder = dl_manager.manual_dir if self.MANUAL_DOWNLOAD_INSTRUCTIONS else None
        return {split: self._generate_examples(*parts) for split, parts in self.read(folder).items()}
