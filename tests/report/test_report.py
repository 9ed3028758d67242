"""The page of a run: its sections follow the result; deterministic, self-contained, honest about gaps."""

import dataclasses
import functools
import json
import math
import random
import re
import shutil

import altair
import pytest
import refusals
import small_tasks
import vl_convert
import workdirs
from workdirs import change, facts_of, page_of, section_of

from jaxnas.report import charts, findings, vega, words
from jaxnas.report import result as result_lib
from jaxnas.report.findings import read_run
from jaxnas.report.page import summary_lines, write, write_running
from jaxnas.report.result import MetricOf, Network, Result, SpaceOf, TaskOf
from jaxnas.runs.describe import LivePage
from jaxnas.training.progress import times_line

EVIL = "</script><script>alert('1')</script>\"&"
KINDS = {
    "vision": workdirs.vision,
    "language": workdirs.language,
    "mechanisms": workdirs.mechanisms,
    "own": workdirs.own,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in KINDS.items()}


@pytest.fixture(scope="module")
def pages(roots):
    return {kind: write(root).read_text(encoding="utf-8") for kind, root in roots.items()}


@pytest.fixture
def vision(roots, tmp_path):
    """A copy of the workdir, to be changed."""
    return shutil.copytree(roots["vision"], tmp_path / "vision")


# Figures that a page has, its charts, and titles of sections that it lacks; split at "|".
HOLDS = {
    "vision": "97.4 % test accuracy|171,850 parameters|69 %|250 evaluations|4,473,920|30,000|200,000|"
    "0.84 points|training.batch_size|0.10.2|cpu (2 cores)|float32 [batch, 8, 8, 1], as read|8 8 1|"
    'model.stablehlo|jaxnas.load_subnet("subnet")|jaxnas train_supernet --config=digits|'
    "jaxnas search --config=digits|"
    "jaxnas retrain --config=digits|jaxnas evaluate --config=digits",
    "language": "4.170 nats per token|980,000 parameters|72 %|531,441|best of 16|± 0.014|4.170 ± 0.014|"
    "58.0 %|0.43|after 300 steps|seeds 0 and 1|test perplexity|test bits per byte",
    "mechanisms": "1,296|2,000 steps|even weights|How large a difference chance makes",
    "own": "0.04467 with 0.824 ms latency|106 %|120 evaluations|486|0.9 ms latency|"
    "better than random search|✗ above 1e-05",
}
CHARTS = {
    "vision": "scatter search watched curve-loss curve-learning_rate",
    "language": "probabilities-0 curve-loss curve-perplexity curve-learning_rate",
    "mechanisms": "strength-0",
    "own": "scatter search watched curve-loss curve-learning_rate",
}


@every_kind
def test_sections_follow_the_result_and_have_every_figure_of_every_network(roots, pages, kind):
    page, result = workdirs.Page(pages[kind]), read_run(roots[kind]).result
    wanted = HOLDS[kind].split("|")
    for net in (result.found, *result.networks):
        wanted += [words.cost_text(cost) for cost in net.costs.values()]
        first, *others = result.task.metrics
        wanted += [words.value_text(first, values[first.name]) for values in net.metrics.values()]
        wanted += [words.value_text(one, net.metrics["test"][one.name]) for one in others]
    assert [one for one in wanted if one.replace("\u00a0", " ") not in page.text] == []
    titles = {one["title"] for one in facts_of(roots[kind])["sections"]}
    assert ("The candidates" in titles) == (kind == "language")
    assert list(page.charts) == CHARTS[kind].split()
    assert [value for _, key, value in page.attributes if key == "data-chart"] == list(page.charts)


@every_kind
def test_same_files_give_same_bytes_in_any_folder(roots, pages, tmp_path, kind):
    other = KINDS[kind](tmp_path / "elsewhere")
    # The times of the run itself are not reproducible, and not on the page.
    (other / "times.json").write_text('{"seconds": 1.5, "input": 0.25}')
    assert write(other).read_text(encoding="utf-8") == pages[kind]
    assert str(roots[kind]) not in pages[kind] and "elsewhere" not in pages[kind]
    made = {p.name for p in other.iterdir()} - {"search", "retrained", "metrics.jsonl", "result.json"}
    assert made == {"report.html", "times.json"}


