"""Benchmark programs: each starts, and two run on toys."""

import json
import os
import pathlib
import re
import subprocess
import sys

import in_process
import pytest

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
PROGRAMS = sorted(name for name, source in SOURCES.items() if '__name__ == "__main__"' in source)


def run(benchmark, *arguments):
    fast = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | fast, capture_output=True, text=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_lists_its_flags(name):
    shown = in_process.main(f"benchmarks.{name}", "--help")
    defined = re.findall(r"flags\.DEFINE_\w+\(\s*\"(\w+)\"", SOURCES[name])
    assert defined and all(f"  --{flag}:" in shown or f"  --[no]{flag}:" in shown for flag in defined)
    assert f"python -m benchmarks.{name} --" in SOURCES[name]


@pytest.mark.nightly
def test_what_is_done_of_the_recipes_is_kept_and_not_mixed_with_other_settings(tmp_path):
    kept, picture = tmp_path / "recipes.json", tmp_path / "recipes.png"
    settings = ["network.space=vit((8, 16), (1,), (1, 2), (1.0,))", "training.batch_size=8"]
    settings += ["training.warmup_steps=1", "retraining.steps=2", "search.limit=1"]
    given = ["--config=autoformer_digits", f"--data_dir={tmp_path}", f"--out={kept}", "--random=3"]
    given += ["--alone=2", "--passes=8", "--seeds=1", "--recipes=single path"]
    given += [f"--set={one}" for one in settings]

    def lines(*more):
        done = run("recipes", *given, *more)
        assert done.returncode == 0, done.stderr
        return [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]

    alone, line = lines()
    assert alone["steps"] == 2
    assert line["recipe"] == "single path" and line["steps"] == 8 and line["networks"] == 1
    before = json.loads(kept.read_text())
    assert len(before["alone"]) == 2
    assert [len(row["random"]) for row in before["recipes"]["single path"].values()] == [3]
    # Figures that could not come from a training show that none was made.
    before["recipes"]["single path"]["0"]["smallest"] = 0.125
    kept.write_text(json.dumps(before))
    assert lines(f"--picture={picture}")[1]["smallest"]["mean"] == 0.125
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused = run("recipes", *given, "--passes=12")
    assert refused.returncode != 0 and "is of other settings (passes)" in refused.stderr


@pytest.mark.nightly
def test_the_more_devices_share_parameters_the_less_state_each_has_and_the_more_is_gathered(tmp_path):
    rows = []
    for model in (1, 2):
        out = tmp_path / f"{model}.json"
        given = ("--platform=cpu", "--devices=4", "--size=toy", "--batch=8", f"--model_devices={model}")
        done = run("scale", *given, f"--out={out}")
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(out.read_text())["rows"][0])
    alone, shared = rows
    assert alone["devices"] == shared["devices"] == 4 and alone["temporary_GiB"] > 0
    assert 0.5 <= shared["arguments_GiB"] / alone["arguments_GiB"] < 0.7  # all but vectors and the batch
    assert set(alone["collectives"]) == {"all-reduce"}
    assert shared["collectives"]["all-gather"]["MB"] > 0
    assert 0 < shared["efficiency"] < alone["efficiency"] < 1
