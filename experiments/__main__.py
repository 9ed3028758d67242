"""Lists the binaries and the configs, with a line each: python -m experiments."""

from __future__ import annotations

import importlib

from experiments.configs import CONFIGS

BINARIES = ("train_supernet", "search", "retrain", "evaluate", "compare")


def main() -> None:
    programs = {name: importlib.import_module(f"experiments.{name}").__doc__ or "" for name in BINARIES}
    width = max(map(len, (*BINARIES, *CONFIGS)))
    print("Binaries, in the order of a run; python -m experiments.NAME --help says more:")
    print(*(f"  {name:<{width}}  {text.partition(chr(10))[0]}" for name, text in programs.items()), sep="\n")
    print("\nConfigs, for --config=NAME; or --config=path/to/my_config.py:")
    print(*(f"  {name:<{width}}  {config.about}" for name, config in CONFIGS.items()), sep="\n")


if __name__ == "__main__":
    main()
