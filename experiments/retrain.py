"""Starts `jaxnas.experiments.retrain`."""

import runpy

runpy.run_module("jaxnas.experiments.retrain", run_name="__main__", alter_sys=True)
