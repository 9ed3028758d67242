"""Starts `jaxnas.experiments.train_supernet`."""

import runpy

runpy.run_module("jaxnas.experiments.train_supernet", run_name="__main__", alter_sys=True)
