"""Starts `jaxnas.experiments.evaluate`."""

import runpy

runpy.run_module("jaxnas.experiments.evaluate", run_name="__main__", alter_sys=True)
