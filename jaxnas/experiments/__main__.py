"""Lists the binaries, configs, strategies and tables, or runs a binary.

jaxnas
jaxnas search --config=autoformer_digits --workdir=runs/digits
"""

from __future__ import annotations

import importlib
import runpy
import signal
import sys
import textwrap

BINARIES = ("train_supernet", "search", "retrain", "evaluate", "compare")


def main() -> None:
    """Runs the binary that the first argument names, or lists all."""
    name = "".join(sys.argv[1:2])
    if name in BINARIES:
        del sys.argv[1]
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # see `experiments`
        runpy.run_module(f"jaxnas.experiments.{name}", run_name="__main__", alter_sys=True)
    elif name and not name.startswith("-"):
        print(f"error: there is no {name!r}; expected one of {', '.join(BINARIES)}.", file=sys.stderr)
        sys.exit(2)
    else:
        _list()


def _list() -> None:
    from jaxnas import tabular
    from jaxnas.experiments.configs import CONFIGS
    from jaxnas.experiments.strategies import STRATEGIES

    programs = {
        name: importlib.import_module(f"jaxnas.experiments.{name}").__doc__ or "" for name in BINARIES
    }
    width = max(map(len, (*BINARIES, *CONFIGS)))
    print("Binaries, in the order of a run; jaxnas NAME --help says more:")
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
