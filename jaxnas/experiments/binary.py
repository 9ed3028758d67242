"""Flags, exit statuses and workers of the binaries.

Exit status: 0 done, 2 a mistake of the user, 143 stopped by a signal and saved, 1 everything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor
from logging import CRITICAL, getLogger
from typing import Any

import jax
from absl import app, flags, logging

from jaxnas import executors, files, processes
from jaxnas.experiments import config as config_lib
from jaxnas.experiments.config import Config, ConfigError
from jaxnas.experiments.session import Asked, Session, make_session
from jaxnas.report.advice import CONFIG, SET
from jaxnas.training.checkpoint import CheckpointError
from jaxnas.training.store import DivergedError
from jaxnas.training.workdir import WorkdirError

STOPPED = 143  # as a shell says of a process that SIGTERM ended
CONFIG_FILE = "config.json"
# These belong, in --help, to the binary that defines them.
flags.disclaim_key_flags()


def define_config_flags(registry: Mapping[str, Config], default: str | None = None) -> None:
    """Defines what every program with a config has: --config and --set, and where data are."""
    names = ", ".join(registry)
    flags.DEFINE_string("config", default, f"Name of the config ({names}), or path/to/my_config.py.")
    flags.DEFINE_multi_string("set", [], "Replaces a field of the config, as in --set training.steps=300")
    flags.DEFINE_string(
        "data_dir", None, "Where prepared data sets are, also gs://; by default TFDS's own folder."
    )


def define_flags(registry: Mapping[str, Config]) -> None:
    """Defines the flags of all binaries that run a config."""
    define_config_flags(registry)
    flags.DEFINE_boolean("distributed", False, "One of several processes, on a TPU pod, Slurm or Kubernetes.")
    flags.DEFINE_string("coordinator", None, "Elsewhere: address:port of the first of several processes.")
    flags.DEFINE_integer("processes", None, "With --coordinator: how many processes there are.")
    flags.DEFINE_integer("process", None, "With --coordinator: which of them this is, from 0.")
    flags.DEFINE_string("workdir", None, "Directory of the run; made if it is not there. Required.")


def define_executor_flags() -> None:
    """Defines what every binary with independent jobs has: --executor and --workers."""
    flags.DEFINE_enum(
        "executor", None, ["processes", "ray"], "Where independent jobs run; by default here, in turn."
    )
    flags.DEFINE_integer("worker_gpus", 0, "With --executor=ray how many GPUs each job gets.", lower_bound=0)
    flags.DEFINE_integer(
        "workers",
        None,
        "With --executor=processes how many; with --executor=ray those of a new cluster on this machine. By "
        "default a process for each core, and the cluster that Ray finds.",
        lower_bound=1,
    )


def absolute(text: str, ending: str = "") -> str:
    """A path of this machine from its root; one in an object store stays as it is.

    So does a text without the `ending` of a file, which may be followed by a name, as in my_config.py:large.
    """
    if files.is_remote(text) or not (text.endswith(ending) or f"{ending}:" in text):
        return text
    return str(files.as_path(text).expanduser().absolute())


@contextlib.contextmanager
def executor() -> Iterator[Executor | None]:
    """The executor that the flags ask for, which is shut down at the end; None for none.

    Processes end the jobs that they have begun first, which may take hours. So an error is logged at once.
    """
    name, workers, gpus = flags.FLAGS.executor, flags.FLAGS.workers, flags.FLAGS.worker_gpus
    if name is None and workers is not None:
        raise ConfigError(f"--workers={workers} needs --executor=processes or --executor=ray")
    if name != "ray" and gpus:
        raise ConfigError(f"--worker_gpus={gpus} needs --executor=ray")
    if name is None:
        yield None
        return
    if jax.process_count() > 1:
        raise ConfigError(f"--executor={name} is for one process: leave out --distributed and --coordinator")
    try:
        ray = name == "ray"
        count = os.cpu_count() or 1
        made = executors.Ray(workers, num_gpus=gpus) if ray else executors.processes(workers or count)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"--executor={name} --worker_gpus={gpus}: {error}") from error
    try:
        yield made
    except BrokenExecutor:  # None of the processes is left to wait for.
        raise
    except Exception as error:
        logging.error("This command ends when the jobs that run have ended: %s", error)
        raise
    finally:
        made.shutdown(cancel_futures=True)


def run(main: Callable[[], int | None]) -> None:
    """Runs a binary; a mistake of its user ends it with the message alone.

    `--traceback` shows where in the code such a message comes from. Errors of other kinds are defects and
    always show it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    flags.DEFINE_boolean("traceback", False, "Show where in the code an error message comes from.")
    shown = sys.unraisablehook

    def unraisable(found: Any) -> None:
        # The other writes of a save that failed report to an event loop that Orbax has closed by then.
        if not (isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"):
            shown(found)

    sys.unraisablehook = unraisable
    # Nor are the errors of those writes shown: the first one is told as a sentence.
    getLogger("asyncio").setLevel(CRITICAL)

    def guarded(argv: list[str]) -> None:
        try:
            if len(argv) > 1:
                raise ConfigError(f"Unexpected arguments: {' '.join(argv[1:])}")
            # Orbax logs some twenty lines at INFO for each checkpoint; --verbosity=0 shows them.
            if not flags.FLAGS["verbosity"].present:
                logging.set_verbosity(logging.WARNING)
            sys.exit(main() or 0)
        except KeyboardInterrupt:
            print("stopped: the same command resumes.", file=sys.stderr, flush=True)
            sys.exit(STOPPED)
        except Exception as error:
            told = None if flags.FLAGS.traceback else _told(error)
            if told is None:
                raise
            _fail(*told)

    app.run(guarded, flags_parser=_parse_flags)


def _fail(message: str, end: Callable[[int], Any], status: int) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
    end(status)


def _told(error: Exception) -> tuple[str, Callable[[int], Any], int] | None:
    """The message for an error, the function that ends the process, and its status; None for a defect."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        # A collective that another process does not answer, or JAX's notice that it is gone.
        gone = (
            "another process of this run is gone, or cannot be reached. Start all again, and the run "
            f"resumes from its last checkpoint. JAX: {error}"
        )
        # The usual end would wait for that process.
        return (gone, os._exit, 1) if jax.process_count() > 1 else None
    if isinstance(error, BrokenExecutor):
        advice = "The same command resumes; take fewer workers if memory is short."
        return f"a worker died: {error} {advice}", sys.exit, 1
    if isinstance(error, (ValueError, OSError, CheckpointError, WorkdirError)):
        return str(error), sys.exit, 2
    if isinstance(error, DivergedError):
        return str(error), sys.exit, 1
    if _has_devices():
        return None
    platforms = os.environ.get("JAX_PLATFORMS", "")
    lost = (
        f"JAX finds no device for JAX_PLATFORMS={platforms!r} ({type(error).__name__}: {error}). Install "
        "jaxnas[cuda] or jaxnas[tpu] for accelerators, or set JAX_PLATFORMS=cpu."
    )
    return lost, sys.exit, 2


def _has_devices() -> bool:
    try:
        return bool(jax.devices())
    except Exception:  # JAX raises several kinds, among them an AssertionError
        return False


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _aborted(number: int) -> None:
    """Answers SIGABRT, by which JAX ends a process that was in no collective when another one was lost."""
    del number
    message = (
        "error: JAX has ended this process; what it says is above. If another process of this run is gone: "
        "start all again, and the run resumes from its last checkpoint.\n"
    )
    os.write(2, message.encode())
    os._exit(1)


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; --help shows what the binary does, its flags, and last its examples."""
    if not {"--help", "-help", "-h", "-?"} & set(argv[1:]):
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            _fail(f"{str(error).rstrip('.')}. --help lists the flags.", sys.exit, 2)
    text = sys.modules["__main__"].__doc__ or ""
    paragraphs = text.strip().split("\n\n")
    examples = [one for one in paragraphs if one.startswith("  ")]
    about = [one for one in paragraphs if one not in examples]
    own = flags.FLAGS.main_module_help()
    print("\n\n".join([*about, own.strip("\n"), "Examples:", *examples]))
    sys.exit(0)


def read_config(
    registry: Mapping[str, Config], *, trains: bool, begins: bool = False
) -> tuple[Config, pathlib.Path]:
    """The config that the flags ask for, and the workdir; the processes of a run join first.

    With `trains`, the binary saves a training when SIGTERM asks it to stop; others end at once. With
    `begins`, it trains a supernet; others go by the --config and --set of that training, which the workdir
    has, and by their own --set after these.
    """
    values = flags.FLAGS
    if values.distributed or (values.coordinator, values.processes, values.process) != (None, None, None):
        processes.start(values.coordinator, values.processes, values.process)
        # A handler of `signal.signal` would run in the main thread, and the process ends before its turn.
        ctypes.CDLL(None).signal(signal.SIGABRT, _aborted)
        if not trains:  # JAX keeps SIGTERM for the next step of a training, and there is none.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not processes.is_first():  # What one process says is enough; errors are said by all.
            sys.stdout = open(os.devnull, "w")
    if not values.workdir:
        raise ConfigError("--workdir is missing. It is the directory that the run writes to")
    if not begins:
        _take_stored(files.as_path(values.workdir) / CONFIG_FILE)
    if values.config is None:
        raise ConfigError(f"--config is missing. It is one of {', '.join(registry)}, or a Python file")
    return chosen_config(registry), files.as_path(values.workdir)


def _take_stored(path: pathlib.Path) -> None:
    """Puts --config and --set of a training before what the flags say, where these are of that config."""
    values, stored = flags.FLAGS, files.read_json(path) if path.is_file() else {}
    config = stored.get(CONFIG) if isinstance(stored, dict) else None
    if config is not None and values.config in (None, config):
        assignments = (*stored.get(SET, ()), *values.set)  # the last one of a field counts
        named = {text.partition("=")[0].strip(): text for text in assignments}
        values.config, values.set = config, [*named.values()]


def described(config: Config) -> dict[str, Any]:
    """A config as plain values, and the flags that ask for it."""
    return {**config_lib.to_dict(config), CONFIG: flags.FLAGS.config, SET: list(flags.FLAGS.set)}


def chosen_config(registry: Mapping[str, Config]) -> Config:
    """The config that --config and --set ask for."""
    return config_lib.override(config_lib.find(registry, flags.FLAGS.config), flags.FLAGS.set)


def bring_to_life(config: Config, workdir: pathlib.Path | None = None) -> Session:
    """A config with its data, and with the space that its training in a workdir came to, if one is given."""
    session = make_session(config, flags.FLAGS.data_dir)
    return session if workdir is None else session.evolved(workdir)


def asked() -> Asked:
    """The request of the flags; paths begin at the root, since workers may stand in another folder."""
    values = flags.FLAGS
    config, data = absolute(values.config, ".py"), values.data_dir and absolute(values.data_dir)
    return Asked(config, tuple(values.set), absolute(values.workdir), data)


def store(config: Config, workdir: pathlib.Path, *, ran: bool) -> None:
    """Writes config.json; before a config `ran` only where there is none, since it may be refused."""
    path = workdir / CONFIG_FILE
    if processes.is_first() and (ran or not path.exists()):
        files.write_json(path, described(config))
