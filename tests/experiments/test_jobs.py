"""Independent jobs of the binaries: what they are told, and what happens when one fails or is stopped."""

import os
import time
import types

import objectives
import pytest
from absl import flags

from jaxnas import executors
from jaxnas.experiments import binary, config, retrain
from jaxnas.experiments.configs import CONFIGS


def with_flags(monkeypatch, **values):
    monkeypatch.setattr(flags, "FLAGS", types.SimpleNamespace(**values))


def test_paths_of_this_machine_are_absolute(monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    monkeypatch.setenv("HOME", "/home/me")
    for text, ending, absolute in (
        ("../one", "", "/here/../one"),
        ("~/data", "", "/home/me/data"),
        ("gs://bucket/one.csv", ".csv", "gs://bucket/one.csv"),
        ("one.csv", ".csv", "/here/one.csv"),
        ("module:function", ".csv", "module:function"),
        ("one.py:large", ".py", "/here/one.py:large"),
    ):
        assert binary.absolute(text, ending) == absolute


def test_an_error_is_said_before_the_jobs_that_run_have_ended_and_no_others_begin(monkeypatch, tmp_path):
    with_flags(monkeypatch, executor="processes", workers=2, worker_gpus=0)
    said = []

    def log(message, error):
        said.append(message % error)
        (tmp_path / "go").touch()

    monkeypatch.setattr(binary.logging, "error", log)
    jobs, start = [(str(tmp_path), number) for number in range(30)], time.monotonic()
    with pytest.raises(OSError, match="disk full"), binary.executor() as executor:
        results = executors.as_completed(objectives.began, jobs, executor)
        assert next(results) == (0, None)
        raise OSError("disk full")
    assert said == ["This command ends when the jobs that run have ended: disk full"]
    assert time.monotonic() - start < 60 and len(list(tmp_path.iterdir())) < 15
    results.close()


@pytest.mark.parametrize("workers, done", [(None, 1), (2, 2)])
def test_a_job_that_was_stopped_stops_others_only_where_they_would_follow_in_this_process(
    monkeypatch, tmp_path, capsys, workers, done
):
    monkeypatch.chdir(tmp_path)
    given = dict(executor=workers and "processes", workers=workers, worker_gpus=0, distributed=False)
    given |= dict.fromkeys(("coordinator", "processes", "process"))
    given |= dict(config="small.py", workdir="run", set=[], data_dir="data", architecture="found")
    with_flags(monkeypatch, **given, weights="scratch", seeds=["0", "1", "2"])
    told = []

    def as_completed(function, jobs, executor):
        told.extend(jobs)
        for number in range(3):
            yield number, None if number == 1 else ({"test": {"accuracy": 0.5}}, {})

    monkeypatch.setattr(executors, "as_completed", as_completed)
    monkeypatch.setattr(config, "find", lambda registry, name: CONFIGS["autoformer_digits"])
    monkeypatch.setattr(retrain, "times_line", lambda times: "")
    assert retrain.main() == binary.STOPPED
    output = capsys.readouterr().out
    assert output.count("test: accuracy 0.5") == done and "the same command resumes" in output
    paths = [str(tmp_path / name) for name in ("small.py", "run", "data")]
    for number, (job, architecture, weights, seed) in enumerate(told):
        assert [job.config, job.workdir, job.data_dir] == paths
        assert (architecture, weights, seed) == ("found", "scratch", number)