@every_kind
def test_a_page_loads_nothing_and_its_charts_are_those_of_vega(pages, kind):
    page = workdirs.Page(pages[kind])
    loads = [v for _, key, v in page.attributes if key in ("src", "href", "srcset", "action")]
    assert loads == ["data:,"] and len(pages[kind]) < 2e6
    ids = [value for _, key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    (policy,) = [v for _, _, v in page.attributes if v and v.startswith("default-src")]
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy
    for spec in page.charts.values():
        altair.Chart.from_dict(spec)  # validates
        vl_convert.vegalite_to_vega(spec | {"width": 300})
        used = set(re.findall(r'"data": \{"name": "(\w+)"', json.dumps(spec)))
        assert used <= spec["datasets"].keys()
        assert not re.search(r"#[0-9a-fA-F]{6}|rgb\(", json.dumps(spec))  # colors are the theme's
    light, dark = vega.theme(), vega.theme(dark=True)
    assert light["style"].keys() == dark["style"].keys() and light["range"] != dark["range"]


def test_every_evaluation_is_a_point_and_less_is_better_where_the_task_says_so(roots):
    for kind, count in (("vision", {"evolution": 250}), ("own", {"local search": 120, "bayesian": 120})):
        run = read_run(roots[kind])
        spec = charts.scatter(run)
        points, cost = spec["datasets"]["points"], {"vision": "params", "own": "latency_ms"}[kind]
        made = {name: sum(p["s"] == name for p in points) for name in {p["s"] for p in points}}
        assert made == count | {"random search": max(count.values())}
        scores = [run.sign * line["score"] for line in run.history]
        assert [p["y"] for p in points] == pytest.approx(scores, 1e-5)
        assert [p["x"] for p in points] == pytest.approx([line[cost] for line in run.history], 1e-5)
        assert all(p["a"] for p in points)  # a pointer shows the architecture
        front = [p["y"] for p in spec["datasets"]["front"][:-1]]
        assert front == sorted(front, reverse=run.sign < 0) and len(front) > 1
        (star,) = [p for p in spec["datasets"]["named"] if p["star"]]
        assert star["n"] == "found"
        assert star["y"] == pytest.approx(run.value(run.result.found, "search"), 1e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 30, 200])
def test_front_against_brute_force(n):
    rng = random.Random(n)
    points = [(rng.randrange(40), rng.randrange(40)) for _ in range(n)]
    beaten = {p for p in points for q in points if q != p and q[0] <= p[0] and q[1] >= p[1]}
    front = charts.pareto_front(points)
    assert [points[i] for i in front] == sorted(set(points) - beaten)
    assert all(points.index(points[i]) == i for i in front)


def test_numbers_in_words():
    times = {"seconds": 1234.5, "input": 0.02, "steps_per_second": 24.314}
    for made, text in (
        (words.short(0.0005), "0.0005"),
        (words.short(999_999), "1 M"),
        (words.cost_text(41226.0), "41,226"),
        (words.cost_text(5.9e9), "5.9 G"),
        (words.cost_amount("latency_ms", 1.25), "1.25 ms latency"),
        (words.cost_amount("params", 1.25e6), "1.25 M parameters"),
        (words.value_text(workdirs.ACCURACY, 0.98765), "98.77 %"),
        (words.value_text(workdirs.PERPLEXITY, 1234.56), "1235"),
        (words.value_text(workdirs.LOSS, 4.1), "4.100"),
        (words.value_text(workdirs.LOSS, None), "–"),
        (words.difference_text(workdirs.ACCURACY, -0.0123), "−1.23 points"),
        (words.difference_text(workdirs.LOSS, 4.1 - 4.1), "±0 nats per token"),
        (words.power_text("4473920"), "4,473,920"),
        (words.power_text("5" * 400), "5.6 × 10³⁹⁹"),
        (times_line({}), "Time: not known."),
        (times_line(times), "Time: 1,234.5 s: 2 % input; 24.31 steps per second."),
    ):
        assert made.replace("\u00a0", " ") == text


