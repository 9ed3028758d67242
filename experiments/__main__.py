"""Lists the binaries, configs, strategies and tables: python -m experiments."""

from __future__ import annotations

import importlib
import textwrap

from experiments.configs import CONFIGS
from experiments.strategies import STRATEGIES
from jaxnas import tabular

BINARIES = ("train_supernet", "search", "retrain", "evaluate", "compare")


def main() -> None:
    programs = {name: importlib.import_module(f"experiments.{name}").__doc__ or "" for name in BINARIES}
    width = max(map(len, (*BINARIES, *CONFIGS)))
    print("Binaries, in the order of a run; python -m experiments.NAME --help says more:")
    print(*(f"  {name:<{width}}  {text.partition(chr(10))[0]}" for name, text in programs.items()), sep="\n")
    print("\nConfigs, for --config=NAME; or --config=path/to/my_config.py:")
    print(*(f"  {name:<{width}}  {config.about}" for name, config in CONFIGS.items()), sep="\n")
    for title, names in (
        ("Strategies, for compare --strategies=NAME,NAME; or my_module:function:", STRATEGIES),
        ("Tables, for compare --benchmark=NAME; or path/to/my.csv or my_module:function:", tabular.names()),
    ):
        print(f"\n{title}")
        print(textwrap.fill(", ".join(names), 100, initial_indent="  ", subsequent_indent="  "))


if __name__ == "__main__":
    main()
