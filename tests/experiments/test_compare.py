"""The comparison binary, end to end on tables: resumed, extended, with a strategy of one's own."""

import linecache
import os
import pathlib
import shutil
import sys

import in_process
import jax
import numpy as np
import pytest
import refusals
import tiers

from jaxnas import files, search, tabular
from jaxnas.experiments import compare as compare_binary
from jaxnas.experiments import searches, strategies, tables
from jaxnas.space import Choice, Space
from jaxnas.tabular import nasbench201, nasbench_graph
from jaxnas.tabular.anytime import anytime, at_seconds, spent_seconds

ROOT = pathlib.Path(__file__).parents[2]
TABLES = pathlib.Path(os.environ.get("JAXNAS_DATA", ROOT.parent / "shared" / "tabular"))
needs_tables = pytest.mark.skipif(
    not (TABLES / "nb201").is_dir(), reason=f"no tables in {TABLES}; set JAXNAS_DATA"
)
OWN = '''
from jaxnas import search

def mine(table, evaluations):
    """A population of ten."""
    return search.RegularizedEvolution(table.space, evaluations=evaluations, population=10, sample=5)
'''


def strategies_of(workdir):
    return files.read_json(workdir / "comparison.json")["strategies"]


def compare(workdir, *more, path="", code=0):
    """A comparison in this process; modules of the folder `path` are imported anew, here and by workers."""
    base = ("--benchmark=nasbench201", "--seeds=6", "--chunk=3", "--evaluations=40", f"--data_dir={TABLES}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{path}{os.pathsep}{ROOT}")
        patch.delitem(sys.modules, "own", raising=False)
        linecache.checkcache()
        for cached in (function for function in vars(searches).values() if hasattr(function, "cache_clear")):
            cached.cache_clear()  # a process of its own would begin without
        if path:
            patch.syspath_prepend(path)
        done = in_process.run("compare", *base, f"--workdir={workdir}", *more)
    assert done.status == code, done.stderr
    return done


@pytest.fixture
def grid(tmp_path):
    """A table of 36 results, where the sum of two digits is best at 10, and a strategy of one's own."""
    lines = [f"{a},{b},{a + b},{-(a + b)}" for a in range(6) for b in range(6)]
    (tmp_path / "grid.csv").write_text("\n".join(["left,right,score,loss", *lines]) + "\n")
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "grid.csv"


def on_grid(grid, workdir, *more, **options):
    """A comparison of random search with the own strategy on the grid."""
    given = ("--strategies=random,own:mine", "--evaluations=12", f"--benchmark={grid}")
    given += ("--objectives=score=max", "--ignore=loss")
    return compare(grid.parent / workdir, *given, *more, path=str(grid.parent), **options)


