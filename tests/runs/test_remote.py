"""A whole run whose workdir is in an object store: the same as one on a disk."""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest
import refusals
from small_tasks import net_of, task_of

import jaxnas
from jaxnas import data, files, runs, search, tabular
from jaxnas.report.page import write
from jaxnas.training import Options, Training, fit
from jaxnas.training.checkpoint import Checkpointer
from jaxnas.training.mesh import make_mesh
from jaxnas.training.workdir import open_workdir
from tools.drill.contents import NOT_COMPARED, content

TRAINING = Training(
    steps=4, batch_size=8, learning_rate=1e-2, warmup_steps=1, log_every=1, checkpoint_every=1
)


def stop_at(number, step, record):
    if step == number:
        raise KeyboardInterrupt


def run(workdir):
    """Trains, is stopped, goes on, searches twice and retrains; returns the page and the small network."""
    task, net, common = task_of("text"), net_of("text"), dict(mesh=make_mesh(1))
    with open_workdir(workdir) as root:
        with pytest.raises(KeyboardInterrupt):
            options = Options(log=[functools.partial(stop_at, 3)])
            fit(task, net, TRAINING, workdir=root, options=options)
        for _ in range(2):  # The second time there is nothing left to do.
            trained = fit(task, net, TRAINING, workdir=root)
            assert trained.complete and int(trained.state.step) == 4
        assert trained.times == files.read_json(root / "times.json")
        for evaluations in (4, 6):
            strategy = search.RandomSearch(net.space, evaluations=evaluations, batch=2)
            settings = runs.Search(runs.ByStrategy(strategy, baseline=False), limit=2)
            result = runs.search_and_finish(task, net, trained.variables, settings, runs.Lab(root, **common))
        assert [len(one) for one in (result.searches, result.networks)] == [1, 2]
        arch = net.space.from_dict(result.found.architecture)
        runs.retrain(task, net, arch, runs.Lab(root / "retrained" / "one", alone=TRAINING, **common))
        page = write(root)
    small, variables = jaxnas.load_subnet(files.as_path(workdir) / "subnet", module=type(net))
    assert small.space.cardinality == 1
    assert files.read_lines(root / "metrics.jsonl")[-1]["step"] == 4
    return page.read_text().replace(str(workdir), "WORKDIR"), variables


