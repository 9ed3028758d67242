"""The laboratory: five binaries and their configs."""

import signal
import sys

# While `python -m experiments.NAME` imports, Ctrl-C ends the process as the system does: some of the imported
# packages catch a KeyboardInterrupt. `binary.run` has Python's own answer again.
if sys.argv[0] == "-m":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