def test_compares_resumes_and_takes_a_table_and_a_strategy_of_ones_own(grid, tmp_path):
    workdir = tmp_path / "run"
    first = on_grid(grid, "run")
    assert "networks until then" in first.stdout and "counts as longer" in first.stdout
    random, own = (sorted((workdir / "searches" / name).glob("*.npz")) for name in ("random", "own-mine"))
    before, one = [path.stat().st_mtime_ns for path in random], strategies_of(workdir)
    assert len(before) == 2
    own[0].unlink()  # as if killed before that chunk was done
    os.truncate(own[1], 100)
    second = on_grid(grid, "run", "--strategies=random,own:mine,local")
    assert f"{own[1].name} is no whole npz file: 100 bytes" in second.stderr
    assert [path.stat().st_mtime_ns for path in random] == before
    result = files.read_json(workdir / "comparison.json")
    assert result["metric"] == result["report_metric"] == "score" and result["best"]["found"] == 10
    found = result["strategies"]
    assert [s["name"] for s in found] == ["random", "own:mine", "local"]
    for old, new in zip(one, found, strict=False):
        assert old["reported"] == new["reported"] and old["final"] == new["final"]
    for s in found:
        assert s["evaluations"][0] == 1 and s["evaluations"][-1] == 12
        assert s["networks"] <= 12 and 1 <= min(s["rank"]) <= max(s["rank"]) <= 3
        low, mean, high = (np.asarray(s["found"][name]) for name in ("low", "mean", "high"))
        assert np.all(np.diff(mean) >= 0)
        assert np.all(low <= mean + 1e-4) and np.all(mean <= high + 1e-4)
        assert (s["mean_queries_of_successes"] is None) == (s["reached_best"] == 0)
        assert (s["median_queries_to_best"] is None) == (s["reached_best"] <= 0.5)
    np.testing.assert_allclose(sum(s["rank"][-1] for s in found), 6, rtol=1e-6)
    page = (workdir / "report.html").read_text()
    assert "own:mine" in page and "default-src 'none'" in page  # it loads nothing
    assert "own:mine" in second.stdout and "report.html" in second.stdout
    assert "% search" in second.stdout and files.read_json(workdir / "times.json")["search"] > 0

    # What changes is not taken from what is stored: the code of a strategy, and the table.
    kept = {path: path.read_bytes() for path in workdir.glob("searches/*/*.npz")}
    changed = OWN.replace("population=10", "population=3").replace("sample=5", "sample=2")
    (tmp_path / "own.py").write_text(changed)
    assert on_grid(grid, "run").stderr.count("the code of the strategy has changed since") == 2
    assert {path.parent.name for path, data in kept.items() if path.read_bytes() != data} == {"own-mine"}
    grid.write_text(grid.read_text().replace("0,0,0,0", "0,0,7,0"))
    assert "other settings: table_sha256" in on_grid(grid, "run", code=2).stderr


def table_of(metrics, **more):
    """A table with a row for each of as many options as there are values of a metric."""
    count = len(next(iter(metrics.values())))
    space = Space(op=Choice(*range(count)))
    return tabular.from_arrays("small", space, {"op": np.arange(count, dtype=np.int32)}, metrics, **more)


def test_metrics_that_are_not_named_are_those_of_the_table():
    def made(*names, objectives):
        return table_of(dict.fromkeys(names, [0.0, 1.0]), objectives=objectives)

    both = {"test_accuracy": "max", "validation_accuracy": "max"}
    table = made(*both, objectives=both)
    assert tables.metrics(table, None, None) == ("validation_accuracy", "test_accuracy")
    assert tables.metrics(table, "test_accuracy", None) == ("test_accuracy", "test_accuracy")
    assert tables.metrics(made("a", "b", objectives={"b": "min"}), None, None) == ("b", "b")
    refusals.check((lambda: tables.metrics(made("a", objectives={}), None, None), ValueError, "small"))


def test_what_predictors_see_belongs_to_the_table_and_not_to_its_name():
    def made(space, name="any name", **more):
        archs = jax.tree.map(lambda x: np.asarray(x)[None], space.smallest())
        return tabular.from_arrays(name, space, archs, {"x": np.arange(1.0)}, **more)

    def groups(table):
        found = jax.eval_shape(strategies.features_of(table), table.space.smallest())
        return sorted(found) if isinstance(found, dict) else found.shape

    paths = ["most", "pairs", "sequences", "shape", "totals", "visits"]
    for space, tree in ((nasbench201.SPACE, []), (nasbench_graph.PROTEINS_SPACE, ["decisions"])):
        assert groups(made(space)) == [*tree, *paths]
        assert max(strategies.tokens_of(made(space))(space.smallest())["segment"]) > 0
    assert groups(made(Space(op=Choice("a", "b").repeat(3)), "nasbench201")) == (6,)
    assert groups(made(nasbench201.SPACE, features=lambda arch: {"mine": arch["op"]})) == ["mine"]


