"""The page of a run: its panels follow the result; deterministic, self-contained, honest about gaps."""

import dataclasses
import html.parser
import json
import math
import random
import re
import shutil
import xml.etree.ElementTree

import pytest
import refusals
import scipy.stats
import small_tasks
import workdirs

from jaxnas import report, runs
from jaxnas.report import live, read_run, scatter, svg, words
from jaxnas.report import result as result_lib
from jaxnas.report.result import MetricOf, Network, Result, SpaceOf, TaskOf

BLOCKS = {"td", "th", "p", "div", "dt", "dd", "h2", "li", "text"}
VOID = {"meta", "link", "br", "hr", "img", "input"}
EVIL = "<script>alert('1')</script>\"&"
KINDS = {
    "vision": workdirs.vision,
    "language": workdirs.language,
    "perturbation": lambda root: workdirs.language(root, method="perturbation", retrained=False),
    "mechanisms": workdirs.mechanisms,
    "attention graph": workdirs.attention_graph,
    "own": workdirs.own,
}


class Structure(html.parser.HTMLParser):
    """Collects text and attributes, and fails where elements are not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.words = [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag in BLOCKS:
            self.words.append(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).replace("\u00a0", " ").split())


def text_of(root):
    return Structure(report.write(root).read_text(encoding="utf-8")).text


def change(root, **fields):
    """Replaces fields of the result of a workdir."""
    result_lib.write(root, dataclasses.replace(result_lib.read(root), **fields))
    return root


def figure_of(page, name):
    return next(s for s in re.findall(r"<svg.*?</svg>", page, flags=re.S) if f'id="{name}-t"' in s)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in KINDS.items()}


@pytest.fixture(scope="module")
def pages(roots):
    return {kind: report.write(root).read_text(encoding="utf-8") for kind, root in roots.items()}


# Figures and headings that a page must have, and headings of panels that it must not have.
HOLDS = {
    "vision": (
        *(
            "96.7 % test accuracy",
            "126,794 parameters",
            "51 %",
            "250 evaluations",
            "4,473,920",
            "30,000",
            "149,800",
        ),
        *("0.95 points", "Accuracy against parameters", "Search against random search", "8 × 8 × 1 image"),
        *("Training the supernet", "random subnets", "training.batch_size", "0.10.2", "cpu (2 cores)"),
        *('jaxnas.load_subnet("subnet")', "float32 [batch, 8, 8, 1]", "model.stablehlo"),
        *(f"experiments.{b} --config=digits" for b in ("train_supernet", "search", "retrain", "evaluate")),
    ),
    "language": (
        *("4.170 nats per token", "1.04 M parameters", "76 %", "531,441", "best of 16", "3 are attention"),
        *("2 seeds", "4.170 ± 0.014", "How probable each option is", "58.0 %", "Kendall’s tau", "0.43"),
        *("after 300 steps", "seeds 0 and 1", "test perplexity", "test bits per byte", "rows a second"),
    ),
    "perturbation": ("The decisions", "rise without the option (nats per token)", "block 12"),
    "mechanisms": ("1,296", "2,000 steps", "How strong each option is", "The rounds, in the order made"),
    "attention graph": ("1 addition and 2 attentions", "query convolution 3", "from input"),
    "own": (
        *(
            "0.06120 with 0.898 ms latency",
            "86 %",
            "240 evaluations",
            "486",
            "0.9 ms latency",
            "0.0177 better",
        ),
        *(
            "Mean squared error against latency (ms)",
            "Less is better",
            "skip first False True, False",
            "✗ above 1e-05",
        ),
    ),
}
LACKS = {
    "vision": ("How probable each option is", "The candidates", "Trained alone", "The decisions"),
    "language": ("Search against random search", "patches of"),
    "perturbation": ("The candidates", "Trained alone"),
    "mechanisms": ("How probable each option is", "The candidates"),
    "attention graph": ("Each row is a network", "How strong each option is"),
    "own": ("attention heads", "How probable", "standard error", "--config="),
}


@pytest.mark.parametrize("kind", KINDS)
def test_panels_follow_the_result(pages, kind):
    text = Structure(pages[kind]).text
    assert [wanted for wanted in HOLDS[kind] if wanted not in text] == []
    assert [unwanted for unwanted in LACKS[kind] if unwanted in text] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_of_every_network_is_on_the_page(roots, pages, kind):
    text = Structure(pages[kind]).text
    run = report.read_run(roots[kind])
    for net in (run.result.found, *run.result.networks):
        wanted = [words.cost_text(cost) for cost in net.costs.values()]
        for values in net.metrics.values():
            wanted += [words.value_text(metric, values[metric.name]) for metric in run.result.task.metrics]
        assert [one for one in wanted if one.replace("\u00a0", " ") not in text] == []


@pytest.mark.parametrize("kind", KINDS)
def test_same_files_give_same_bytes_in_any_folder(roots, pages, tmp_path, kind):
    other = KINDS[kind](tmp_path / "elsewhere")
    # The times of the run itself are not reproducible, and not on the page.
    (other / "times.json").write_text('{"seconds": 1.5, "input": 0.25}')
    assert report.write(other).read_text(encoding="utf-8") == pages[kind]
    assert str(roots[kind]) not in pages[kind] and "elsewhere" not in pages[kind]
    pictures = {"probabilities.png", "probabilities.gif"}
    made = {p.name for p in other.iterdir()} - {"search", "retrained", "metrics.jsonl", "result.json"}
    assert made - pictures == {"report.html", "times.json"}


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_well_formed_and_loads_nothing(pages, kind):
    page, structure = pages[kind], Structure(pages[kind])
    ids = [value for _, key, value in structure.attributes if key == "id"]
    assert len(ids) == len(set(ids)) > 0
    loads = [
        a for a in structure.attributes if a[1] in ("src", "href", "srcset", "data", "action", "xlink:href")
    ]
    assert all(value.startswith(("data:,", "data:image/gif;base64,")) for _, _, value in loads)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in page


@pytest.mark.parametrize("kind", KINDS)
def test_figures_have_descriptions_and_leave_colours_to_the_style_sheet(pages, kind):
    space, drawings = "{http://www.w3.org/2000/svg}", re.findall(r"<svg.*?</svg>", pages[kind], flags=re.S)
    for drawing in drawings:
        root = xml.etree.ElementTree.fromstring(drawing)
        if not root.get("aria-hidden"):  # else it is a sign in a legend
            ids = root.get("aria-labelledby").split()
            assert [root.find(f"{space}{tag}").get("id") for tag in ("title", "desc")] == ids
            assert root.find(f"{space}desc").text
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(|fill=|stroke=", "".join(drawings))
    used = set(re.findall(r"var\((--\w+)\)", pages[kind])) - {"--columns"}
    light, dark = re.findall(r":root\{(.*?)\}", pages[kind], flags=re.S)[:2]
    assert used <= set(re.findall(r"(--\w+):", light)) == set(re.findall(r"(--\w+):", dark))


def test_every_evaluation_has_a_mark(pages):
    wide = figure_of(pages["vision"], "scatter-wide")
    assert len(re.findall(r'class="mark evolution late', wide)) == 250
    assert len(re.findall(r'class="mark random late', wide)) == 250
    wide = figure_of(pages["own"], "scatter-wide")
    assert [
        len(re.findall(f'class="mark {kind} late', wide)) for kind in ("evolution", "sampled", "random")
    ] == [120, 120, 120]


def test_less_is_better_where_the_task_says_so(roots):
    plot = scatter.plot_of(report.read_run(roots["own"]))
    front = [(line["latency_ms"], -line["score"]) for line in plot.front]
    assert front == sorted(front) and [error for _, error in front] == sorted(
        (e for _, e in front), reverse=True
    )
    best = min(-line["score"] for line in plot.lines)
    assert front[-1][1] == best and plot.y_range[0] < best


def test_front_against_brute_force():
    rng = random.Random(0)
    for n in (1, 2, 30, 200):
        points = [(rng.randrange(40), rng.randrange(40)) for _ in range(n)]
        beaten = {p for p in points for q in points if q != p and q[0] <= p[0] and q[1] >= p[1]}
        front = scatter.pareto_front(points)
        assert [points[i] for i in front] == sorted(set(points) - beaten)
        assert all(points.index(points[i]) == i for i in front)
    assert scatter.pareto_front([]) == []


@pytest.mark.parametrize("low, high", [(0, 1), (0.9, 0.98), (0.9771, 0.9783), (2e3, 2.5e5), (0, 7)])
def test_ticks_are_few_round_and_inside(low, high):
    marks = svg.ticks(low, high)
    assert 2 <= len(marks) <= 7 and low <= min(marks) and max(marks) <= high + 1e-12
    assert len(set(svg.short_labels(marks))) == len(set(svg.percent_labels(marks))) == len(marks)


def test_log_ticks_are_inside():
    for low, high in ((2e3, 2.5e5), (1e3, 1e9), (30, 500)):
        marks = svg.log_ticks(low, high)
        assert 2 <= len(marks) <= 6 and low * 0.99 <= min(marks) and max(marks) <= high * 1.01


@pytest.mark.parametrize(
    "made, text",
    [
        (svg.duration(4.4e-5), "0.044 ms"),
        (svg.duration(0.9994), "999 ms"),
        (svg.duration(0.9996), "1 s"),
        (svg.duration(1234.0), "1230 s"),
        (svg.short(0.0005), "0.0005"),
        (svg.short(41226), "41.2 k"),
        (svg.short(999_999), "1 M"),
        (words.cost_text(41226), "41,226"),
        (words.cost_text(41226.0), "41,226"),
        (words.cost_text(5.9e9), "5.9 G"),
        (words.cost_amount("latency_ms", 1.25), "1.25 ms latency"),
        (words.cost_amount("params", 1.25e6), "1.25 M parameters"),
        (words.value_text(workdirs.ACCURACY, 0.98765), "98.77 %"),
        (words.value_text(workdirs.PERPLEXITY, 1234.56), "1235"),
        (words.value_text(workdirs.LOSS, 4.1), "4.100"),
        (words.value_text(workdirs.LOSS, None), "–"),
        (words.difference_text(workdirs.ACCURACY, -0.0123), "−1.23 points"),
        (words.difference_text(workdirs.LOSS, 0.0123), "+0.0123 nats per token"),
        (words.difference_text(workdirs.LOSS, 4.1 - 4.1), "±0 nats per token"),
        (words.power_text("4473920"), "4,473,920"),
        (words.power_text("99600000"), "1.0 × 10<sup>8</sup>"),
        (words.power_text("5" * 400), "5.6 × 10<sup>399</sup>"),
    ],
)
def test_numbers_in_words(made, text):
    assert made.replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    "options, signs",
    [
        (["attention", "feed_forward", "identity"], ["A", "F", "–"]),
        (["conv_relu", "conv_gelu", "skip"], ["CR", "CG", "–"]),
        (["conv3", "conv5", "conv1"], ["C3", "C5", "C1"]),
        (["same one", "same other"], ["1", "2"]),
        (["none"], ["–"]),
    ],
)
def test_letters_tell_options_apart(options, signs):
    assert words.letters(options) == dict(zip(options, signs, strict=True))


def least(**fields):
    """A result with nothing in it that may be left out."""
    found = Network(name="found", architecture={}, costs={}, metrics={})
    task = TaskOf(name="data", examples="rows", sizes={}, metrics=(workdirs.ACCURACY,))
    return Result(**{"task": task, "space": SpaceOf(cardinality="1", choices={}), "found": found} | fields)


def test_the_least_result_has_a_page(tmp_path):
    result_lib.write(tmp_path, least())
    text = text_of(tmp_path)
    assert "– test accuracy" in text and "The search space holds 1 different networks" in text
    assert report.summary_lines(tmp_path)[-1] == f"Open {tmp_path / 'report.html'}"


@pytest.mark.parametrize(
    "missing, gone, noted",
    [
        ("metrics.jsonl", "Training the supernet", "Accuracy against parameters"),
        ("search/history.jsonl", "Accuracy against parameters", "The search has no history here"),
    ],
)
def test_missing_files_leave_their_panels_out(tmp_path, missing, gone, noted):
    (workdirs.vision(tmp_path, evaluations=60) / missing).unlink()
    text = text_of(tmp_path)
    assert gone not in text and noted in text


def test_no_random_search_is_noted(tmp_path):
    path = workdirs.vision(tmp_path, evaluations=60) / "search/history.jsonl"
    path.write_text("".join(x for x in path.read_text().splitlines(keepends=True) if "evolution" in x))
    result = result_lib.read(tmp_path)
    change(tmp_path, networks=result.networks[1:], searches=result.searches[:1])
    text = text_of(tmp_path)
    assert "Random search was not run" in text and "no random search to compare with" in text


def test_options_that_are_names_need_not_be_in_the_order_of_their_costs(tmp_path):
    """Then the networks of the first and of the last options are neither the smallest nor the largest."""
    root = KINDS["vision"](tmp_path)
    before, run = text_of(root), read_run(root)
    compared = re.compile(r"of its parameters; .* points test accuracy")
    assert compared.search(before) and "largest of the space" in before
    low, high = run.result.searches[0].reachable["params"]
    wider = {"params": (low / 2, 2 * high)}
    change(root, searches=tuple(dataclasses.replace(x, reachable=wider) for x in run.result.searches))
    after = text_of(root)
    assert not compared.search(after) and "of the space, inherited" not in after
    assert "lowest option of each choice" in after and "highest option of each choice" in after
    assert {one.label for one in scatter.plot_of(read_run(root)).marked} == {
        "lowest options",
        "highest options",
        "found",
    }


def test_one_evaluation(tmp_path):
    assert "Accuracy against parameters" in text_of(workdirs.vision(tmp_path, evaluations=1))


def test_a_network_trained_alone_shows_its_validation(tmp_path):
    lines = [{"step": s, "split": "validation", "accuracy": s / 100} for s in (10, 20, 30)]
    workdirs.write_lines(tmp_path / "metrics.jsonl", lines)
    result_lib.write(tmp_path, least(found=dataclasses.replace(least().found, weights="from scratch")))
    text = text_of(tmp_path)
    assert "validation: 30.00 %" in text and "Training the network" in text and "supernet" not in text


def test_stragglers_and_wide_ranges_stay_inside_the_plot(tmp_path):
    root = workdirs.vision(tmp_path, evaluations=100)
    with open(root / "search/history.jsonl", "a") as file:
        for i, (size, score) in enumerate(((40, 0.1), (9_000_000, 0.2))):
            line = {"index": 500 + i, "strategy": "random", "params": size, "score": score}
            file.write(json.dumps(line) + "\n")
    page = report.write(root).read_text(encoding="utf-8")
    assert "log scale" in page and "2 evaluations beyond the axis" in page
    starts = re.findall(r'class="mark .*?" d="M([-\d.]+) ([-\d.]+)', figure_of(page, "scatter-wide"))
    assert starts and all(40 < float(x) < 960 and 0 < float(y) < 470 for x, y in starts)


def test_values_that_are_not_finite(tmp_path):
    root = workdirs.vision(tmp_path, evaluations=60)
    with open(root / "metrics.jsonl", "a") as file:
        file.write('{"step": 3010, "split": "train", "loss": null, "accuracy": 0.1}\n')
    with open(root / "search/history.jsonl", "a") as file:
        file.write('{"index": 60, "strategy": "evolution", "params": 40000, "score": null}\n')
    result = result_lib.read(root)
    smallest = dataclasses.replace(result.networks[1], metrics={"test": {"accuracy": math.nan}})
    change(root, networks=(result.networks[0], smallest))
    page = report.write(root).read_text(encoding="utf-8")
    assert "1 losses were not finite" in page and not re.search(r"\b(nan|inf)\b", page.lower())


def test_settings_that_mended_a_training_are_said(tmp_path):
    root = workdirs.vision(tmp_path, evaluations=60)
    changes = {
        "training.learning_rate": {"before": 0.01, "now": 0.001},
        "training.clip": {"before": None, "now": 1.0},
    }
    workdirs.write_lines(root / "mends.jsonl", [{"step": 400, "diverged": 436, "changes": changes}])
    sentence = (
        "Step 436 diverged, and the training went on from step 400 with training.learning_rate=0.001 instead "
        "of 0.01 and training.clip=1.0 instead of None."
    )
    assert sentence in report.write(root).read_text(encoding="utf-8")
    workdirs.write_lines(root / "mends.jsonl", [{"step": 400, "diverged": 436, "changes": ["clip"]}])
    with pytest.raises(ValueError, match="'changes'"):
        report.write(root)


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
    found = dataclasses.replace(result_lib.read(root).found, architecture=arch)
    wide = figure_of(report.write(change(root, found=found)).read_text(encoding="utf-8"), "network-wide")
    assert wide.count('class="head"') == 12 * 3 and wide.count('class="mlp"') == 12
    assert wide.count(">skipped<") == 2 and wide.count(">672<") == 12


def test_probabilities_of_any_space(tmp_path):
    """Single choices are rows; a repeated choice has a figure of its own; the search is a moving picture."""
    root = workdirs.language(tmp_path, retrained=False)
    result = result_lib.read(root)
    chances = {"block": result.selection.probabilities["block"], "width": [0.25, 0.75]}
    choices = {**result.space.choices, "width": {"options": [64, 128]}}
    lines = [
        {
            "step": step,
            "split": "architecture",
            "confidence": 0.5,
            "probabilities": chances | {"width": [p, 1 - p]},
        }
        for step, p in ((100, 0.5), (200, 0.4))
    ]
    workdirs.write_lines(root / "metrics.jsonl", lines)
    change(
        root,
        space=dataclasses.replace(result.space, choices=choices),
        selection=dataclasses.replace(result.selection, probabilities=chances),
    )
    page = report.write(root).read_text(encoding="utf-8")
    assert "width 128: 75.0" in figure_of(page, "probabilities")
    assert figure_of(page, "probabilities-block").count('class="most"') == 12
    from PIL import Image

    with Image.open(root / "probabilities.gif") as moving, Image.open(root / "probabilities.png") as still:
        assert moving.n_frames == 3 and moving.size == still.size


def test_a_network_that_was_replaced_is_said_to_be_found_before(tmp_path):
    root = workdirs.language(tmp_path)
    result = result_lib.read(root)
    other = dataclasses.replace(result.found, architecture={"block": ["attention"] * 12})
    text = text_of(change(root, found=other))
    assert "found before, from scratch" in text and "with inherited weights" in text


def test_text_is_escaped(tmp_path):
    for kind, make in KINDS.items():
        root = make(tmp_path / kind)
        result = result_lib.read(root)
        task = dataclasses.replace(
            result.task, name=EVIL, examples=EVIL, inputs=EVIL, details={EVIL: EVIL, "image_shape": [EVIL]}
        )
        found = dataclasses.replace(
            result.found,
            architecture={**result.found.architecture, EVIL: EVIL},
            costs={**result.found.costs, EVIL: 1},
        )
        change(
            root,
            task=task,
            found=found,
            networks=tuple(dataclasses.replace(net, name=EVIL, weights=EVIL) for net in result.networks[-1:]),
            searches=tuple(dataclasses.replace(s, bounds={EVIL: (None, 2)}) for s in result.searches),
            space=dataclasses.replace(result.space, cardinality=EVIL),
            config={"name": EVIL, EVIL: EVIL},
            versions={EVIL: EVIL},
            subnet=EVIL,
        )
        page = report.write(root).read_text(encoding="utf-8")
        assert "<script>alert" not in page and page.count("<script>") == 1, kind
        assert EVIL in "".join(Structure(page).words)


def more(line):
    """Appends a line, which the message names by its number."""
    return lambda text: text + line + "\n"


ARCHITECTURE = '{"step": 9, "split": "architecture", "probabilities": %s}'
SCORE = '{"index": 0, "strategy": "random", "score": %s}'
DAMAGED = (
    ("result.json", lambda text: None, FileNotFoundError),
    ("result.json", lambda text: '{"found": ', ValueError, "JSON"),
    ("result.json", lambda text: "[]", ValueError, "version None"),
    ("result.json", lambda text: '{"version": 1}', ValueError, "changed"),
    ("result.json", lambda text: text.replace('"name": "found"', '"name": 3'), ValueError, "changed"),
    (
        "result.json",
        lambda text: re.sub(r',\s+"sha256": "\w+"', "", text.replace('"length": 5', '"length": "5"', 1)),
        *(ValueError, "changed"),
    ),
    ("retrained/a/result.json", lambda text: '{"version": 0}', ValueError, "version 0"),
    ("metrics.jsonl", more('{"step": 3'), ValueError, "line {n}", "JSON"),
    ("metrics.jsonl", more("{}"), ValueError, "line {n}", "'split'"),
    ("metrics.jsonl", more('{"step": "a", "split": "train"}'), ValueError, "line {n}", "'step'"),
    ("metrics.jsonl", more(ARCHITECTURE % '{"block": [[1]]}'), ValueError, "line {n}", "'block'"),
    ("metrics.jsonl", more(ARCHITECTURE % '{"depth": [1]}'), ValueError, "line {n}", "'depth'", "[5]"),
    ("search/history.jsonl", more("3"), ValueError, "line {n}"),
    ("search/history.jsonl", more(SCORE % '"good"'), ValueError, "line {n}", "'score'", "'good'"),
    (
        "search/history.jsonl",
        more(SCORE % '1, "architecture": {"depth": [[1]]}'),
        ValueError,
        "line {n}",
        "'depth'",
    ),
)


def test_damaged_files_are_named(tmp_path):
    whole = workdirs.vision(tmp_path / "whole", evaluations=20)

    def case(number, name, damage, error, *names):
        root = tmp_path / str(number)
        shutil.copytree(whole, root)
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        if damage(text) is not None:
            path.write_text(damage(text))
        names = [one.replace("{n}", str(text.count("\n") + 1)) for one in names]
        return lambda: report.write(root), error, path.name, *names

    refusals.check(*(case(number, *one) for number, one in enumerate(DAMAGED)))
    assert [path.parent.name for path in tmp_path.glob("*/report.html")] == []


def test_lines_written_twice_count_once_and_half_a_line_not_at_all(roots, pages, tmp_path):
    root = workdirs.vision(tmp_path)
    for name in ("metrics.jsonl", "search/history.jsonl"):
        lines = (root / name).read_text().splitlines(keepends=True)
        (root / name).write_text("".join(lines + lines[-20:]) + '{"step')
    assert report.write(root).read_text(encoding="utf-8") == pages["vision"]


def test_summary_lines(roots):
    root = roots["vision"]
    lines = report.summary_lines(root)
    assert lines[0] == "Found: 96.7 % test accuracy with 126,794 parameters, 51 % of the largest network’s."
    assert any(line.startswith("  random search: ") for line in lines)
    assert lines[-2:] == [f"Network: {root}/subnet", f"Open {root}/report.html"]
    assert all(len(line) <= 110 for line in lines if str(root) not in line)


@pytest.mark.parametrize(
    "times, line",
    [
        (
            {"seconds": 1234.5, "input": 0.02, "step": 0.9, "evaluation": 0.06, "steps_per_second": 24.314},
            "Time: 1,234.5 s: 2 % input, 90 % step, 6 % evaluation; 24.31 steps per second.",
        ),
        ({}, "Time: not known."),
    ],
)
def test_times_line(times, line):
    assert report.times_line(times) == line


def test_picture_for_the_readme(roots, tmp_path):
    pytest.importorskip("matplotlib")
    report.save_png(roots["vision"], tmp_path / "hero.png")
    data = (tmp_path / "hero.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20]) == 1600
    with pytest.raises(ValueError, match="no search history to draw"):
        report.save_png(roots["language"], tmp_path / "none.png")


def test_results_are_read_as_they_were_written(roots, tmp_path):
    for root in roots.values():
        result = result_lib.read(root)
        result_lib.write(tmp_path, result)
        assert result_lib.read(tmp_path) == result


@pytest.mark.parametrize("kind", ["vision", "language", "perturbation", "mechanisms"])
def test_a_result_that_was_changed_anywhere_is_named(roots, tmp_path, kind):
    path, rng = tmp_path / "result.json", random.Random(0)
    text = (roots[kind] / "result.json").read_text()
    values = [one for one in re.finditer(r'(?<=[ :]) ("[^"]*"|-?[\d.e-]+|null|true)(?=,?\n)', text)]
    assert len(values) > 30
    for one in rng.sample(values, 30):
        changed = "7" if one[1] != "7" else '"x"'
        path.write_text(text[: one.start(1)] + changed + text[one.end(1) :])
        with pytest.raises(ValueError, match=r"result\.json (was changed after it|has version 7)"):
            report.write(tmp_path)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda values: values.pop("task"), "'task'"),
        (lambda values: values.update(searches=3), "'int'"),
        (lambda values: values.update(found="found"), "no attribute 'items'"),
        (lambda values: values["found"].update(name=None), "expected str, found None"),
        (lambda values: values["searches"][0]["bounds"].update(params=[1]), "zip.. argument 2 is longer"),
    ],
)
def test_what_is_no_result_is_refused(roots, tmp_path, damage, message):
    """As one of another version, whose digest is right."""
    values = json.loads((roots["vision"] / "result.json").read_text())
    assert result_lib.parse(values | {"later": 3}, Result, tmp_path) == result_lib.read(roots["vision"])
    damage(values)
    with pytest.raises(ValueError, match=f"{tmp_path} does not hold a Result: .*{message}"):
        result_lib.parse(values, Result, tmp_path)


def test_the_standard_error_is_that_of_a_share_or_was_measured():
    task = TaskOf(name="d", examples="images", sizes={"test": 100}, metrics=(workdirs.ACCURACY,))
    network = Network(name="a", architecture={}, costs={}, metrics={}, errors={"test": {"F1": 0.3}})
    score = MetricOf(name="F1", unit="%", direction="max")
    cases = (
        (workdirs.ACCURACY, "test", 0.8, pytest.approx(0.04)),
        (workdirs.ACCURACY, "test", 1.0, None),  # None is wrong: nothing to estimate an error from.
        (workdirs.ACCURACY, "search", 0.8, None),
        (score, "test", 0.8, 0.3),
        (score, "search", 0.8, None),
    )
    for metric, role, value, expected in cases:
        assert words.standard_error(task, metric, role, network, value) == expected, (metric, role, value)
    # Of 100 draws with this share of right ones, all are right in 5 % of cases.
    least = words.least_without_errors(100)
    assert scipy.stats.binom.pmf(100, 100, least) == pytest.approx(0.05)


def test_a_network_without_errors_is_not_called_certain(roots, tmp_path):
    shutil.copytree(roots["vision"], tmp_path, dirs_exist_ok=True)
    result = result_lib.read(tmp_path)
    perfect = {**result.found.metrics, "test": {**result.found.metrics["test"], "accuracy": 1.0}}
    result_lib.write(
        tmp_path, dataclasses.replace(result, found=dataclasses.replace(result.found, metrics=perfect))
    )
    text = report.write(tmp_path).read_text()
    assert "It made no error on" in text and "with 95 % confidence its accuracy is above" in text
    assert "± 0.00" not in text


def test_a_page_is_there_while_the_run_goes_on(roots, tmp_path):
    finished = read_run(roots["vision"]).result
    for name in ("metrics.jsonl", "search/history.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
    given = finished.task, finished.space, "The search is on its way."

    empty = live.write(tmp_path, *given).read_text()
    assert "Nothing is recorded yet" in empty and '<meta http-equiv="refresh" content="5">' in empty

    (tmp_path / "metrics.jsonl").write_bytes((roots["vision"] / "metrics.jsonl").read_bytes())
    trained = live.write(tmp_path, *given).read_text()
    assert "Training the supernet" in trained and "Best so far" not in trained

    lines = (roots["vision"] / "search" / "history.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "search" / "history.jsonl").write_bytes(b"".join(lines[:30]) + lines[30][:20])
    searched = live.write(tmp_path, *given, searches=finished.searches, reload=None).read_text()
    best = max(json.loads(line)["score"] for line in lines[:30])
    assert f"Best so far: {100 * best:.1f}" in searched.replace("\N{NO-BREAK SPACE}", " ")
    assert "The search is on its way." in searched and "refresh" not in searched
    assert "The best architecture so far" in searched and "The found architecture" not in searched
    assert "has no random search" not in searched


def test_a_live_page_is_written_only_now_and_then(roots, tmp_path):
    times = iter([0.0, 0.0, 3.0, 5.0, 6.0, 40.0, 40.0])
    task, space = small_tasks.task_of("images"), small_tasks.net_of("images").space
    page = runs.LivePage(task, space, tmp_path, every=5.0, clock=lambda: next(times))
    (tmp_path / "result.json").write_text("{}")
    page.end("Nothing was done.")
    page.begin("Nothing begins.")
    assert not (tmp_path / "report.html").exists()  # a finished page is not replaced for nothing
    (tmp_path / "result.json").unlink()
    page.end("It was done before a kill.")  # the page of that run says that it goes on
    assert "before a kill" in (tmp_path / "report.html").read_text()
    page.begin("It is being compiled.")
    begun = (tmp_path / "report.html").read_text()
    assert "It is being compiled." in begun and "refresh" in begun
    page.update("First.", 10, 100)
    assert "First." in (tmp_path / "report.html").read_text()
    page.update("Second.")
    assert "First." in (tmp_path / "report.html").read_text()
    page.update("Third.")
    assert "Third." in (tmp_path / "report.html").read_text()
    page.update("Fourth.", 50, 100)  # 40 in 40 seconds
    assert "Fourth. About 0:50 left." in (tmp_path / "report.html").read_text()
    page.end("Done.")
    assert "refresh" not in (tmp_path / "report.html").read_text()
