"""The benchmark of what a step needs on many devices, tried out on a toy."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_more_devices_share_parameters_the_less_state_each_has_and_the_more_is_gathered(tmp_path):
    rows = {}
    for model in (1, 2):
        out = tmp_path / f"{model}.json"
        command = [sys.executable, "-m", "experiments.benchmarks.scale", "--platform=cpu", "--devices=4"]
        command += ["--size=toy", "--batch=8", f"--model_devices={model}", f"--out={out}"]
        flags = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
        subprocess.run(command, cwd=ROOT, env=os.environ | flags, check=True, capture_output=True, text=True)
        rows[model] = json.loads(out.read_text())["rows"]
    alone, shared = rows[1][0], rows[2][0]
    assert alone["devices"] == shared["devices"] == 4 and alone["temporary_GiB"] > 0
    assert 0.5 <= shared["arguments_GiB"] / alone["arguments_GiB"] < 0.7  # all but vectors and the batch
    assert set(alone["collectives"]) == {"all-reduce"}
    assert shared["collectives"]["all-gather"]["MB"] > 0
    assert 0 < shared["efficiency"] < alone["efficiency"] < 1