def test_fidelities_are_columns_of_the_table():
    def found(*names):
        return strategies.fidelities_of(table_of(dict.fromkeys(names, [0.0, 1.0])), "accuracy")

    names = ["accuracy", "accuracy_4", "accuracy_12", "training_seconds", "training_seconds_12"]
    pairs = [("accuracy_12", "training_seconds_12"), ("accuracy", "training_seconds")]
    assert found(*names) == pairs
    assert found(*names, "training_seconds_4") == [("accuracy_4", "training_seconds_4"), *pairs]
    named = table_of({name: [1.0, 2.0 + (name == "training_seconds")] for name in names})
    assert strategies.hyperband(named, 4).fidelities == 2  # whatever the metric is called
    refusals.check(
        (lambda: found(*names[:4]), ValueError, "'accuracy'", "every network has one result"),
        (lambda: strategies.hyperband(table_of({"x": [0.0, 1.0]}), 4), ValueError, "one result"),
        (lambda: found(*names[:2], *names[3:]), ValueError, "'accuracy'", "it lacks accuracy_12"),
    )


def test_what_would_hardly_meet_a_row_of_a_table_is_refused():
    space = Space(digit=Choice(*range(10)).repeat(9))
    table = tabular.from_arrays("few", space, space.sample(jax.random.key(0), 20), {"x": np.arange(20.0)})
    local = search.LocalSearch(space, evaluations=10)
    refusals.check((lambda: compare_binary.check_reach("local", local, table), ValueError, "few", "20"))
    process = strategies.gaussian_process(table, 10)
    compare_binary.check_reach("gaussian_process", process, table)


def parts_of(workdir):
    """What the searches of a comparison found, without their times."""
    parts = {path: files.read_arrays(path) for path in workdir.glob("searches/*/*.npz")}
    return {
        str(path.relative_to(workdir)): {name: x.tolist() for name, x in part.items() if name != "seconds"}
        for path, part in parts.items()
    }


@pytest.mark.parametrize("executor", ["processes", *tiers.nightly("ray")])
def test_workers_give_the_results_of_the_loop(grid, tmp_path, executor):
    if executor == "ray":
        pytest.importorskip("ray")
    on_grid(grid, "here", "--seeds=8")
    kept = tmp_path / "there" / "searches" / "random" / "0-3.npz"
    kept.parent.mkdir(parents=True)
    shutil.copy2(tmp_path / "here" / "searches" / "random" / "0-3.npz", kept)
    before = kept.stat().st_mtime_ns
    on_grid(grid, "there", "--seeds=8", f"--executor={executor}", "--workers=2")
    assert kept.stat().st_mtime_ns == before
    found = parts_of(tmp_path / "there")
    assert found == parts_of(tmp_path / "here") and len(found) == 6
    here, there = (files.read_json(tmp_path / run / "comparison.json") for run in ("here", "there"))
    for one in (*here["strategies"], *there["strategies"]):
        one.pop("seconds_per_search")
    assert here == there


def test_a_worker_with_another_table_or_other_code_is_refused(grid):
    place = str(grid), None, ("score=max",), ("loss",)
    table = searches.table_of(*place)
    made = searches.build(strategies.find("random"), "random", table, 12)
    source = searches.source_of(strategies.find("random"), made)
    right = {"table_sha256": searches.digest(table, "score"), "source": source}

    def job(**wrong):
        return searches.Searches("random", place, "score", 12, None, False, **(right | wrong))

    def refused(what, **wrong):
        return lambda: searches.run(job(**wrong), 0, 3), ValueError, "random", f"the {what} of this worker"

    refusals.check(refused("table", table_sha256="abc"), refused("code of the strategy", source="abc"))
    assert set(searches.run(job(), 0, 3)) == job().arrays


