"""Checkpoints: exact, whole after a kill at any moment, and damage is seen and stepped over."""

import gc
import logging
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import ports
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from refusals import check

from jaxnas import files
from jaxnas.training import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = {"seed": 3, "training": {"steps": 300, "widths": (64, 96)}}


@flax.struct.dataclass
class State:
    params: dict
    opt_state: tuple
    key: jax.Array
    step: jax.Array


def make_state(seed):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    keys = jax.random.split(jax.random.key(seed), 3)
    kernel = jax.random.normal(keys[0], (2, 8 * jax.device_count()))
    kernel = jax.device_put(kernel, NamedSharding(mesh, PartitionSpec(None, "data")))
    params = {"dense": {"kernel": kernel, "bias": jax.random.normal(keys[1], (3,), jnp.bfloat16)}}
    return {
        "train": State(params, optax.adamw(1e-3).init(params), keys[2], jnp.int32(seed)),
        "population": np.arange(seed, seed + 4, dtype=np.int32),
        "keys": keys,
        "table": jax.random.normal(keys[2], (1000,)),  # Orbax keeps what is below a kilobyte in its index.
        "none": jnp.zeros((0, 2, 3), jnp.bfloat16),
        "rows": np.zeros((0, 4)),
        "epoch": seed,
        "best": seed / 7,
        "count": np.asarray(seed),
    }


def assert_equal(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        if isinstance(b, jax.Array):
            assert a.dtype == b.dtype and a.sharding.is_equivalent_to(b.sharding, b.ndim)
            if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture
def saved(tmp_path):
    """A directory with the checkpoints 1 and 2."""
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            assert checkpointer.save(step, make_state(step), {"config": CONFIG, "note": "x"})
    return tmp_path


def restore(directory, example=None, **options):
    with checkpoint.Checkpointer(directory) as checkpointer:
        return checkpointer.restore(example or make_state(0), **options)


def test_a_state_comes_back_bit_for_bit(saved):
    step, state, metadata = restore(saved)
    assert step == 2 and metadata["note"] == "x"
    assert metadata["config"] == {"seed": 3, "training": {"steps": 300, "widths": [64, 96]}}
    assert_equal(state, make_state(2))
    assert type(state["epoch"]) is int and type(state["best"]) is float
    with checkpoint.Checkpointer(saved) as checkpointer:  # a step that is there is not saved again
        assert not checkpointer.save(2, make_state(3), {})
    assert_equal(restore(saved)[1], make_state(2))
    assert restore(saved / "new") is None


def test_the_best_step_stays_too_and_a_run_that_goes_on_knows_it(tmp_path):
    """Scores are read again from the records; a step without one, or with a damaged record, is never best."""
    x = {"x": jnp.ones(2)}

    def opened():
        return checkpoint.Checkpointer(tmp_path, max_to_keep=2)

    for scores, kept in (
        ({0: 0.5, 5: 0.9, 10: 0.9, 15: None}, [5, 10, 15]),  # the first of two that are as good
        ({20: 0.7, 25: 0.8}, [5, 20, 25]),
    ):
        with opened() as checkpointer:
            for step, score in scores.items():
                checkpointer.save(step, x, {}, score=score)
            assert checkpointer.steps() == kept
    with opened() as checkpointer:
        assert checkpointer.restore(x, best=True)[0] == 5 and checkpointer.restore(x)[0] == 25
    (tmp_path / "5" / "record" / "metadata").write_text("{")
    shutil.rmtree(tmp_path / "25" / "state" / "d")
    with opened() as checkpointer:
        assert checkpointer.restore(x, best=True)[0] == 20  # the next best; what is damaged is set aside
        assert (tmp_path / "corrupt-25").is_dir() and checkpointer.steps() == [5, 20]
    with checkpoint.Checkpointer(tmp_path / "other") as checkpointer:
        assert checkpointer.restore(x, best=True) is None
        checkpointer.save(1, x, {})
        with pytest.raises(checkpoint.CheckpointError, match="no checkpoint in"):
            checkpointer.restore(x, best=True)


def test_another_training_is_refused_by_what_differs_and_another_state_by_its_leaves(saved):
    def differ(metadata):
        return files.diff(metadata["config"], {"seed": 4, "training": {"steps": 300, "widths": [64, 128]}})

    with pytest.raises(checkpoint.ConfigMismatch) as error:
        restore(saved, differ=differ)
    assert error.value.differences == [
        "seed: 3 (checkpoint) / 4 (now)",
        "training.widths: [64, 96] (checkpoint) / [64, 128] (now)",
    ]
    assert all(line in str(error.value) for line in error.value.differences)
    example = make_state(0) | {"population": np.zeros(5, np.int32), "more": 1}
    del example["epoch"]
    lines = "population", "int32[4]", "int32[5]", "epoch", "more", "absent"
    check((lambda: restore(saved, example=example), checkpoint.CheckpointError, *lines))
    assert sorted(os.listdir(saved)) == ["1", "2"]


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "deleted": pathlib.Path.unlink,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flip_a_bit,
}
# Where each file of a step is, and whether its loss is noticed. Orbax reads the arrays through the merged
# index; the index of each process and the notes beside it are not read again.
FILES = {
    "state/ocdbt.process_0/d": True,
    "state/d": True,
    "state/manifest.ocdbt": True,
    "state/_METADATA": None,
    "record/metadata": True,
    "_CHECKPOINT_METADATA": False,
    "commit_success.txt": False,
    "state/_sharding": False,
}