def test_architectures_are_described_in_a_line():
    for options, arch, text in (
        (["attention", "feed_forward", "identity"], ["attention", "identity"], "A –"),
        (["same_one", "same_other"], ["same_one"], "same_one"),
        ([3, 5], [3, None], "3 –"),
    ):
        assert words.describe({"block": arch}, {"block": {"options": options, "length": 3}}) == text
    assert words.describe({"a_b": 2, "c": "d"}, {}) == "a b 2; c d"


def test_the_least_result_has_a_page(tmp_path):
    found = Network(name="found", architecture={}, costs={}, metrics={}, weights="from scratch")
    task = TaskOf(name="data", examples="rows", sizes={}, metrics=(workdirs.ACCURACY,))
    result_lib.write(tmp_path, Result(task=task, space=SpaceOf(cardinality="1", choices={}), found=found))
    assert "– test accuracy" in page_of(tmp_path).text
    assert summary_lines(tmp_path)[-1] == f"Open {tmp_path / 'report.html'}"
    # It was trained alone, and shows its validation.
    lines = [{"step": step, "split": "validation", "accuracy": step / 100} for step in (10, 20, 30)]
    workdirs.write_lines(tmp_path / "metrics.jsonl", lines)
    rows = section_of(tmp_path, "Training the network")["charts"]["watched"]["datasets"]["lines"]
    assert [row["y"] for row in rows] == [0.1, 0.2, 0.3]
    # A line of one point is that point, and no line of several has points that are always seen.
    for few, alone in ((lines[:1], True), (lines, False)):
        workdirs.write_lines(tmp_path / "metrics.jsonl", few)
        spec = page_of(tmp_path).charts["watched"]
        vl_convert.vegalite_to_vega(spec | {"width": 300})
        assert ('"oneOf": ["validation"]' in json.dumps(spec)) == alone


def without_random(root):
    path, result = root / "search/history.jsonl", result_lib.read(root)
    path.write_text("".join(x for x in path.read_text().splitlines(keepends=True) if "evolution" in x))
    change(root, networks=result.networks[1:], searches=result.searches[:1])


def without_errors(root):
    found = result_lib.read(root).found
    change(root, found=dataclasses.replace(found, metrics={**found.metrics, "test": {"accuracy": 1.0}}))


def changing(**fields):
    return lambda root: change(root, **fields)


@pytest.mark.parametrize(
    "alter, noted, gone",
    [
        (lambda root: (root / "metrics.jsonl").unlink(), "", "Training the supernet"),
        (lambda root: (root / "search/history.jsonl").unlink(), "has no history here", "Pareto"),
        (without_random, "the gain of the search is not known", "random search’s best"),
        (without_errors, "100.00 %", "inherited, standard error"),
        (changing(exported_batch=8), "for batches of 8 alone", "nothing"),
        (changing(config={}), "The configuration was not recorded", "Run it again"),
        (changing(module="Net"), "import Net|module=Net)", "nothing"),
        (
            changing(loader="AutoModelForCausalLM"),
            "AutoTokenizer.from_pretrained|jaxnas.hf.load",
            "StableHLO",
        ),
        (changing(interrupted="stopped at step 5"), "The training was stopped at step 5.", "nothing"),
    ],
)
def test_gaps_are_noted(vision, alter, noted, gone):
    alter(vision)
    text = page_of(vision).text
    assert all(part in text for part in noted.split("|")) and gone not in text


def test_options_that_are_names_need_not_be_in_the_order_of_their_costs(vision):
    """Then the network of the last options is not the largest, and no share of it is claimed."""
    before, searches = page_of(vision).text, result_lib.read(vision).searches
    low, high = searches[0].reachable["params"]
    wider = {"params": (low / 2, 2 * high)}
    change(vision, searches=tuple(dataclasses.replace(one, reachable=wider) for one in searches))
    claim = "of the largest network’s"
    assert claim in before and claim not in page_of(vision).text and "largest options, inherited" in before


def append(path, line):
    path.write_text(path.read_text() + json.dumps(line) + "\n")