@needs_tables
def test_strategies_with_fidelities_are_compared_at_equal_simulated_seconds(tmp_path):
    given = tmp_path / "run", "--strategies=random,hyperband", "--at=10,40"
    compare(*given)
    result = files.read_json(tmp_path / "run" / "comparison.json")
    parts = sorted((tmp_path / "run" / "searches" / "hyperband-seconds").glob("*.npz"))
    assert len(parts) == 2
    before = [path.stat().st_mtime_ns for path in parts]
    second = compare(*given)
    assert [path.stat().st_mtime_ns for path in parts] == before
    assert files.read_json(tmp_path / "run" / "comparison.json") == result

    table = tabular.load("nasbench201", TABLES)
    budget = 40 * float(np.nanmean(table.metrics["training_seconds"]))
    np.testing.assert_allclose(result["seconds"], budget, rtol=1e-6)
    # Found again from the histories alone: the best full training that ended within the budget.
    ends = []
    for path in parts:
        part = files.read_arrays(path)
        codes, scores, fidelity, spent = (part[name] for name in ("codes", "scores", "fidelity", "spent"))
        rows = np.asarray(table.row(table.space.decode(np.maximum(codes, 0))))
        for i in range(len(codes)):
            names = np.where(fidelity[i] == 1, "training_seconds", "training_seconds_12")
            used = fidelity[i] >= 0
            costs = [table.metrics[name][row] for name, row in zip(names, rows[i], strict=True)]
            np.testing.assert_array_equal(spent[i][used], np.asarray(costs)[used])
            counts = (np.cumsum(spent[i], dtype=np.float64) <= budget) & (fidelity[i] == 1)
            winner = np.argmax(np.where(counts, scores[i], -np.inf))
            assert scores[i][winner] == table.metrics["validation_accuracy"][rows[i][winner]]
            ends.append(table.metrics["test_accuracy"][rows[i][winner]])
    got = {s["name"]: s for s in result["strategies"]}
    for one in (got["hyperband"]["final"], got["hyperband"]["at"]["40"]):
        np.testing.assert_allclose(one["mean"], np.mean(ends), rtol=1e-6)
    for s in got.values():
        assert s["simulated_seconds"][-1] == result["seconds"] and "evaluations" not in s
        assert np.all(np.isfinite(s["reported"]["mean"]))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "simulated seconds" in page and "the time of 40 full trainings" in page
    assert "(40 full trainings)" in second.stdout


def test_curves_are_of_the_incumbent_by_the_search_metric():
    metrics = {"valid": [1.0, 3.0, 2.0, 3.0], "test": [10.0, 30.0, 40.0, 20.0]}
    table = table_of(metrics, objectives=dict.fromkeys(metrics, "max"), classes=[0, 1, 2, 1])
    codes = np.asarray([[[0], [2], [1], [3]], [[2], [2], [0], [-1]]], np.int32)
    scores = np.asarray([[1, 2, 3, 3], [np.nan, 2, 1, np.nan]], np.float32)
    curves = anytime(table, codes, scores, "valid", "test")
    np.testing.assert_array_equal(curves.found, [[1, 2, 3, 3], [np.nan, 2, 2, 2]])
    np.testing.assert_array_equal(curves.reported, [[10, 40, 30, 30], [np.nan, 40, 40, 40]])
    np.testing.assert_array_equal(curves.queried, [[1, 2, 3, 3], [1, 1, 2, 2]])
    np.testing.assert_array_equal(curves.to_best, [3, np.nan])


def test_curves_along_seconds_keep_the_last_value_and_start_with_none():
    curves = np.asarray([[1, 2, 3], [4, 4, 5]], np.float32)
    spent = np.asarray([[10.0, 20.0, 40.0], [5.0, 5.0, 6.0]])
    got = at_seconds(curves, spent, np.asarray([4.0, 5.0, 20.0, 39.0, 99.0]))
    np.testing.assert_array_equal(got, [[np.nan, np.nan, 2, 2, 3], [np.nan, 4, 5, 5, 5]])
    table = table_of({"training_seconds": [1.0, np.nan, 4.0]})
    codes = np.asarray([[[2], [1], [0], [-1]]], np.int32)
    np.testing.assert_array_equal(spent_seconds(table, codes), [[4, 4, 5, 5]])