# Orbax leaves coroutines behind when several arrays of one step cannot be read.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_seen_or_does_no_harm(saved, tmp_path_factory, caplog, damage):
    """Each kind of file, damaged in each way: the run goes on from step 2 as it was, or from step 1."""
    for name, noticed in FILES.items():
        broken = tmp_path_factory.mktemp("broken") / "checkpoints"
        shutil.copytree(saved, broken)
        target = broken / "2" / name
        if target.is_dir():
            target = max(target.iterdir(), key=lambda path: path.stat().st_size)
        DAMAGE[damage](target)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "jaxnas"):
            step, state, _ = restore(broken)
        assert noticed is None or noticed == (step == 1), name
        assert_equal(state, make_state(step))
        # Nothing is lost: a damaged step is set aside.
        assert sorted(os.listdir(broken)) == (["1", "2"] if step == 2 else ["1", "corrupt-2"]), name
        told = [r.getMessage() for r in caplog.records if r.name == "jaxnas.training.checkpoint"]
        assert len(told) == (step == 1), name
        assert all("checkpoint 2 in" in text and "it is now corrupt-2, and the run" in text for text in told)
    # The coroutines go here, where their warnings are expected, and not during another test.
    gc.collect()


def test_what_is_damaged_is_set_aside_what_is_no_step_is_left_alone_and_no_whole_one_is_said(saved):
    for aside in (["corrupt-2"], ["corrupt-2", "corrupt-2-2"]):
        flip_a_bit(saved / "2" / "record" / "metadata")
        with checkpoint.Checkpointer(saved) as checkpointer:
            assert checkpointer.restore(make_state(0))[0] == 1
            assert checkpointer.save(2, make_state(2), {"config": CONFIG})
        assert sorted(os.listdir(saved)) == ["1", "2", *aside]
    os.rename(saved / "2", saved / "7")
    (saved / "007").mkdir()
    (saved / "8").write_text("a file")
    assert restore(saved)[0] == 1 and (saved / "corrupt-7").is_dir()
    path = saved / "1" / "record" / "metadata"
    path.write_text(path.read_text().replace('"seed": 3', '"seed": 4').replace('"seed":3', '"seed":4'))
    for _ in range(2):
        check((lambda: restore(saved), checkpoint.CheckpointError, "no checkpoint in", "checkpoint 1: "))
    assert sorted(os.listdir(saved)) == ["007", "1", "8", *aside, "corrupt-7"]


def test_what_is_not_finite_is_not_saved(saved):
    """However often it is tried, the good checkpoints stay."""
    state, wrong = make_state(3), {"dense": {"bias": jnp.ones(2, jnp.bfloat16).at[1].set(jnp.inf)}}
    with checkpoint.Checkpointer(saved) as checkpointer:
        for step in range(3, 8):
            with pytest.raises(
                checkpoint.NotFinite, match=f"step {step} .*dense/bias holds a NaN.* of step 2"
            ):
                checkpointer.save(step, state, {}, finite=wrong)
        assert checkpointer.steps() == [1, 2]
        # Only what is named must be finite: a loss may be NaN before its first value.
        state["best"] = jnp.float32(jnp.nan)
        assert checkpointer.save(8, state, {}, finite=(state["train"], state["keys"], 3, 0.5))
    assert np.isnan(restore(saved, example=state)[1]["best"])


# A write that fails late reports to the event loop that Orbax has closed by then, inside of TensorStore.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(saved, caplog):
    """Files may not grow beyond a limit here, as on a disk that is full: the writes themselves fail."""
    large = {"x": jax.random.normal(jax.random.key(0), (40_000,))}
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    with checkpoint.Checkpointer(saved) as checkpointer:
        for limit in (65_536, 16):  # In the arrays; in everything.
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, room[1]))
            try:
                with pytest.raises(checkpoint.CheckpointError) as error:
                    checkpointer.save(3, large, {})
                    checkpointer.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, room)
            told = str(error.value)
            assert "checkpoint 3" in told and "File too large" in told and "1 MB" in told and "\n" not in told
            assert sorted(os.listdir(saved)) == ["1", "2"]
        assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert checkpointer.save(3, large, {}) and checkpointer.steps() == [1, 2, 3]


