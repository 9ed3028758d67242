"""The threads of the BLAS by which JAX factors matrices on CPUs.

That is SciPy's. On a busy machine its threads wait for each other: a Gaussian process was then fitted to 100
points in 320 ms, and by one thread in 5.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import scipy.linalg  # noqa: F401 (brings the BLAS)
import threadpoolctl

_LOCK = threading.RLock()  # The number of threads is one for the process; each must put back what it found.


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Has the BLAS compute by one thread; what was begun within must also be waited for within."""
    with _LOCK, _controller().limit(limits=1):
        yield
