"""A new cluster of Ray on this machine; tests that use it are nightly."""

import contextlib
import os

import jax
import objectives
import pytest

from jaxnas import executors


@contextlib.contextmanager
def ray_cluster():
    """The executor of two workers, which find the modules of the tests."""
    pytest.importorskip("ray")
    jax.devices()  # JAX has threads by now, and warns of forks.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.path.dirname(objectives.__file__), prepend=os.pathsep)
        with executors.Ray(workers=2) as executor:
            yield executor