def test_a_run_in_a_bucket_is_the_run_on_a_disk(bucket, tmp_path):
    pages = [run(workdir) for workdir in (str(tmp_path / "run"), "gs://bucket/run")]
    jax.tree.map(np.testing.assert_array_equal, pages[0][1], pages[1][1])
    files_here = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    here = {str(path.relative_to(tmp_path)): path.read_bytes() for path in files_here}
    there = {name.removeprefix("bucket/"): content for name, (content, _) in bucket.items()}
    here, there = (
        {name: content for name, content in one.items() if "/checkpoints/" not in name}
        for one in (here, there)
    )
    del here["run/.lock"]  # in a bucket it is removed
    assert here.keys() == there.keys() and len(here) > 10
    for name in here.keys() - {"run/report.html"}:
        assert here[name] == there[name] or pathlib.PurePath(name).name in NOT_COMPARED, name
    for name, (page, _) in zip(("one", "two"), pages, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").write_text(page)
    assert content(tmp_path / "one" / "report.html") == content(tmp_path / "two" / "report.html")


def test_a_checkpoint_in_a_bucket_that_is_damaged_or_unfinished_is_passed_over(bucket, caplog):
    folder, state = "gs://bucket/deep/checkpoints", {"w": np.arange(6.0), "key": jax.random.key(3)}
    with Checkpointer(folder, max_to_keep=2) as checkpointer:
        for step in range(1, 5):
            checkpointer.save(step, {**state, "w": state["w"] + step}, {"config": {"a": step}})
        assert checkpointer.steps() == [3, 4]
    arrays = [name for name in bucket if "/4/state/" in name and "/d/" in name]
    for name in arrays:
        content, generation = bucket[name]
        bucket[name] = bytes(255 - byte for byte in content), generation
    with Checkpointer(folder) as checkpointer:
        step, restored, metadata = checkpointer.restore(state)
    assert step == 3 and metadata["config"] == {"a": 3}
    np.testing.assert_array_equal(restored["w"], state["w"] + 3)
    assert "checkpoint 4 in gs://bucket/deep/checkpoints is damaged" in caplog.text
    assert any("/corrupt-4/" in name for name in bucket) and not any("/checkpoints/4/" in x for x in bucket)

    del bucket["bucket/deep/checkpoints/3/commit_success.txt"]  # As if it was killed before it ended.
    with Checkpointer(folder) as checkpointer:
        assert checkpointer.steps() == []
        checkpointer.save(3, state, {})
        assert checkpointer.restore(state)[0] == 3


def test_files_in_a_bucket(bucket):
    root = files.as_path("gs://bucket/folder")
    assert str(root / "a" / "b") == "gs://bucket/folder/a/b" and not root.exists()
    files.write_json(root / "value.json", {"a": 1})
    assert [path.name for path in root.iterdir()] == ["value.json"]  # No temporary name is left.
    refusals.check(
        (lambda: files.read_json(root / "valu.json"), FileNotFoundError, "Did you mean value.json")
    )
    lines = root / "lines.jsonl"
    for more in ([], [{"number": 0}, {"number": 1}], [{"number": 2}], []):
        files.append_lines(lines, more)
    files.truncate_lines(lines, 2)
    assert lines.read_bytes() == b'{"number": 0}\n{"number": 1}\n'
    files.write_arrays(root / "x.npz", {"x": np.arange(4)})
    np.testing.assert_array_equal(files.read_arrays(root / "x.npz")["x"], np.arange(4))


def test_a_folder_in_a_bucket_is_never_a_mixture(bucket, store, monkeypatch, tmp_path):
    folder = files.as_path("gs://bucket/subnet")
    files.replace_folder(folder, {"tensors": b"old", "description": b"old"}, known=("program",))
    files.write_bytes(folder / "program", b"old")
    seen, put = [], store.put

    def watched(name, data):
        put(name, data)
        seen.append({x.rpartition("/")[2]: content for x, (content, _) in bucket.items()})

    monkeypatch.setattr(store, "put", watched)
    (tmp_path / "copied").write_bytes(b"new")
    files.replace_folder(folder, {"tensors": tmp_path / "copied", "description": b"new"}, known=("program",))
    assert seen == [{"tensors": b"new"}, {"tensors": b"new", "description": b"new"}]
    files.write_bytes(folder / "mine", b"")
    with pytest.raises(FileExistsError, match="holds other files, which"):
        files.replace_folder(folder, {"tensors": b"", "description": b""})


def test_a_history_in_a_bucket_goes_on(bucket):
    space, path = jaxnas.Space(op=jaxnas.Choice(*range(9))), "bucket/h/history.jsonl"
    strategy = search.RandomSearch(space, evaluations=6, batch=2)
    go = functools.partial(search.run, strategy, lambda values: values["op"], jax.random.key(0))
    with pytest.raises(KeyboardInterrupt):
        go(history_path=f"gs://{path}", progress=lambda now: stop_at(4, now.evaluations, now))
    bucket[path] = bucket[path][0] + b'{"index": 4, "st', 1
    result = go(history_path=f"gs://{path}")
    lines = [json.loads(line) for line in bucket[path][0].decode().splitlines()]
    assert result.resumed == 4 and lines == result.history == go().history


def test_other_stores_and_what_is_not_installed_are_named(monkeypatch):
    def missing(name):
        raise ImportError("Please install gcsfs to access Google Storage")

    refusals.check(
        (lambda: files.as_path("s3://bucket/run"), ValueError, "bucket/run is in"),
        (lambda: files.as_path("gs:/bucket/run"), ValueError, "bucket/run is in"),  # what pathlib makes of it
    )
    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    refusals.check((lambda: files.as_path("gs://bucket/run"), ValueError, "bucket/run"))
    for path in ("runs/digits", "c:x", "/tmp/a:b/c"):
        assert str(files.as_path(path)) == path


def test_files_of_a_user_in_a_bucket(bucket, tmp_path):
    table = "a,b,score\n" + "".join(f"{a},{b},{a * b}\n" for a in range(3) for b in range(3))
    words = "".join(f"{'good' if i % 2 else 'bad'} word{i % 5}\t{i % 2}\n" for i in range(60))
    book = "".join(f"line {i % 7} of a book\n" for i in range(400))
    found = []
    for root in (str(tmp_path), "gs://bucket/given"):
        for name, text in (("grid.csv", table), ("words.tsv", words), ("book.txt", book)):
            files.write_text(f"{root}/{name}", text)
        table_there = tabular.from_csv(f"{root}/grid.csv", objectives={"score": "max"})
        words_there = data.from_tsv(f"{root}/words.tsv", text=0, label=1).train.inputs["tokens"]
        book_there = data.from_text(f"{root}/book.txt", tokenizer="byte").test.tokens
        found.append([x.tolist() for x in (table_there.metrics["score"], words_there, book_there)])
    assert found[0] == found[1] and all(map(len, found[0]))
    refusals.check(
        (lambda: data.from_text("gs://bucket/given/no.txt"), FileNotFoundError, "txt is not"),
        (lambda: tabular.load("nasbench201", "gs://bucket/given"), FileNotFoundError, "bucket/given"),
    )
