"""Programs beside the library: benchmarks start, and two run on toys; the fault drill; `convert_gguf`."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import in_process
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnas import files
from jaxnas.training.checkpoint import Checkpointer
from tools.drill.contents import differences

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
PROGRAMS = sorted(name for name, source in SOURCES.items() if '__name__ == "__main__"' in source)


def benchmark(name, *arguments):
    fast = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
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
        done = benchmark("recipes", *given, *more)
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
    refused = benchmark("recipes", *given, "--passes=12")
    assert refused.returncode != 0 and "is of other settings (passes)" in refused.stderr


@pytest.mark.nightly
def test_the_more_devices_share_parameters_the_less_state_each_has_and_the_more_is_gathered(tmp_path):
    rows = []
    for model in (1, 2):
        out = tmp_path / f"{model}.json"
        given = ("--platform=cpu", "--devices=4", "--size=toy", "--batch=8", f"--model_devices={model}")
        done = benchmark("scale", *given, f"--out={out}")
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(out.read_text())["rows"][0])
    alone, shared = rows
    assert alone["devices"] == shared["devices"] == 4 and alone["temporary_GiB"] > 0
    assert 0.5 <= shared["arguments_GiB"] / alone["arguments_GiB"] < 0.7  # all but vectors and the batch
    assert set(alone["collectives"]) == {"all-reduce"}
    assert shared["collectives"]["all-gather"]["MB"] > 0
    assert 0 < shared["efficiency"] < alone["efficiency"] < 1


def workdir(path, weight=1.0, score=0.5, seconds=1.0):
    """What a run leaves, as far as the drill tells files apart."""
    (path / "search").mkdir(parents=True)
    with Checkpointer(path / "checkpoints") as checkpointer:
        for step in (5, 10):
            checkpointer.save(step, {"w": jnp.full(3, weight), "step": step}, {})
    files.append_lines(path / "search" / "history.jsonl", [{"index": 0, "score": score}])
    files.write_json(path / "comparison.json", {"seconds_per_search": seconds, "score": 0.5})
    files.write_arrays(path / "part.npz", {"codes": np.arange(3), "seconds": np.asarray(seconds)})
    files.write_json(path / "times.json", {"seconds": seconds})
    page = f"<p>0.5 of 3 networks, in {seconds} ms, {seconds} steps per second</p>"
    (path / "report.html").write_text(page)
    return path


def test_the_drill_sees_all_that_differs_but_times(tmp_path):
    one, above_one = workdir(tmp_path / "one"), float(np.nextafter(np.float32(1), np.float32(2)))
    for number, (changes, expected) in enumerate(
        (
            ({"seconds": 2.0}, []),
            ({"score": 0.6}, ["search/history.jsonl"]),
            ({"weight": above_one}, ["checkpoints"]),
        )
    ):
        two = workdir(tmp_path / str(number), **changes)
        (two / ".report.html.tmp-1234").write_text("what a kill left")
        assert differences(one, two) == expected
        (two / "part.npz").unlink()
        (two / "report.html").write_text("<p>0.6 of 3 networks, in 1.0 ms, 1.0 steps per second</p>")
        assert differences(one, two) == sorted([*expected, "part.npz", "report.html"])


@pytest.mark.nightly
def test_a_short_drill_ends_as_it_should(tmp_path):
    command = [sys.executable, "-m", "tools.fault_drill", f"--workdir={tmp_path / 'drill'}"]
    command += ["--kills=4", "--only=kills,two_runs,clock", "--flows=comparison,training"]
    options = dict(cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=1500)
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| ([\w ]+) \| (\w+) \| (\d+) \| (\d*) \| (\d*) \| (\d*) \|$", done.stdout, re.M)
    figures = {(fault, flow): tuple(rest) for fault, flow, *rest in rows}
    assert sum(int(rest[0]) for (fault, _), rest in figures.items() if fault == "kills") == 4
    for flow in ("comparison", "training"):
        assert figures["second run", flow] == ("1", "0", "1", "0")
        assert figures["clock set back", flow] == ("1", "1", "0", "0")


def test_what_the_drill_does_not_know_is_refused(tmp_path):
    given = f"--workdir={tmp_path / 'drill'}", "--flows=trainings"
    message = in_process.main("tools.fault_drill", *given, code=2)
    assert "trainings" in message and "training, search" in message and not (tmp_path / "drill").exists()


def test_convert_gguf_refuses_what_it_cannot_read_or_write(tmp_path, monkeypatch):
    real, other = tmp_path / "real.gguf", tmp_path / "other.gguf"
    real.write_bytes(b"GGUF")
    other.write_bytes(b"PK\x03\x04")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda *name: None if name == ("gguf",) else find(*name))
    cases = [
        (tmp_path / "none.gguf", tmp_path / "out", "none.gguf"),
        (other, tmp_path / "out", "PK"),
        (real, tmp_path, str(tmp_path)),
        (real, tmp_path / "out", "jaxnas[gguf]"),
    ]
    for source, output, name in cases:
        said = in_process.main("tools.convert_gguf", f"--gguf={source}", f"--output={output}", code=2)
        assert name in said
