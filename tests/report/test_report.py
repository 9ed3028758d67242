"""The page of a run: its panels follow the result; deterministic, self-contained, honest about gaps."""

import dataclasses
import functools
import json
import math
import random
import re
import shutil

import pytest
import refusals
import scipy.stats
import small_tasks
import workdirs
from workdirs import SVG, Structure, change, elements, page_of, text_of

from jaxnas import report, runs
from jaxnas.report import live, read_run, scatter, svg, words
from jaxnas.report import result as result_lib
from jaxnas.report.result import MetricOf, Network, Result, SpaceOf, TaskOf

EVIL = "<script>alert('1')</script>\"&"
KINDS = {
    "vision": workdirs.vision,
    "language": workdirs.language,
    "perturbation": lambda root: workdirs.mechanisms(root, method="perturbation", metric=workdirs.LOSS),
    "mechanisms": workdirs.mechanisms,
    "attention graph": workdirs.attention_graph,
    "own": workdirs.own,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in KINDS.items()}


@pytest.fixture(scope="module")
def pages(roots):
    return {kind: page_of(root) for kind, root in roots.items()}


@pytest.fixture
def vision(roots, tmp_path):
    """A copy of the workdir, to be changed."""
    return shutil.copytree(roots["vision"], tmp_path / "vision")


# Figures and headings that a page must have, and headings of panels that it must not have; split at "|".
HOLDS = {
    "vision": "97.4 % test accuracy|171,850 parameters|69 %|250 evaluations|4,473,920|30,000|200,000|"
    "0.84 points|Accuracy against parameters|Search against random search|8 × 8 × 1 image|"
    "Training the supernet|random subnets|training.batch_size|0.10.2|cpu (2 cores)|"
    'jaxnas.load_subnet("subnet")|float32 [batch, 8, 8, 1]|model.stablehlo|'
    "experiments.train_supernet --config=digits|experiments.search --config=digits|"
    "experiments.retrain --config=digits|experiments.evaluate --config=digits",
    "language": "4.170 nats per token|980,000 parameters|72 %|531,441|best of 16|4 are attention|2 seeds|"
    "4.170 ± 0.014|How probable each option is|58.0 %|Kendall’s tau|0.43|after 300 steps|seeds 0 and 1|"
    "test perplexity|test bits per byte|rows a second",
    "perturbation": "The decisions|rise without the option (nats per token)|mechanism 4",
    "mechanisms": "1,296|2,000 steps|How strong each option is|The rounds, in the order made",
    "attention graph": "1 addition and 2 attentions|query convolution 3|from input",
    "own": "0.04467 with 0.824 ms latency|106 %|240 evaluations|486|0.9 ms latency|0.00941 better|"
    "Mean squared error against latency (ms)|Less is better|skip first False True, False|✗ above 1e-05",
}
LACKS = {
    "vision": "How probable each option is|The candidates|Trained alone|The decisions",
    "language": "Search against random search|patches of",
    "perturbation": "The candidates|Trained alone",
    "mechanisms": "How probable each option is|The candidates",
    "attention graph": "Each row is a network|How strong each option is",
    "own": "attention heads|How probable|standard error|--config=",
}


@every_kind
def test_panels_follow_the_result_and_have_every_figure_of_every_network(roots, pages, kind):
    text, result = Structure(pages[kind]).text, read_run(roots[kind]).result
    wanted = HOLDS[kind].split("|")
    for net in (result.found, *result.networks):
        wanted += [words.cost_text(cost) for cost in net.costs.values()]
        for values in net.metrics.values():
            wanted += [words.value_text(metric, values[metric.name]) for metric in result.task.metrics]
    assert [one for one in wanted if one.replace("\u00a0", " ") not in text] == []
    assert [one for one in LACKS[kind].split("|") if one in text] == []


@every_kind
def test_same_files_give_same_bytes_in_any_folder(roots, pages, tmp_path, kind):
    other = KINDS[kind](tmp_path / "elsewhere")
    # The times of the run itself are not reproducible, and not on the page.
    (other / "times.json").write_text('{"seconds": 1.5, "input": 0.25}')
    assert page_of(other) == pages[kind]
    assert str(roots[kind]) not in pages[kind] and "elsewhere" not in pages[kind]
    pictures = {"probabilities.png", "probabilities.gif"}
    made = {p.name for p in other.iterdir()} - {"search", "retrained", "metrics.jsonl", "result.json"}
    assert made - pictures == {"report.html", "times.json"}