def test_stragglers_and_values_that_are_not_finite_stay_out_of_the_plot(vision):
    losses = {"step": 3010, "split": "train", "loss": None, "accuracy": 0.1}
    append(vision / "metrics.jsonl", losses)
    for i, (size, score) in enumerate(((40, 0.1), (9_000_000, 0.2), (40_000, None))):
        line = {"index": 500 + i, "strategy": "random", "params": size, "score": score, "macs": math.inf}
        append(vision / "search/history.jsonl", line)
    networks = result_lib.read(vision).networks
    smallest = dataclasses.replace(networks[1], metrics={"test": {"accuracy": math.nan}})
    page = page_of(change(vision, networks=(networks[0], smallest)))
    assert "2 evaluations are beyond the axis" in page.text and "1 losses were not finite" in page.text
    assert not re.search(r"\b(nan|inf|NaN|Infinity)\b", page.text + json.dumps(page.charts))
    assert len(page.charts["scatter"]["datasets"]["points"]) == 502


def test_probabilities_of_any_space_over_the_search(tmp_path):
    root = workdirs.language(tmp_path, retrained=False)
    result = result_lib.read(root)
    chances = {"block": result.selection.probabilities["block"], "width": [0.25, 0.75]}
    choices = {**result.space.choices, "width": {"options": [64, 128]}}
    line, tables = {"split": "architecture", "confidence": 0.5}, ({"width": [p, 1 - p]} for p in (0.5, 0.4))
    lines = [line | {"step": i, "probabilities": chances | one} for i, one in enumerate(tables)]
    workdirs.write_lines(root / "metrics.jsonl", lines)
    selection = dataclasses.replace(result.selection, probabilities=chances)
    change(root, space=dataclasses.replace(result.space, choices=choices), selection=selection)
    block, width = section_of(root, "How probable")["charts"].values()
    cells = width["datasets"]["cells"]
    assert [(c["y"], c["value"]) for c in cells if c["moment"] == 2] == [("128", 0.75), ("64", 0.25)]
    assert [c["value"] for c in cells if c["y"] == "64"] == [0.5, 0.4, 0.25]
    (slider,) = width["params"]
    assert slider["value"] == slider["bind"]["max"] == 2  # the last of three moments
    assert sum(c["moment"] == 2 and c["text"] != "" for c in block["datasets"]["cells"]) == 12


def test_a_network_that_was_replaced_is_found_before(tmp_path):
    found = result_lib.read(workdirs.language(tmp_path)).found
    other = dataclasses.replace(found, architecture={"block": ["attention"] * 12})
    text = page_of(change(tmp_path, found=other)).text
    assert "found before, from scratch" in text and "found, inherited" in text


@every_kind
def test_text_is_escaped(tmp_path, kind):
    result = result_lib.read(root := KINDS[kind](tmp_path))
    renamed = functools.partial(dataclasses.replace, name=EVIL)
    details = {EVIL: EVIL, "image_shape": [EVIL]}
    arch, costs = {**result.found.architecture, EVIL: EVIL}, {**result.found.costs, EVIL: 1}
    change(
        root,
        task=renamed(result.task, examples=EVIL, inputs=EVIL, details=details, sizes={EVIL: 3}),
        found=dataclasses.replace(result.found, architecture=arch, costs=costs),
        networks=tuple(renamed(net, weights=EVIL) for net in result.networks[-1:]),
        searches=tuple(dataclasses.replace(one, bounds={EVIL: (None, 2)}) for one in result.searches),
        space=dataclasses.replace(result.space, cardinality=EVIL),
        config={"name": EVIL, EVIL: EVIL},
        versions={EVIL: EVIL},
        subnet=EVIL,
    )
    if (path := root / "search/history.jsonl").exists():
        append(path, json.loads(path.read_text().splitlines()[-1]) | {"strategy": EVIL, EVIL: 1})
    text = write(root).read_text(encoding="utf-8")
    page = workdirs.Page(text)
    assert "<script>alert" not in text and text.count("<script") in (0, 3) and EVIL in page.text
    assert EVIL in page.charts["scatter"]["datasets"]["points"][0]["s"] if path.exists() else True


def more(line):
    """Appends a line, which the message names by its number."""
    return lambda text: text + line + "\n"


def without_digest(text):
    return re.sub(r',\s+"sha256": "\w+"', "", text.replace('"length": 5', '"length": "5"', 1))


