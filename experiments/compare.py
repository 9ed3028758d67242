"""Starts `jaxnas.experiments.compare`."""

import runpy

runpy.run_module("jaxnas.experiments.compare", run_name="__main__", alter_sys=True)
