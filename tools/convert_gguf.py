"""Converts a GGUF file, as llama.cpp reads it, to a checkpoint of Hugging Face for `jaxnas.hf.load`.

  pip install 'jaxnas[gguf]'
  python -m tools.convert_gguf --gguf=SmolLM2-135M-Instruct.Q4_1.gguf --output=smollm2

The file is read by transformers, which turns quantized weights into float32. The folder has config.json,
model.safetensors and the files of the tokenizer.
"""

from __future__ import annotations

import importlib.util
import pathlib

from absl import flags

from jaxnas.experiments import binary
from jaxnas.experiments.config import ConfigError
from jaxnas.hf.checkpoint import FAMILIES

_GGUF = flags.DEFINE_string("gguf", None, "The GGUF file.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write to, new or empty.", required=True)
_NEEDED = ("transformers", "gguf", "accelerate")


def main() -> None:
    """Converts one file.

    Raises:
      ConfigError: no such file, a folder that is in use, missing packages, or a family that is not supported.
    """
    source = pathlib.Path(_GGUF.value).expanduser().absolute()
    output = pathlib.Path(_OUTPUT.value).expanduser().absolute()
    if not source.is_file():
        raise ConfigError(f"--gguf={source} is no file.")
    with source.open("rb") as file:
        if (start := file.read(4)) != b"GGUF":
            raise ConfigError(f"--gguf={source} begins with {start!r}, expected b'GGUF'.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output={output} holds other files, expected a new or empty folder.")
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"{', '.join(missing)} is not installed: pip install 'jaxnas[gguf]'.")
    import torch
    import transformers

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    config = transformers.AutoConfig.from_pretrained(**place)
    if config.model_type not in FAMILIES:
        raise ConfigError(
            f"--gguf={source} is of the family {config.model_type}, expected one of {', '.join(FAMILIES)}."
        )
    whole = transformers.GgufConfig(dequantize=True)
    read = transformers.AutoModelForCausalLM.from_pretrained(
        **place, dtype=torch.float32, quantization_config=whole
    )
    # What was read calls itself quantized, and is not saved; a model of the same weights is.
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(output)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    if tokenizer is not None:
        tokenizer.save_pretrained(output)
    print(f"{output}: {sum(x.numel() for x in model.parameters()):,} parameters of {config.model_type}")


if __name__ == "__main__":
    binary.run(main)