ARCHITECTURE = '{"step": 9, "split": "architecture", "probabilities": %s}'
SCORE = '{"index": 0, "strategy": "random", "score": %s}'
DAMAGED = (
    ("result.json", lambda text: None),
    ("result.json", lambda text: '{"found": ', "JSON"),
    ("result.json", lambda text: "[]", "version None"),
    ("result.json", lambda text: '{"version": 1}', "changed"),
    ("result.json", without_digest, "changed"),
    ("retrained/a/result.json", lambda text: '{"version": 0}', "version 0"),
    ("metrics.jsonl", more('{"step": 3'), "line {n}", "JSON"),
    ("metrics.jsonl", more("{}"), "line {n}", "'split'"),
    ("metrics.jsonl", more('{"step": "a", "split": "train"}'), "line {n}", "'step'"),
    ("metrics.jsonl", more(ARCHITECTURE % '{"block": [[1]]}'), "line {n}", "'block'"),
    ("metrics.jsonl", more(ARCHITECTURE % '{"depth": [1]}'), "line {n}", "'depth'", "[5]"),
    ("metrics.jsonl", more(ARCHITECTURE % "3"), "line {n}", "'probabilities'"),
    ("search/history.jsonl", more("3"), "line {n}"),
    ("search/history.jsonl", more(SCORE % '"good"'), "line {n}", "'score'", "'good'"),
    ("search/history.jsonl", more(SCORE % '1, "architecture": [1]'), "line {n}", "'architecture'"),
)


def test_damaged_files_are_named(tmp_path):
    whole = workdirs.vision(tmp_path / "whole", evaluations=20)

    def case(number, name, damage, *names):
        path = shutil.copytree(whole, root := tmp_path / str(number)) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        error = FileNotFoundError if damage(text) is None else ValueError
        if damage(text) is not None:
            path.write_text(damage(text))
        names = [one.replace("{n}", str(text.count("\n") + 1)) for one in names]
        return lambda: write(root), error, path.name, *names

    refusals.check(*(case(number, *one) for number, one in enumerate(DAMAGED)))
    assert list(tmp_path.glob("*/report.html")) == []


@pytest.mark.parametrize("kind", ["vision", "mechanisms"])
def test_a_result_that_was_changed_anywhere_is_named(roots, tmp_path, kind):
    path, text = tmp_path / "result.json", (roots[kind] / "result.json").read_text()
    values = [one for one in re.finditer(r'(?<=[ :]) ("[^"]*"|-?[\d.e-]+|null|true)(?=,?\n)', text)]
    assert len(values) > 30
    for one in random.Random(0).sample(values, 30):
        changed = "7" if one[1] != "7" else '"x"'
        path.write_text(text[: one.start(1)] + changed + text[one.end(1) :])
        with pytest.raises(ValueError, match=r"result\.json (was changed after it|has version 7)"):
            write(tmp_path)


def test_what_is_no_result_is_refused(roots):
    """As one of another version, whose digest is right."""
    text, result = (roots["vision"] / "result.json").read_text(), result_lib.read(roots["vision"])

    def case(damage, *names):
        values = json.loads(text)
        damage(values)
        return (lambda: result_lib.parse(values, Result, "PLACE")), ValueError, "PLACE", *names

    assert result_lib.parse(json.loads(text) | {"later": 3}, Result, "PLACE") == result
    refusals.check(
        case(lambda values: values.pop("task"), "task"),
        case(lambda values: values.update(searches=3), "'searches'", "3"),
        case(lambda values: values.update(found="found"), "'found'"),
        case(lambda values: values["found"].update(name=None), "'name'", "None"),
        case(lambda values: values["searches"][0]["bounds"].update(params=[1])),
    )


def test_lines_written_twice_count_once_and_half_a_line_not_at_all(vision, pages):
    for name in ("metrics.jsonl", "search/history.jsonl"):
        lines = (vision / name).read_text().splitlines(keepends=True)
        (vision / name).write_text("".join(lines + lines[-20:]) + '{"step')
    assert write(vision).read_text(encoding="utf-8") == pages["vision"]


def test_summary_lines(roots):
    *lines, network, page = summary_lines(root := roots["vision"])
    assert lines[0].startswith("Found: ") and HOLDS["vision"].partition("|")[0] in lines[0]
    assert any("better than random search’s best" in line for line in lines)
    assert (network, page) == (f"Network: {root}/subnet", f"Open {root}/report.html")
    assert all(len(line) <= 110 for line in lines)


