"""Starts the binaries of `jaxnas.experiments` from a clone, as `jaxnas NAME` does from anywhere."""

import signal
import sys

# While `python -m experiments.NAME` imports, Ctrl-C ends the process as the system does: some of the imported
# packages catch a KeyboardInterrupt. `binary.run` restores Python's handler.
if sys.argv[0] == "-m":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
