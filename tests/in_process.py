"""Runs programs as a user would, but in this process, where JAX is imported already."""

import contextlib
import io
import logging
import re
import runpy
import signal
import sys
from typing import NamedTuple

import jax
import pytest
from absl import app, flags
from absl import logging as absl_logging

from jaxnas.experiments.__main__ import BINARIES

PROGRAMS = {"experiments", "benchmarks", "tools"}  # where modules define flags of their own


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str


def run(binary, *arguments):
    name = binary if binary.startswith(("benchmarks.", "tools.")) else f"jaxnas.experiments.{binary}"
    return _run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True), arguments, name)


def call(main, *arguments):
    return _run(main, arguments)


def script(path, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        done = _run(lambda: runpy.run_path(str(path), run_name="__main__"), arguments)
    assert done.status == 0, done
    return done.stdout


def _run(program, arguments, *names):
    """With JAX's own strictness, and without a trace in the settings of this process."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        for name in (*names, *(f"jaxnas.experiments.{binary}" for binary in BINARIES)):
            patch.delitem(sys.modules, name, raising=False)  # runpy warns of a module that was imported
        patch.setattr(sys, "argv", ["program.py", *arguments])
        patch.setattr(sys, "unraisablehook", sys.unraisablehook)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT):
            stack.callback(signal.signal, number, signal.getsignal(number))
        stack.enter_context(_own_flags())
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stdout = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stderr = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(_own_logging(stderr))
        try:
            program()
            status = 0
        except SystemExit as end:
            status = end.code or 0
    return Done(status, stdout.getvalue(), stderr.getvalue())


def main(binary, *arguments, code=0):
    done = run(binary, *arguments)
    assert done.status == code, f"{done.status}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def _own_flags():
    """Without the flags of other programs, which an import defines too."""
    app.define_help_flags()  # absl's own, which it defines once in a process

    def take():
        places = {name: flags.FLAGS.find_module_defining_flag(name) or "" for name in flags.FLAGS}
        names = [name for name, module in places.items() if {*re.split(r"[./]", module)} & PROGRAMS]
        ours = {name: (places[name], flags.FLAGS[name]) for name in names}
        for name in ours:
            delattr(flags.FLAGS, name)
        return ours

    others = take()
    try:
        yield
    finally:
        take()
        for name, (module, flag) in others.items():
            flags.FLAGS[name] = flag
            flags.FLAGS.register_flag_by_module(module, flag)
        flags.FLAGS.mark_as_parsed()


@contextlib.contextmanager
def _own_logging(stderr):
    """Warnings go to the standard error of the program; afterwards all is as it was."""
    root, own, verbosity = logging.getLogger(), logging.StreamHandler(stderr), absl_logging.get_verbosity()
    handlers = root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in (None, "absl", "asyncio")}
    own.setLevel(logging.WARNING)
    root.addHandler(own)
    try:
        yield
    finally:
        absl_logging.set_verbosity(verbosity)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        root.handlers[:] = handlers