def test_the_standard_error_is_that_of_a_share_or_was_measured(roots):
    network = Network(name="a", architecture={}, costs={}, metrics={}, errors={"test": {"F1": 0.3}})
    score = MetricOf(name="F1", unit="%", direction="max")
    for metric, role, value, examples, expected in (
        (workdirs.ACCURACY, "test", 0.8, None, pytest.approx(0.04)),
        (workdirs.ACCURACY, "test", 0.8, 25, pytest.approx(0.08)),
        (workdirs.ACCURACY, "test", 1.0, None, None),  # None is wrong: nothing to estimate an error from.
        (workdirs.ACCURACY, "search", 0.8, None, None),
        (score, "test", 0.8, None, 0.3),
        (score, "test", 0.8, 25, None),  # It was measured on all.
        (score, "search", 0.8, None, None),
    ):
        task = TaskOf(name="d", examples="images", sizes={"test": 100}, metrics=(metric,))
        run = read_run(roots["vision"])
        run = dataclasses.replace(run, result=dataclasses.replace(run.result, task=task))
        found = findings.standard_error(run, role, network, value, examples)
        assert found == expected, (metric, role, value)


def test_a_page_is_there_while_the_run_goes_on(roots, tmp_path):
    root, finished = roots["vision"], read_run(roots["vision"]).result
    none = Network(name="best so far", architecture={}, costs={}, metrics={})
    (tmp_path / "search").mkdir()

    def check(expected, lacking, searches=(), **more):
        result = Result(task=finished.task, space=finished.space, found=none, searches=searches)
        write_running(tmp_path, result, "The search is on its way.", **more)
        page = workdirs.Page((tmp_path / "report.html").read_text())
        assert list(page.charts) == expected and "The search is on its way." in page.text
        assert (("meta", "http-equiv", "refresh") in page.attributes) == (more.get("reload", 5) is not None)
        assert not any(part in page.text for part in lacking)
        return page

    check([], ["Best so far", "Training the"])
    shutil.copy(root / "metrics.jsonl", tmp_path)
    check(["watched", "curve-loss", "curve-learning_rate"], ["Best so far"])
    lines = (root / "search/history.jsonl").read_bytes().splitlines(keepends=True)
    other = b'{"strategy": "random", "index": 0, "score": 1.0, "params": 9}\n'  # not what the run is for
    (tmp_path / "search/history.jsonl").write_bytes(b"".join(lines[:30]) + other + lines[30][:20])
    best, names = max(json.loads(line)["score"] for line in lines[:30]), CHARTS["vision"].split()
    page = check(names, ["The found architecture"], searches=finished.searches, reload=None)
    assert f"Best so far: {100 * best:.1f}" in page.text
    assert len(page.charts["scatter"]["datasets"]["points"]) == 31


def test_a_live_page_is_written_only_now_and_then(tmp_path):
    times, path = iter([0.0, 0.0, 3.0, 5.0, 6.0, 60.0, 60.0]), tmp_path / "report.html"
    task, space = small_tasks.task_of("images"), small_tasks.net_of("images").space
    page = LivePage(task, space, tmp_path, every=5.0, clock=lambda: next(times))
    (tmp_path / "result.json").write_text("{}")
    page.end("Nothing was done.")
    page.begin("Nothing begins.")
    assert not path.exists()  # a finished page is not replaced for nothing
    (tmp_path / "result.json").unlink()
    for call, given, shown in (
        (page.end, ("It was done before a kill.",), "before a kill"),  # it had said that it goes on
        (page.begin, ("It is being compiled.",), "It is being compiled."),
        (page.update, ("First.", 10, 100), "First."),
        (page.update, ("Second.",), "First."),
        (page.update, ("Third.",), "Third."),
        (page.update, ("Fourth.", 50, 100), "Fourth. About 1:15 left."),  # 40 in 60 seconds
        (page.end, ("Done.",), "Done."),
    ):
        call(*given)
        assert shown in path.read_text() and ("refresh" in path.read_text()) == (call != page.end)
