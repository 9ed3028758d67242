"""What every test runs under: one CPU device or eight, strict types and ranks, a cache of programs, tiers.

The platform and the cache are set by environment variables, so that a process started by a test has
them too; it has one device and JAX's own strictness, as a user's has.
"""

import gc
import hashlib
import importlib.metadata
import os
import pathlib

ROOT = pathlib.Path(__file__).parents[1]

# Modules that run optax's Adam, which raises a float to an integer power: JAX's own promotion there.
STANDARD_PROMOTION = """
test_training test_strategies test_recipes test_seeds test_ranking test_mesh
test_evolving_spaces test_attention_searches test_road test_fit test_remote
""".split()

# Before JAX is imported. JAX_PLATFORMS=cuda runs the suite on a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of the suite's time: a program compiled once is there for all workers, later runs and
# other clones with the same packages. An entry cut short (read while another worker writes it, or its writer
# was killed) is compiled again; setup.cfg lets that warning pass. `make clean` empties the cache.
_FILES = sorted(ROOT.glob("constraints*.txt"))
_VERSIONS = importlib.metadata.version("jax") + "".join(path.read_text() for path in _FILES)
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxnas-tests"
CACHE /= hashlib.sha256(_VERSIONS.encode()).hexdigest()[:12]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# On accelerators products of float32 are rounded to fewer bits unless full ones are asked for, and the tests
# compare with references to 1e-5.
if os.environ["JAX_PLATFORMS"] != "cpu":
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
else:
    # Programs here are compiled more often than they run long: less optimized, a third less time in all.
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

# Tracing makes many objects that live long: Python looks for garbage among them less often.
gc.set_threshold(100_000, 20, 100)

import hypothesis
import jax
import pytest
import tiers
from absl import flags
from object_store import bucket, store  # noqa: F401 (fixtures)
from small_texts import corpus, text_files, text_root, wikitext  # noqa: F401 (fixtures)

# For tests marked `eight_devices`; all others see the first device alone.
jax.config.update("jax_num_cpu_devices", 8)
# A float32 that meets an int32, or a [8] that meets an [8, 1], is a mistake until it is written out.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples in every run, as slow as the first compilation makes them; a failure prints how to repeat
# it. For others: pytest --hypothesis-profile=explore.
_SETTINGS = dict(deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("jaxnas", derandomize=True, **_SETTINGS)
hypothesis.settings.register_profile("explore", derandomize=False, **_SETTINGS)
hypothesis.settings.load_profile("jaxnas")


def pytest_configure(config):
    flags.FLAGS.mark_as_parsed()


def pytest_addoption(parser):
    parser.addoption(
        "--tier", choices=tiers.TIERS, default="full", help="which tests run (full: the quick ones too)"
    )


def pytest_collection_modifyitems(config, items):
    """Keeps the tests of a tier, and puts files that train or start processes first: they take longest."""
    asked = config.getoption("tier")
    tier = {item: tiers.tier_of(item) for item in items}
    kept = {"quick": ("quick",), "full": ("quick", "full"), "nightly": ("nightly",)}[asked]
    config.hook.pytest_deselected(items=[item for item in items if tier[item] not in kept])
    long = {item.path for item in items if tier[item] != "quick"}
    items[:] = sorted((item for item in items if tier[item] in kept), key=lambda item: item.path not in long)


def pytest_make_parametrize_id(config, val, argname):
    """Names a case with long bytes by its argument: the same name in every worker, and readable."""
    return argname if isinstance(val, bytes) and len(val) > 16 else None


@pytest.fixture(scope="module", autouse=True)
def promotion(request):
    """The strictness of dtypes in a module, its fixtures included."""
    standard = request.module.__name__ in STANDARD_PROMOTION
    with jax.numpy_dtype_promotion("standard" if standard else "strict"):
        yield


_DEVICES = jax.devices


@pytest.fixture(scope="session", autouse=True)
def one_device():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *backend: _DEVICES(*backend)[:1])
        yield


@pytest.fixture(autouse=True)
def all_devices(request, monkeypatch):
    if request.node.get_closest_marker("eight_devices"):
        if (count := len(_DEVICES())) < 8:
            pytest.skip(f"it needs eight devices, and there are {count}")
        monkeypatch.setattr(jax, "devices", _DEVICES)


def _each(fixture_name, config):
    return "function" if config.getoption("tier") == "nightly" else "module"


@pytest.fixture(scope=_each, autouse=True)
def programs():
    """Lets go of compiled programs before a worker comes to the end of its memory mappings.

    Each program on a CPU takes about ten, of which Linux gives a process 65,530; XLA then ends the process. A
    nightly module may make more than that.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def key():
    """A fixed random key; ``jax.random.fold_in`` or ``split`` gives more."""
    return jax.random.key(0)
