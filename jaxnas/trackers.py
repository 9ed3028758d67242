"""Trackers: scalars, tables and pages of runs in TensorBoard, Weights & Biases, MLflow and trackio.

    log = [trackers.TensorBoard("runs/mine/tensorboard"), trackers.WandB("digits", "mine")]
    training.fit(task, net, 500, workdir="runs/mine", options=training.Options(log=log))
    runs.search_and_finish(task, net, variables, settings, runs.Lab("runs/mine", log=log))

The files of a run stay its record: a tracker that fails is left out, and the run continues.
"""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from jaxnas import files, processes
from jaxnas.display import Rows, columns_of, is_number

_log = logging.getLogger(__name__)
Name = Literal["tensorboard", "wandb", "mlflow", "trackio"]
NAMES = get_args(Name)


@runtime_checkable
class Tracker(Protocol):
    """What receives the figures of a run; any object with these methods, or a function as `scalars`, is one.

    An error that a method raises is logged, and the tracker is left out from then on.
    """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Takes finite numbers of a step, named as "train/loss"; a resumed run repeats its last steps."""

    def table(self, name: str, rows: Rows) -> None:
        """Takes a table: values by column, a mapping for each row."""

    def artifact(self, path: str) -> None:
        """Takes a file of this machine."""

    def close(self) -> None:
        """Ends the record; `scalars` may follow, and continues it."""


class _Function:
    """A function of the step and the scalars as a tracker."""

    def __init__(self, scalars: Callable[[int, Mapping[str, float]], Any]) -> None:
        self.scalars = scalars

    def table(self, *_: Any) -> None:
        """Does nothing, as the others."""

    artifact = close = table


class Log:
    """Several trackers as one that never stops a run; of several processes the first one uses it.

    Trackers are closed when the process ends.
    """

    def __init__(self, trackers: Iterable[Any], prefix: str = "") -> None:
        self._prefix, self.live = prefix, list[Any]()
        for one in trackers:
            known = isinstance(one, Tracker)
            if isinstance(one, type) or not (known or callable(one)):
                raise TypeError(
                    f"log has {one!r}, which is no tracker; give jaxnas.trackers.TensorBoard(folder), WandB, "
                    "MLflow, Trackio, an object with scalars, table, artifact and close, or a function of "
                    "the step and the scalars."
                )
            self.live.append(one if known else _Function(one))
        if self.live:
            atexit.register(self.close)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.live)

    def within(self, name: str) -> Log:
        """The same trackers, with a name in front of those of all scalars."""
        inner = Log((), f"{self._prefix}{name}/")
        inner.live = self.live
        return inner

    def scalars(self, step: int, group: str, values: Mapping[str, Any]) -> None:
        """Passes the finite numbers among values on, named as "group/name"."""
        group = f"{self._prefix}{group}"
        numbers = {f"{group}/{name}": float(x) for name, x in values.items() if is_number(x)}
        if numbers:
            self._each("scalars", step, numbers)

    def record(self, values: Mapping[str, Any]) -> None:
        """Passes a record of metrics.jsonl on."""
        rest = {name: x for name, x in values.items() if name not in ("step", "split")}
        self.scalars(values["step"], values.get("split", "train"), rest)

    def result(self, rows: Rows, page: files.Path | None = None) -> None:
        """Passes the networks of a result on, of which the first is the found one, and the page."""
        self.scalars(0, "result", rows[0])
        self._each("table", f"{self._prefix}networks", rows)
        if page is None or not self.live or not processes.is_first():
            return
        with tempfile.TemporaryDirectory() as folder:
            path = files.as_path(page)
            if files.is_remote(path):
                local = pathlib.Path(folder) / path.name
                local.write_bytes(path.read_bytes())
                path = local
            self._each("artifact", os.fspath(path))

    def close(self) -> None:
        """Closes all trackers."""
        self._each("close")

    def _each(self, method: str, *args: Any) -> None:
        for one in [*self.live] if self.live and processes.is_first() else ():
            try:
                getattr(one, method)(*args)
            except Exception as error:
                self.live.remove(one)
                _log.warning(
                    "%s.%s failed, and is left out from here on; the run continues. %s: %s",
                    *(type(one).__name__, method, type(error).__name__, error),
                )


NONE = Log(())


def as_log(trackers: Iterable[Any]) -> Log:
    """Trackers as one; a `Log` stays as it is. TypeError for what is no list of trackers."""
    if isinstance(trackers, Log):
        return trackers
    if not isinstance(trackers, Iterable) or isinstance(trackers, str):
        raise TypeError(
            f"log is {trackers!r}, expected a list of trackers, as [trackers.TensorBoard(folder)]."
        )
    return Log(trackers)


def of(names: Iterable[str], workdir: str | os.PathLike, part: str = "") -> list[Tracker]:
    """Trackers by name, as configs have them, of a run in a workdir, or of a part of it.

    The settings of the libraries come from their environment variables, as WANDB_PROJECT.
    """
    root = files.absolute(files.as_path(workdir))
    name = f"{root.name}-{part}" if part else root.name
    label = f"{name}-{files.digest(os.fspath(root).encode())[:8]}"
    made = {
        "tensorboard": lambda: TensorBoard(root / "tensorboard"),
        "wandb": lambda: WandB(os.environ.get("WANDB_PROJECT", "jaxnas"), label),
        "mlflow": lambda: MLflow(os.environ.get("MLFLOW_EXPERIMENT_NAME", "jaxnas"), label),
        "trackio": lambda: Trackio(os.environ.get("TRACKIO_PROJECT", "jaxnas"), label),
    }
    return [made[name]() for name in names]


class TensorBoard:
    """Event files: a folder for each group of scalars ("train", "search/Evolution"), the runs in TensorBoard.

    A resumed run replaces the steps that it repeats.

    Args:
      folder: for `tensorboard --logdir`.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self._library, self._folder = _needed("tensorboardX", "tensorboard"), os.fspath(folder)
        self._writers: dict[str, Any] = {}

    def _writer(self, group: str, first: int | None = None) -> Any:
        if group not in self._writers:
            path = os.path.join(self._folder, group)
            # Names have whole seconds, and are read in their order.
            later = f".{time.time_ns()}"
            self._writers[group] = self._library.SummaryWriter(path, purge_step=first, filename_suffix=later)
        return self._writers[group]

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for group, own in _groups(values).items():
            writer = self._writer(group, step)
            for name, value in own.items():
                writer.add_scalar(name, value, step)
            writer.flush()

    def table(self, name: str, rows: Rows) -> None:
        """See `Tracker`: a text, in Markdown."""
        columns, cells = _cells(rows)
        lines = [columns, ["---"] * len(columns), *cells]
        text = "\n".join("| " + " | ".join(map(_shown, line)) + " |" for line in lines)
        self._writer("result").add_text(name, text)
        self._writer("result").flush()

    def artifact(self, path: str) -> None:
        """See `Tracker`: TensorBoard keeps no files, so a text says where it is."""
        self._writer("result").add_text(os.path.basename(path), f"`{path}`")
        self._writer("result").flush()

    def close(self) -> None:
        """See `Tracker`."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class _Run:
    """What the libraries with a run of `init`, `log` and `finish` share.

    Steps of a group of scalars that the run already has are left out, where the library knows them.
    """

    def __init__(self, library: Any, project: str, name: str) -> None:
        self._library, self._project, self._name = library, project, name
        self._run: Any = None
        self._last: dict[str, int] = {}

    def _opened(self) -> Any:
        if self._run is None:
            self._run, self._last = self._begin(), {}
        return self._run

    def _begin(self) -> Any:
        raise NotImplementedError

    def _known(self, group: str) -> int:
        """The last step of a group that the run has; -1 if it has none, or if that is not known."""
        raise NotImplementedError

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        run = self._opened()
        for group, own in _groups(values).items():
            if group not in self._last:
                self._last[group] = self._known(group)
            if step > self._last[group]:
                self._send(run, step, group, {f"{group}/{name}": x for name, x in own.items()})
                self._last[group] = step

    def _send(self, run: Any, step: int, group: str, values: dict[str, float]) -> None:
        run.log(values | {f"{group}/step": step})  # Steps of a run increase over all groups; these need not.

    def table(self, name: str, rows: Rows) -> None:
        """See `Tracker`."""
        columns, cells = _cells(rows)
        self._opened().log({name: self._library.Table(columns=columns, data=cells)})

    def artifact(self, path: str) -> None:
        """See `Tracker`."""
        name = f"{self._name}-{os.path.basename(path)}"
        self._opened().log_artifact(path, name=name, type=os.path.splitext(path)[1][1:])

    def close(self) -> None:
        """See `Tracker`."""
        if self._run is not None:
            self._run.finish()
        self._run = None


class WandB(_Run):
    """A run of Weights & Biases, which a resumed run continues; offline by WANDB_MODE=offline.

    Offline runs do not know their steps: what a resumed run repeats is there twice.

    Args:
      project: of the run.
      name: of the run, also its id, unique in the project.
      **options: further arguments of `wandb.init`.
    """

    def __init__(self, project: str, name: str, **options: Any) -> None:
        super().__init__(_needed("wandb", "wandb"), project, name)
        self._options = options

    def _begin(self) -> Any:
        given = {"id": "".join(x if x.isalnum() else "-" for x in self._name), "resume": "allow"}
        return self._library.init(project=self._project, name=self._name, **(given | self._options))

    def _known(self, group: str) -> int:
        self._run.define_metric(f"{group}/step", hidden=True)
        self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        return int(self._run.summary.get(f"{group}/step", -1))


class Trackio(_Run):
    """A run of trackio, the local dashboard of Hugging Face, which a resumed run continues.

    Args:
      project: of the run.
      name: of the run, unique in the project.
      **options: further arguments of `trackio.init`.
    """

    def __init__(self, project: str, name: str, **options: Any) -> None:
        super().__init__(_needed("trackio", "trackio"), project, name)
        self._options = options

    def _begin(self) -> Any:
        given = {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        return self._library.init(project=self._project, name=self._name, **(given | self._options))

    def _known(self, group: str) -> int:
        storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        lines = storage.get_logs(self._project, self._name)
        return max((int(line["step"]) for line in lines if _first(line, group)), default=-1)

    def _send(self, run: Any, step: int, group: str, values: dict[str, float]) -> None:
        run.log(values, step=step)


class MLflow(_Run):
    """A run of MLflow, which a resumed run continues.

    Args:
      experiment: which the run is in; made if it is not there.
      name: of the run, unique in the experiment.
      uri: of the tracking server or database; None for MLFLOW_TRACKING_URI, or MLflow's own default.
    """

    def __init__(self, experiment: str, name: str, uri: str | None = None) -> None:
        super().__init__(_needed("mlflow", "mlflow"), experiment, name)
        self._uri = uri

    def _begin(self) -> str:
        self._client = client = self._library.MlflowClient(self._uri)
        known = client.get_experiment_by_name(self._project)
        experiment = client.create_experiment(self._project) if known is None else known.experiment_id
        quoted = self._name.replace("'", "\\'")
        found = client.search_runs([experiment], f"attributes.run_name = '{quoted}'", max_results=1)
        if not found:
            return client.create_run(experiment, run_name=self._name).info.run_id
        client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id

    def _known(self, group: str) -> int:
        name = _first(self._client.get_run(self._run).data.metrics, group)
        history = self._client.get_metric_history(self._run, name) if name else ()
        return max((int(x.step) for x in history), default=-1)

    def _send(self, run: Any, step: int, group: str, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(run, name, value, step=step)

    def table(self, name: str, rows: Rows) -> None:
        """See `Tracker`: a JSON file of columns and data, as by `mlflow.log_table`."""
        columns, cells = _cells(rows)
        self._client.log_dict(self._opened(), {"columns": columns, "data": cells}, f"{name}.json")

    def artifact(self, path: str) -> None:
        """See `Tracker`."""
        run = self._opened()
        self._client.log_artifact(run, path)

    def close(self) -> None:
        """See `Tracker`."""
        if self._run is not None:
            self._client.set_terminated(self._run)
        self._run = None


def _needed(library: str, extra: str) -> Any:
    """A library, imported; ImportError with the command that installs it."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"this tracker needs {library}: pip install 'jaxnas[{extra}]'") from error


def _groups(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Scalars by group, what comes before the last "/" of their names."""
    found: dict[str, dict[str, float]] = {}
    for full, value in values.items():
        group, _, name = full.rpartition("/")
        found.setdefault(group, {})[name] = value
    return found


def _first(names: Iterable[str], group: str) -> str | None:
    """The first name that is of a group."""
    return next((name for name in names if name.rpartition("/")[0] == group), None)


def _cells(rows: Rows) -> tuple[list[str], list[list[Any]]]:
    """The columns of a table in their order, and its rows; an architecture is JSON."""
    columns = columns_of(rows)
    plain = [[row.get(column) for column in columns] for row in rows]
    return columns, [[json.dumps(x) if isinstance(x, Mapping) else x for x in row] for row in plain]


def _shown(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