@every_kind
def test_page_is_well_formed_loads_nothing_and_its_figures_are_described(pages, kind):
    page, attributes = pages[kind], Structure(pages[kind]).attributes
    ids = [value for _, key, value in attributes if key == "id"]
    assert len(ids) == len(set(ids)) > 0
    loading = ("src", "href", "srcset", "data", "action", "xlink:href")
    loads = [value for _, key, value in attributes if key in loading]
    assert all(value.startswith(("data:,", "data:image/gif;base64,")) for value in loads)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}
    for root in workdirs.drawings(page):
        if root.get("aria-hidden"):  # a sign in a legend
            continue
        ids = root.get("aria-labelledby").split()
        assert [root.find(f"{SVG}{tag}").get("id") for tag in ("title", "desc")] == ids
        assert root.find(f"{SVG}desc").text
    # Colors are those of the style sheet, which has them for dark screens, too.
    figures = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.S))
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(|fill=|stroke=", figures)
    assert "prefers-color-scheme:dark" in page
    used = set(re.findall(r"var\((--\w+)\)", page)) - {"--columns"}
    light, dark = re.findall(r":root\{(.*?)\}", page, flags=re.S)[:2]
    assert used <= set(re.findall(r"(--\w+):", light)) == set(re.findall(r"(--\w+):", dark))


def test_every_evaluation_has_a_mark_and_less_is_better_where_the_task_says_so(roots, pages):
    for kind, marks in (("vision", {"evolution": 250}), ("own", {"evolution": 120, "sampled": 120})):
        wide, _ = workdirs.drawings(pages[kind], "scatter")
        for name, count in (marks | {"random": marks["evolution"]}).items():
            assert len(elements(wide, "path", f"mark {name} late")) == count
    plot = scatter.plot_of(read_run(roots["own"]))
    errors = [-line["score"] for line in sorted(plot.front, key=lambda line: line["latency_ms"])]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == min(-line["score"] for line in plot.lines) > plot.y_range[0]


@pytest.mark.parametrize("n", [0, 1, 2, 30, 200])
def test_front_against_brute_force(n):
    rng = random.Random(n)
    points = [(rng.randrange(40), rng.randrange(40)) for _ in range(n)]
    beaten = {p for p in points for q in points if q != p and q[0] <= p[0] and q[1] >= p[1]}
    front = scatter.pareto_front(points)
    assert [points[i] for i in front] == sorted(set(points) - beaten)
    assert all(points.index(points[i]) == i for i in front)


def test_ticks_are_few_round_and_inside():
    for low, high in ((0, 1), (0.9, 0.98), (0.9771, 0.9783), (2e3, 2.5e5), (0, 7)):
        marks = svg.ticks(low, high)
        assert 2 <= len(marks) <= 7 and low <= min(marks) and max(marks) <= high + 1e-12
        assert len(set(svg.short_labels(marks))) == len(set(svg.percent_labels(marks))) == len(marks)
    for low, high in ((2e3, 2.5e5), (1e3, 1e9), (30, 500)):
        marks = svg.log_ticks(low, high)
        assert 2 <= len(marks) <= 6 and low * 0.99 <= min(marks) and max(marks) <= high * 1.01


@pytest.mark.parametrize(
    "made, text",
    [
        (svg.duration(4.4e-5), "0.044 ms"),
        (svg.duration(0.9996), "1 s"),
        (svg.short(0.0005), "0.0005"),
        (svg.short(999_999), "1 M"),
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
        (words.power_text("5" * 400), "5.6 × 10<sup>399</sup>"),
        (report.times_line({}), "Time: not known."),
        (
            report.times_line({"seconds": 1234.5, "input": 0.02, "steps_per_second": 24.314}),
            "Time: 1,234.5 s: 2 % input; 24.31 steps per second.",
        ),
    ],
)
def test_numbers_in_words(made, text):
    assert made.replace("\u00a0", " ") == text


def test_letters_tell_options_apart():
    for options, signs in (
        (["attention", "feed_forward", "identity"], ["A", "F", "–"]),
        (["conv_relu", "conv_gelu", "skip"], ["CR", "CG", "–"]),
        (["conv3", "conv5", "conv1"], ["C3", "C5", "C1"]),
        (["same one", "same other"], ["1", "2"]),
    ):
        assert words.letters(options) == dict(zip(options, signs, strict=True))


def test_the_least_result_has_a_page(tmp_path):
    found = Network(name="found", architecture={}, costs={}, metrics={}, weights="from scratch")
    task = TaskOf(name="data", examples="rows", sizes={}, metrics=(workdirs.ACCURACY,))
    result_lib.write(tmp_path, Result(task=task, space=SpaceOf(cardinality="1", choices={}), found=found))
    text = text_of(tmp_path)
    assert "– test accuracy" in text and "The search space holds 1 different networks" in text
    assert report.summary_lines(tmp_path)[-1] == f"Open {tmp_path / 'report.html'}"
    # It was trained alone, and shows its validation.
    lines = [{"step": step, "split": "validation", "accuracy": step / 100} for step in (10, 20, 30)]
    workdirs.write_lines(tmp_path / "metrics.jsonl", lines)
    text = text_of(tmp_path)
    assert "validation: 30.00 %" in text and "Training the network" in text and "supernet" not in text


def lose(name):
    return lambda root: (root / name).unlink()


def search_without_random(root):
    path, result = root / "search/history.jsonl", result_lib.read(root)
    path.write_text("".join(x for x in path.read_text().splitlines(keepends=True) if "evolution" in x))
    change(root, networks=result.networks[1:], searches=result.searches[:1])


def make_no_error(root):
    found = result_lib.read(root).found
    metrics = {**found.metrics, "test": {"accuracy": 1.0}}
    change(root, found=dataclasses.replace(found, metrics=metrics))


@pytest.mark.parametrize(
    "alter, noted, gone",
    [
        (lose("metrics.jsonl"), "Accuracy against parameters", "Training the supernet"),
        (lose("search/history.jsonl"), "The search has no history here", "Accuracy against parameters"),
        (search_without_random, "Random search was not run|no random search to compare with", "evolution is"),
        (make_no_error, "It made no error on|with 95 % confidence its accuracy is above", "± 0.00"),
    ],
)
def test_what_is_missing_is_noted_and_no_result_is_called_certain(vision, alter, noted, gone):
    alter(vision)
    text = text_of(vision)
    assert gone not in text and all(part in text for part in noted.split("|"))


def test_options_that_are_names_need_not_be_in_the_order_of_their_costs(vision):
    """Then the networks of the first and of the last options are neither the smallest nor the largest."""
    before, searches = text_of(vision), result_lib.read(vision).searches
    compared = re.compile(r"of its parameters; .* points test accuracy")
    assert compared.search(before) and "largest of the space" in before
    low, high = searches[0].reachable["params"]
    wider = {"params": (low / 2, 2 * high)}
    change(vision, searches=tuple(dataclasses.replace(one, reachable=wider) for one in searches))
    after = text_of(vision)
    assert not compared.search(after) and "of the space, inherited" not in after
    assert "lowest option of each choice" in after and "highest option of each choice" in after
    marked = {one.label for one in scatter.plot_of(read_run(vision)).marked}
    assert marked == {"lowest options", "highest options", "found"}


def append(path, line):
    path.write_text(path.read_text() + json.dumps(line) + "\n")


def test_stragglers_and_values_that_are_not_finite_stay_out_of_the_plot(vision):
    losses = {"step": 3010, "split": "train", "loss": None, "accuracy": 0.1}
    append(vision / "metrics.jsonl", losses)
    for i, (size, score) in enumerate(((40, 0.1), (9_000_000, 0.2), (40_000, None))):
        line = {"index": 500 + i, "strategy": "random", "params": size, "score": score}
        append(vision / "search/history.jsonl", line)
    networks = result_lib.read(vision).networks
    smallest = dataclasses.replace(networks[1], metrics={"test": {"accuracy": math.nan}})
    page = page_of(change(vision, networks=(networks[0], smallest)))
    assert "log scale" in page and "2 evaluations beyond the axis" in page
    assert "1 losses were not finite" in page and not re.search(r"\b(nan|inf)\b", page.lower())
    wide, _ = workdirs.drawings(page, "scatter")
    starts = [re.match(r"M([-\d.]+) ([-\d.]+)", x.get("d")).groups() for x in elements(wide, "path", "mark ")]
    assert starts and all(40 < float(x) < 960 and 0 < float(y) < 470 for x, y in starts)


def test_settings_that_mended_a_training_are_said(vision):
    rate, clip = {"before": 0.01, "now": 0.001}, {"before": None, "now": 1.0}
    line = {"step": 400, "diverged": 436}
    changes = {"training.learning_rate": rate, "training.clip": clip}
    workdirs.write_lines(vision / "mends.jsonl", [line | {"changes": changes}])
    assert (
        "Step 436 diverged, and the training went on from step 400 with training.learning_rate=0.001 instead "
        "of 0.01 and training.clip=1.0 instead of None."
    ) in page_of(vision)
    workdirs.write_lines(vision / "mends.jsonl", [line | {"changes": ["clip"]}])
    refusals.check((lambda: report.write(vision), ValueError, "'changes'"))


def test_settings_of_a_retraining_are_shown_where_they_are_not_the_runs(tmp_path):
    root = workdirs.language(tmp_path)
    change(root, config={"name": "digits", "training": {"steps": 1000, "clip": None}})
    change(root / "retrained/found-scratch-1", config={"retraining": {"steps": 3000, "clip": None}})
    page = report.write(root).read_text(encoding="utf-8")
    assert "<dt>retrained/found-scratch-1.steps</dt><dd>3000</dd>" in page
    assert page.count("<dt>retrained/") == 1


def test_layers_beyond_the_depth_are_ghosts(tmp_path):
    root = workdirs.vision(tmp_path, layers=14, widths=(192, 216, 240), heads=(3, 4), evaluations=60)
    arch = {"embed_dim": 192, "depth": 12, "num_heads": [3] * 12, "mlp_ratio": [3.5] * 12}
    change(root, found=dataclasses.replace(result_lib.read(root).found, architecture=arch))
    wide, _ = workdirs.drawings(page_of(root), "network")
    assert len(elements(wide, "rect", "head")) == 12 * 3 and len(elements(wide, "rect", "mlp")) == 12
    assert workdirs.texts(wide).count("skipped") == 2 and workdirs.texts(wide).count("672") == 12


def test_probabilities_of_any_space(tmp_path):
    """Single choices are rows; a repeated choice has a figure of its own; the search is a moving picture."""
    image = pytest.importorskip("PIL.Image")
    root = workdirs.language(tmp_path, retrained=False)
    result = result_lib.read(root)
    chances = {"block": result.selection.probabilities["block"], "width": [0.25, 0.75]}
    choices = {**result.space.choices, "width": {"options": [64, 128]}}
    line = {"split": "architecture", "confidence": 0.5}
    lines = [
        line | {"step": step, "probabilities": chances | {"width": [p, 1 - p]}}
        for step, p in ((100, 0.5), (200, 0.4))
    ]
    workdirs.write_lines(root / "metrics.jsonl", lines)
    change(
        root,
        space=dataclasses.replace(result.space, choices=choices),
        selection=dataclasses.replace(result.selection, probabilities=chances),
    )
    page = page_of(root)
    rows, repeated = (workdirs.drawings(page, f"probabilities{name}-t")[0] for name in ("", "-block"))
    assert "width 128: 75.0" in "".join(rows.itertext())
    assert sum(one.get("class") == "most" for one in repeated.iter()) == 12
    with image.open(root / "probabilities.gif") as moving, image.open(root / "probabilities.png") as still:
        assert moving.n_frames == 3 and moving.size == still.size


def test_a_network_that_was_replaced_is_said_to_be_found_before(tmp_path):
    found = result_lib.read(workdirs.language(tmp_path)).found
    other = dataclasses.replace(found, architecture={"block": ["attention"] * 12})
    text = text_of(change(tmp_path, found=other))
    assert "found before, from scratch" in text and "with inherited weights" in text


@every_kind
def test_text_is_escaped(tmp_path, kind):
    result = result_lib.read(root := KINDS[kind](tmp_path))
    renamed = functools.partial(dataclasses.replace, name=EVIL)
    details = {EVIL: EVIL, "image_shape": [EVIL]}
    arch, costs = {**result.found.architecture, EVIL: EVIL}, {**result.found.costs, EVIL: 1}
    change(
        root,
        task=renamed(result.task, examples=EVIL, inputs=EVIL, details=details),
        found=dataclasses.replace(result.found, architecture=arch, costs=costs),
        networks=tuple(renamed(net, weights=EVIL) for net in result.networks[-1:]),
        searches=tuple(dataclasses.replace(one, bounds={EVIL: (None, 2)}) for one in result.searches),
        space=dataclasses.replace(result.space, cardinality=EVIL),
        config={"name": EVIL, EVIL: EVIL},
        versions={EVIL: EVIL},
        subnet=EVIL,
    )
    page = page_of(root)
    assert "<script>alert" not in page and page.count("<script>") == 1
    assert EVIL in "".join(Structure(page).words)


def more(line):
    """Appends a line, which the message names by its number."""
    return lambda text: text + line + "\n"


def without_digest(text):
    return re.sub(r',\s+"sha256": "\w+"', "", text.replace('"length": 5', '"length": "5"', 1))


ARCHITECTURE = '{"step": 9, "split": "architecture", "probabilities": %s}'
SCORE = '{"index": 0, "strategy": "random", "score": %s}'
DEEP = SCORE % '1, "architecture": {"depth": [[1]]}'
DAMAGED = (
    ("result.json", lambda text: None, FileNotFoundError),
    ("result.json", lambda text: '{"found": ', ValueError, "JSON"),
    ("result.json", lambda text: "[]", ValueError, "version None"),
    ("result.json", lambda text: '{"version": 1}', ValueError, "changed"),
    ("result.json", without_digest, ValueError, "changed"),
    ("retrained/a/result.json", lambda text: '{"version": 0}', ValueError, "version 0"),
    ("metrics.jsonl", more('{"step": 3'), ValueError, "line {n}", "JSON"),
    ("metrics.jsonl", more("{}"), ValueError, "line {n}", "'split'"),
    ("metrics.jsonl", more('{"step": "a", "split": "train"}'), ValueError, "line {n}", "'step'"),
    ("metrics.jsonl", more(ARCHITECTURE % '{"block": [[1]]}'), ValueError, "line {n}", "'block'"),
    ("metrics.jsonl", more(ARCHITECTURE % '{"depth": [1]}'), ValueError, "line {n}", "'depth'", "[5]"),
    ("search/history.jsonl", more("3"), ValueError, "line {n}"),
    ("search/history.jsonl", more(SCORE % '"good"'), ValueError, "line {n}", "'score'", "'good'"),
    ("search/history.jsonl", more(DEEP), ValueError, "line {n}", "'depth'"),
)


def test_damaged_files_are_named(tmp_path):
    whole = workdirs.vision(tmp_path / "whole", evaluations=20)

    def case(number, name, damage, error, *names):
        path = shutil.copytree(whole, root := tmp_path / str(number)) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        if damage(text) is not None:
            path.write_text(damage(text))
        names = [one.replace("{n}", str(text.count("\n") + 1)) for one in names]
        return lambda: report.write(root), error, path.name, *names

    refusals.check(*(case(number, *one) for number, one in enumerate(DAMAGED)))
    assert list(tmp_path.glob("*/report.html")) == []


@pytest.mark.parametrize("kind", ["vision", "language", "perturbation", "mechanisms"])
def test_a_result_that_was_changed_anywhere_is_named(roots, tmp_path, kind):
    path, text = tmp_path / "result.json", (roots[kind] / "result.json").read_text()
    values = [one for one in re.finditer(r'(?<=[ :]) ("[^"]*"|-?[\d.e-]+|null|true)(?=,?\n)', text)]
    assert len(values) > 30
    for one in random.Random(0).sample(values, 30):
        changed = "7" if one[1] != "7" else '"x"'
        path.write_text(text[: one.start(1)] + changed + text[one.end(1) :])
        with pytest.raises(ValueError, match=r"result\.json (was changed after it|has version 7)"):
            report.write(tmp_path)


def test_what_is_no_result_is_refused(roots):
    """As one of another version, whose digest is right."""
    text, result = (roots["vision"] / "result.json").read_text(), result_lib.read(roots["vision"])

    def case(damage, *names):
        values = json.loads(text)
        damage(values)
        return (lambda: result_lib.parse(values, Result, "PLACE")), ValueError, "PLACE", "a Result", *names

    assert result_lib.parse(json.loads(text) | {"later": 3}, Result, "PLACE") == result
    refusals.check(
        case(lambda values: values.pop("task"), "'task'"),
        case(lambda values: values.update(searches=3), "'int'"),
        case(lambda values: values.update(found="found"), "'items'"),
        case(lambda values: values["found"].update(name=None), "str", "None"),
        case(lambda values: values["searches"][0]["bounds"].update(params=[1]), "argument 2"),
    )


def test_lines_written_twice_count_once_and_half_a_line_not_at_all(vision, pages):
    for name in ("metrics.jsonl", "search/history.jsonl"):
        lines = (vision / name).read_text().splitlines(keepends=True)
        (vision / name).write_text("".join(lines + lines[-20:]) + '{"step')
    assert page_of(vision) == pages["vision"]


def test_summary_lines(roots):
    *lines, network, page = report.summary_lines(root := roots["vision"])
    assert lines[0].startswith("Found: ") and HOLDS["vision"].partition("|")[0] in lines[0]
    assert any(line.startswith("  random search: ") for line in lines)
    assert (network, page) == (f"Network: {root}/subnet", f"Open {root}/report.html")
    assert all(len(line) <= 110 for line in lines)


def test_picture_for_the_readme(roots, tmp_path):
    pytest.importorskip("matplotlib")
    report.save_png(roots["vision"], tmp_path / "hero.png")
    data = (tmp_path / "hero.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20]) == 1600
    save = lambda: report.save_png(roots["language"], tmp_path / "none.png")  # noqa: E731
    refusals.check((save, ValueError, "history"))


def test_the_standard_error_is_that_of_a_share_or_was_measured():
    task = TaskOf(name="d", examples="images", sizes={"test": 100}, metrics=(workdirs.ACCURACY,))
    network = Network(name="a", architecture={}, costs={}, metrics={}, errors={"test": {"F1": 0.3}})
    score = MetricOf(name="F1", unit="%", direction="max")
    for metric, role, value, expected in (
        (workdirs.ACCURACY, "test", 0.8, pytest.approx(0.04)),
        (workdirs.ACCURACY, "test", 1.0, None),  # None is wrong: nothing to estimate an error from.
        (workdirs.ACCURACY, "search", 0.8, None),
        (score, "test", 0.8, 0.3),
        (score, "search", 0.8, None),
    ):
        assert words.standard_error(task, metric, role, network, value) == expected, (metric, role, value)
    # Of 100 draws with this share of right ones, all are right in 5 % of cases.
    assert scipy.stats.binom.pmf(100, 100, words.least_without_errors(100)) == pytest.approx(0.05)


def test_a_page_is_there_while_the_run_goes_on(roots, tmp_path):
    root, finished = roots["vision"], read_run(roots["vision"]).result
    (tmp_path / "search").mkdir()

    def check(wanted, unwanted, **more):
        path = live.write(tmp_path, finished.task, finished.space, "The search is on its way.", **more)
        page = path.read_text().replace("\u00a0", " ")
        assert all(part in page for part in wanted) and not any(part in page for part in unwanted)

    check(["Nothing is recorded yet", '<meta http-equiv="refresh" content="5">'], ["Training the supernet"])
    shutil.copy(root / "metrics.jsonl", tmp_path)
    check(["Training the supernet"], ["Best so far"])
    lines = (root / "search/history.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "search/history.jsonl").write_bytes(b"".join(lines[:30]) + lines[30][:20])
    best = max(json.loads(line)["score"] for line in lines[:30])
    check(
        [f"Best so far: {100 * best:.1f}", "The search is on its way.", "The best architecture so far"],
        ["refresh", "The found architecture", "has no random search"],
        searches=finished.searches,
        reload=None,
    )


def test_a_live_page_is_written_only_now_and_then(tmp_path):
    times, path = iter([0.0, 0.0, 3.0, 5.0, 6.0, 40.0, 40.0]), tmp_path / "report.html"
    task, space = small_tasks.task_of("images"), small_tasks.net_of("images").space
    page = runs.LivePage(task, space, tmp_path, every=5.0, clock=lambda: next(times))
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
        (page.update, ("Fourth.", 50, 100), "Fourth. About 0:50 left."),  # 40 in 40 seconds
        (page.end, ("Done.",), "Done."),
    ):
        call(*given)
        assert shown in path.read_text() and ("refresh" in path.read_text()) == (call != page.end)
