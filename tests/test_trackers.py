"""Trackers show what the files of a run say, in the libraries that people watch runs with."""

import importlib
import importlib.util
import json
import os
import struct
import sys

import pytest
import refusals
import small_tasks

from jaxnas import files, processes, runs, search, trackers, training
from jaxnas.experiments import config as config_lib
from jaxnas.experiments.config import ConfigError
from jaxnas.experiments.configs import CONFIGS

TASK, NET = small_tasks.task_of("images"), small_tasks.perceptron(1, (1, 4))
TRAINING = training.Training(
    steps=6, batch_size=8, warmup_steps=1, log_every=1, checkpoint_every=2, evaluate_every=3
)
# The packages that write, and read again; not each comes with the test extra.
PACKAGES = {
    "tensorboard": ("tensorboardX", "tensorboard"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy"),
    "trackio": ("trackio",),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


class Kept:
    """A user's tracker, which keeps what it is given, or fails from some step on."""

    def __init__(self, until=10**9):
        self.until, self.scalars_of, self.tables, self.artifacts = until, [], {}, []

    def scalars(self, step, values):
        if step > self.until:
            raise OSError("no network")
        self.scalars_of.append((step, dict(values)))

    def table(self, name, rows):
        self.tables[name] = rows

    def artifact(self, path):
        with open(path) as file:
            self.artifacts.append((os.path.basename(path), file.read(15)))

    def close(self):
        pass


def told(records):
    """Values by name and step of the records of metrics.jsonl, the last of each step."""
    found = {}
    for record in records:
        for name, value in record.items():
            if name not in ("step", "split"):
                found.setdefault(f"{record['split']}/{name}", {})[record["step"]] = value
    return found


def read_tensorboard(root):
    """Scalars by name and step, and texts by name; a step that is there twice is an error."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found, texts = {}, {}
    for folder in {path.parent for path in (root / "tensorboard").rglob("events.*")}:
        events, group = EventAccumulator(str(folder)).Reload(), str(folder.relative_to(root / "tensorboard"))
        for name in events.Tags()["scalars"]:
            points = [(event.step, event.value) for event in events.Scalars(name)]
            assert len(dict(points)) == len(points), name
            found[f"{group}/{name}"] = dict(points)
        for name in events.Tags()["tensors"]:
            texts[name] = events.Tensors(name)[-1].tensor_proto.string_val[0].decode()
    assert f"| {texts['networks/text_summary'].split('|')[1].strip()} |" == "| network |"
    return found, "report.html/text_summary" in texts


def read_wandb(root):
    """By wandb's own messages, which its files hold as a log of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, kinds = {}, []
    for path in sorted((root / "wandb").glob("offline-run-*/*.wandb")):
        data, at, part = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if at % 32768 > 32768 - 7:  # the padding of a block
                at += -at % 32768
            _, length, kind = struct.unpack_from("<IHB", data, at)  # kind: 1 whole, 2 first, 3 middle, 4 last
            part, at = part + data[at + 7 : at + 7 + length], at + 7 + length
            if kind in (1, 4):
                record, part = Record.FromString(part), b""
                kinds.append(record.artifact.type)
                items = record.history.item
                row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in items}
                for name, value in row.items():
                    group = name.rpartition("/")[0] + "/step"
                    if group in row and name != group:
                        found.setdefault(name, {})[row[group]] = value
    return found, "html" in kinds


def read_mlflow(root):
    client = importlib.import_module("mlflow").MlflowClient(f"sqlite:///{root}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("jaxnas").experiment_id])
    found = {}
    for name in run.data.metrics:
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        assert len(dict(points)) == len(points), name
        found[name] = dict(points)
    kept = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert "networks.json" in kept and run.info.status == "FINISHED"
    return found, "report.html" in kept


def read_trackio(root):
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    (name,) = storage.get_runs("jaxnas")
    found = {}
    for line in storage.get_logs("jaxnas", name):
        for key, value in line.items():
            if "/" in key:
                assert line["step"] not in found.get(key, {}), key
                found.setdefault(key, {})[line["step"]] = value
    return found, True


READERS = {name: globals()[f"read_{name}"] for name in PACKAGES}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run that is stopped, goes on, is searched and retrained, in all libraries that are here at once."""
    root = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_DIR", str(root))
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("TRACKIO_DIR", str(root / "trackio"))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/mlflow.db")
        patch.chdir(root)  # MLflow's artifacts
        here = [name for name, needs in PACKAGES.items() if all(map(_installed, needs))]
        kept, failing = Kept(), Kept(until=3)

        def fit(*more):
            log = [kept, failing, *trackers.of(here, root), *more]
            options = training.Options(log=log)
            try:
                return training.fit(TASK, NET, TRAINING, workdir=root, options=options)
            finally:
                options.log.close()

        def stop(step, values):
            if step == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(stop)
        variables = fit().variables
        strategy = search.RandomSearch(NET.space, evaluations=2, batch=1)
        lab = runs.Lab(root, alone=TRAINING, log=[kept, *trackers.of(here, root)])
        result = runs.search_and_finish(TASK, NET, variables, runs.Search(runs.ByStrategy(strategy)), lab)
        lab.log.close()
        yield root, here, kept, failing, result


def _installed(name):
    return importlib.util.find_spec(name) is not None


def test_a_tracker_of_a_user_has_the_records_of_the_run(tracked):
    root, _, kept, failing, result = tracked
    records = told(files.read_lines(root / "metrics.jsonl"))
    given = {}
    for step, values in kept.scalars_of:
        for name, value in values.items():
            given.setdefault(name, {})[step] = value
    assert {name: given[name] for name in records} == records
    searched = files.read_lines(root / "search/history.jsonl")
    assert given["search/random/best"][2] == max(line["score"] for line in searched)
    assert given["result/params"] == {0: result.found.costs["params"]}
    (rows,) = kept.tables.values()
    assert [row["network"] for row in rows] == ["found", *(one.name for one in result.networks)]
    assert rows[0]["test accuracy"] == result.found.metrics["test"]["accuracy"]
    assert kept.artifacts == [("report.html", "<!DOCTYPE html>")]
    assert max(step for step, _ in failing.scalars_of) == 3  # and the run went on


@pytest.mark.parametrize("name", PACKAGES)
def test_a_library_reads_what_the_run_wrote_each_step_once(tracked, name):
    root, here, kept, *_ = tracked
    if name not in here:
        pytest.skip(f"{' and '.join(PACKAGES[name])} are not installed")
    found, page = READERS[name](root)
    records = told(files.read_lines(root / "metrics.jsonl"))
    assert page and {"result/params", "search/random/best"} < set(found)
    for key, points in records.items():
        assert found[key] == pytest.approx(points, rel=1e-6), key


def test_a_tracker_never_stops_a_run(caplog, monkeypatch):
    """It is left out where it fails, which is said once; of several processes the first one writes."""
    failing, good = Kept(until=1), Kept()
    log = trackers.Log([failing, good])
    for step in range(4):
        log.within("space_A").scalars(step, "train", {"loss": 1.0, "bad": float("nan"), "text": "x"})
    assert [step for step, _ in failing.scalars_of] == [0, 1]
    assert good.scalars_of == [(step, {"space_A/train/loss": 1.0}) for step in range(4)]
    assert [record.message for record in caplog.records if "no network" in record.message] != []
    monkeypatch.setattr(processes, "is_first", lambda: False)
    log.scalars(9, "train", {"loss": 1.0})
    assert len(good.scalars_of) == 4


def test_what_is_no_tracker_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    refusals.check(
        (lambda: runs.Lab("x", log=[3]), TypeError, "3", "TensorBoard"),
        (lambda: runs.Lab("x", log=[trackers.WandB]), TypeError, "WandB"),
        (lambda: training.Options(log="wandb"), TypeError, "'wandb'"),
        (lambda: trackers.WandB("p", "n"), ImportError, "wandb", "pip install 'jaxnas[wandb]'"),
    )


def test_a_config_names_trackers():
    config = CONFIGS["autoformer_digits"]
    assert config_lib.override(config, ["log=tensorboard,mlflow"]).log == ("tensorboard", "mlflow")
    refusals.check(
        (lambda: config_lib.override(config, ["log=tensorbord"]), ConfigError, "log", "tensorbord", "wandb"),
        (lambda: config_lib.Config(**vars(config) | {"log": ("x",)}), ConfigError, "log", "'x'", "mlflow"),
    )
