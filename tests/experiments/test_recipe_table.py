"""The benchmark of recipes: what is done is kept, is not done again, and is not mixed with other settings."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly


def test_what_is_done_is_kept(tmp_path):
    kept = tmp_path / "recipes.json"

    def run(*more):
        command = [sys.executable, "-m", "experiments.benchmarks.recipes", "--config=autoformer_digits"]
        command += [f"--data_dir={tmp_path}", f"--out={kept}", "--random=3", "--alone=2", "--passes=8"]
        command += ["--set=network.space=vit((8, 16), (1,), (1, 2), (1.0,))", "--set=training.batch_size=8"]
        command += ["--set=training.warmup_steps=1", "--set=retraining.steps=2", "--set=search.limit=1"]
        fast = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
        return subprocess.run([*command, *more], capture_output=True, text=True, env=os.environ | fast)

    first = run("--seeds=1", "--recipes=single path")
    assert first.returncode == 0, first.stderr
    alone, line = (json.loads(text) for text in first.stdout.splitlines() if text.startswith("{"))
    assert alone["steps"] == 2
    assert line["recipe"] == "single path" and line["steps"] == 8 and line["networks"] == 1
    before = json.loads(kept.read_text())
    assert len(before["alone"]) == 2
    assert [len(row["random"]) for row in before["recipes"]["single path"].values()] == [3]

    # Figures that could not come from a training show that none was made.
    before["recipes"]["single path"]["0"]["smallest"] = 0.125
    kept.write_text(json.dumps(before))
    picture = tmp_path / "recipes.png"
    more = run("--seeds=1", "--recipes=single path", f"--picture={picture}")
    assert more.returncode == 0, more.stderr
    _, line = (json.loads(text) for text in more.stdout.splitlines() if text.startswith("{"))
    assert line["smallest"]["mean"] == 0.125
    assert picture.read_bytes().startswith(b"\x89PNG")

    refused = run("--seeds=1", "--recipes=single path", "--passes=12")
    assert refused.returncode != 0 and "is of other settings (passes)" in refused.stderr