def test_a_state_may_be_donated_while_it_is_saved(tmp_path):
    change = jax.jit(lambda x: -x, donate_argnums=0)
    x = jnp.arange(1_000_000.0)
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"x": x}, {})
        for _ in range(3):
            x = change(x)
        _, state, _ = checkpointer.restore({"x": x})
    np.testing.assert_array_equal(state["x"], np.arange(1_000_000.0))


@pytest.mark.eight_devices
def test_checksums_do_not_depend_on_shardings_and_see_every_bit():
    x, y = jnp.arange(64.0).reshape(4, 4, 4), jnp.arange(8, dtype=jnp.bfloat16)
    state = {"x": x, "y": y, "z": np.arange(6)}
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    expected = checkpoint.checksums(state)
    words = np.asarray(x).view(np.uint32).ravel().astype(np.uint64)
    sums = words.sum(), (words * np.arange(64, dtype=np.uint64)).sum()
    assert expected["x"] == [int(one) % 2**32 for one in sums]
    for spec in (("a", None, "b"), ("b", "a"), (), ("a",)):
        sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
        assert checkpoint.checksums({**state, "x": sharded}) == expected
    for name, leaf in state.items():
        raw = bytearray(np.asarray(leaf).tobytes())
        raw[len(raw) // 2] ^= 1
        flipped = np.frombuffer(raw, np.asarray(leaf).dtype).reshape(leaf.shape)
        for changed in (flipped, np.flip(np.asarray(leaf), axis=0)):
            assert checkpoint.checksums({**state, name: changed})[name] != expected[name]


def begun(program, *arguments, **environment):
    """A process of its own that runs a program."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **environment}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


TWO_PROCESSES = """
import sys
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
from jaxnas.training import checkpoint
gathered, gather = [], multihost_utils.process_allgather
def watched(tree, **options):
    gathered.extend(np.size(leaf) for leaf in jax.tree.leaves(tree))
    return gather(tree, **options)
multihost_utils.process_allgather = watched
mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
sharding = NamedSharding(mesh, PartitionSpec("data"))
values = np.arange(8000, dtype=np.float32).reshape(1000, 8)
x = jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
with checkpoint.Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.save(1, {"x": x, "step": 1}, {})
    step, state, _ = checkpointer.restore({"x": x, "step": 0})
assert step == 1
for part in state["x"].addressable_shards:
    np.testing.assert_array_equal(part.data, values[part.index])
print(max(gathered))
"""


def test_two_processes_gather_no_leaf_and_one_restores_what_they_saved(tmp_path):
    address = ports.free()
    started = [begun(TWO_PROCESSES, tmp_path, address, index, XLA_FLAGS="") for index in range(2)]
    outputs = [process.communicate(timeout=300)[0].split() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert [int(output[-1]) for output in outputs] == [4, 4]  # two sums of each leaf
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        step, state, _ = checkpointer.restore({"x": jnp.zeros((1000, 8)), "step": 0})
    assert step == 1 and np.array_equal(np.ravel(state["x"]), np.arange(8000))


SAVE_FOREVER = """
import itertools, sys
import jax.numpy as jnp
from jaxnas.training import checkpoint
checkpointer = checkpoint.Checkpointer(sys.argv[1], max_to_keep=2)
for step in itertools.count():
    checkpointer.save(step, {"x": jnp.full(200_000, float(step)), "step": step}, {"step": step})
    print(step, flush=True)
"""


def test_a_killed_process_leaves_a_whole_checkpoint(tmp_path, caplog):
    with begun(SAVE_FOREVER, tmp_path) as child:
        printed = [int(child.stdout.readline()) for _ in range(4)]
        child.send_signal(signal.SIGKILL)
        printed += [int(line) for line in child.stdout.read().split()]
    with checkpoint.Checkpointer(tmp_path) as checkpointer:
        latest, state, metadata = checkpointer.restore({"x": jnp.zeros(200_000), "step": 0})
    # A step is printed when its save has begun, and begins when the one before is on disk.
    assert latest in (printed[-1] - 1, printed[-1], printed[-1] + 1)
    assert metadata["step"] == state["step"] == latest
    np.testing.assert_array_equal(state["x"], float(latest))
    assert not [r for r in caplog.records if r.name.startswith("jaxnas")]
    assert not list(tmp_path.glob("corrupt-*")) and not list(tmp_path.glob("*tmp*"))
