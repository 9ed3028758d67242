"""Starts `jaxnas.experiments.search`."""

import runpy

runpy.run_module("jaxnas.experiments.search", run_name="__main__", alter_sys=True)
