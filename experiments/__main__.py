"""Lists the binaries, configs, strategies and tables."""

from jaxnas.experiments.__main__ import main

main()