def test_what_ends_after_the_budget_of_seconds_was_not_found():
    metrics = {"validation_accuracy": [1.0, 2.0, 3.0], "test_accuracy": [5.0, 6.0, 7.0]}
    objectives = dict.fromkeys(metrics, "max")
    table = table_of(metrics | {"training_seconds": [70.0, 60.0, 80.0]}, objectives=objectives)
    codes, scores = np.asarray([[[0], [1], [2]]], np.int32), np.asarray([[1, 2, 3]], np.float32)
    ran, strategy = {"codes": codes, "scores": scores}, search.RandomSearch(table.space)
    whole = compare_binary.curves_of(table, strategy, ran, None, *objectives)
    assert whole.queried[:, -1] == [3] and whole.to_best == [3]
    cut = compare_binary.curves_of(table, strategy, ran, 180.0, *objectives)
    assert cut.queried[:, -1] == [2] and np.isnan(cut.to_best).all()
    np.testing.assert_array_equal(cut.at("reported", np.asarray([70.0, 180.0])), [[5, 6]])


@needs_tables
def test_mistakes_on_the_command_line_are_refused_before_anything_is_written(grid, tmp_path):
    for flags, *names in (
        (("--strategies=randm",), "'randm'", "'random'"),
        (("--strategies=nowhere:mine",), "'nowhere:mine'"),
        (("--metric=accuracy",), "'accuracy'"),
        (("--strategies=",), "--strategies"),
        (("--evaluations=6467",), "--evaluations=6467", "6466"),
        (("--at=10,41",), "--at=10,41", "40"),
        (("--benchmark=nasbench_graph_cora", "--strategies=random,hyperband"), "nasbench_graph_cora"),
    ):
        done = compare(tmp_path / "run", *flags, code=2)
        assert all(name in done.stderr for name in names), done
        assert not (tmp_path / "run").exists()
    said = on_grid(grid, "run", "--workers=2", code=2).stderr
    assert "--workers=2" in said and "--executor" in said


def test_tables_strategies_and_settings_that_cannot_be_used_are_refused(grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = np.array([[[0, 1], [2, 0], [-1, -1]], [[0, 1], [-1, -1], [1, 1]]])
    searches.check_codes("mine", codes[:1])  # a search that ended early
    for _ in range(2):
        compare_binary.check_same(tmp_path, {"seed": 0, "chunk": 3, "metric": "a"})

    def stored(number, content, name="settings.json"):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_text(content)
        return lambda: compare_binary.check_same(path.parent, {"seed": 0}), ValueError, path.name

    def found(name, *names):
        return lambda: tables.find(name, None, ()), ValueError, name, *names

    other, twice = {"seed": 0, "chunk": 3, "metric": "b", "table": 5}, ["score=max", "score=min"]
    refusals.check(
        *(stored(number, text) for number, text in enumerate(('["a list"]', '"text"', "", '{"seed": '))),
        stored("searched", "{}", "result.json"),
        (lambda: compare_binary.check_same(tmp_path, other), ValueError, "metric", '"a"', '"b"', "table"),
        (lambda: searches.check_codes("mine", codes), ValueError, "mine", "[-1, -1]", "2"),
        (lambda: searches.check_codes("mine", np.array([[[0, 1], [2, -1]]])), ValueError, "[2, -1]"),
        (lambda: searches.build(lambda *_: object(), "own:mine", None, 12), ValueError, "own:mine", "object"),
        found("nasbench_201", "'nasbench201'"),
        found("q"),
        (lambda: tables.find("nasbench201", None, ["a=max"]), ValueError, "--objectives"),
        found("grid.csv", "--objectives"),
        (lambda: tables.find("grid.csv", None, ["score"]), ValueError, "'score'"),
        (lambda: tables.find("grid.csv", None, twice), ValueError, "'score'", "score=min"),
        found("json:loads_it"),
        found("nowhere.at_all:table"),
        found("math:pi", "float"),
    )
