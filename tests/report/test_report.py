"""The page of a run: deterministic, self-contained, well-formed, right and honest about gaps."""

import html.parser
import json
import math
import pathlib
import random
import re
import xml.etree.ElementTree

import pytest

from jaxnas import report
from jaxnas.report import figures, svg

VOID = {"meta", "link", "br", "hr", "img", "input"}


def make_workdir(
    root,
    layers=5,
    widths=(16, 32, 48, 64),
    heads=(1, 2, 3, 4),
    evaluations=250,
    shape=(8, 8, 1),
    classes=10,
    counts=(1077, 360, 360),
    name="digits",
    seed=0,
):
    """Fills ``root`` with the files of a plausible run and returns it."""
    rng, root = random.Random(seed), pathlib.Path(root)
    (root / "search").mkdir(parents=True, exist_ok=True)
    ratios = (3.0, 3.5, 4.0) if layers > 8 else (1.0, 2.0, 3.0, 4.0)
    depths = tuple(range(max(1, layers - 2 if layers > 8 else 1), layers + 1))

    def params(arch):
        e, depth = arch["embed_dim"], arch["depth"]
        each = zip(arch["num_heads"][:depth], arch["mlp_ratio"][:depth], strict=True)
        return (
            e * (shape[-1] * 4 + 17 + classes)
            + classes
            + sum(4 * e * h * 16 + 2 * e * round(e * r) + 6 * e for h, r in each)
        )

    def network(arch, accuracy=None):
        size = params(arch)
        if accuracy is None:
            accuracy = score(size)
        test = min(1.0, max(0.0, accuracy - 0.004 + rng.gauss(0, 0.003)))
        return {
            "architecture": arch,
            "params": size,
            "macs": size * 17,
            "search_accuracy": accuracy,
            "test_accuracy": test,
        }

    def score(size):
        clean = 0.985 - 0.07 * math.exp(-3.2 * size / largest) - abs(rng.gauss(0, 0.006))
        return round(min(1.0, clean) * counts[1]) / counts[1]

    def sample():
        return {
            "embed_dim": rng.choice(widths),
            "depth": rng.choice(depths),
            "num_heads": [rng.choice(heads) for _ in range(layers)],
            "mlp_ratio": [rng.choice(ratios) for _ in range(layers)],
        }

    def extreme(pick):
        return {
            "embed_dim": pick(widths),
            "depth": pick(depths),
            "num_heads": [pick(heads)] * layers,
            "mlp_ratio": [pick(ratios)] * layers,
        }

    largest = params(extreme(max))
    low, high = round(0.15 * largest, -2), round(0.6 * largest, -2)
    history, bests = [], {}
    for strategy in ("evolution", "random"):
        lines = []
        while len(lines) < evaluations:
            arch = sample()
            if strategy == "evolution" and len(lines) > 50:
                top = sorted(lines, key=lambda x: -x["score"])[:10]
                parent = rng.choice(top)["architecture"]
                arch = {k: (arch[k] if rng.random() < 0.3 else parent[k]) for k in arch}
            if low <= params(arch) <= high:
                bonus = 0.004 if strategy == "evolution" and len(lines) > 50 else 0
                line = {
                    "index": len(lines),
                    "strategy": strategy,
                    "generation": len(lines) // 50 if strategy == "evolution" else 0,
                    "architecture": arch,
                    "params": params(arch),
                    "macs": params(arch) * 17,
                    "score": min(1.0, score(params(arch)) + bonus),
                }
                lines.append(line)
        history += lines
        bests[strategy] = max(lines, key=lambda x: (x["score"], -x["params"]))
    with open(root / "search" / "history.jsonl", "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in history)

    steps = 3000
    with open(root / "metrics.jsonl", "w") as file:
        for step in range(10, steps + 1, 10):
            part = step / steps
            line = {
                "step": step,
                "split": "train",
                "loss": 0.55 + 1.8 * math.exp(-7 * part) + abs(rng.gauss(0, 0.05)),
                "accuracy": min(1, 1 - 0.85 * math.exp(-8 * part) - abs(rng.gauss(0, 0.02))),
                "learning_rate": 1e-3 * min(1, part / 0.05) * (1 + math.cos(3.1416 * part)) / 2,
            }
            file.write(json.dumps(line) + "\n")
            if step % 150 == 0:
                top = 0.985 - 0.8 * math.exp(-9 * part)
                mean = top - 0.02 - 0.1 * math.exp(-4 * part)
                line = {
                    "step": step,
                    "split": "search",
                    "largest_accuracy": top,
                    "smallest_accuracy": mean - 0.05 - 0.15 * math.exp(-3 * part),
                    "random_accuracy_mean": mean,
                    "random_accuracy_min": mean - 0.03,
                    "random_accuracy_max": mean + 0.01,
                }
                file.write(json.dumps(line) + "\n")

    best, other = (network(bests[s]["architecture"], bests[s]["score"]) for s in bests)
    result = {
        "config": {
            "name": name,
            "seed": 0,
            "training": {"steps": steps, "batch_size": 128},
            "search": {"population": 50, "parents": 10},
        },
        "data": {
            "name": name,
            "image_shape": list(shape),
            "num_classes": classes,
            **dict(zip(("train", "search", "test"), counts, strict=True)),
        },
        "space": {
            "cardinality": str(len(widths) * sum((len(heads) * len(ratios)) ** d for d in depths)),
            "choices": {
                "embed_dim": {"options": list(widths)},
                "depth": {"options": list(depths)},
                "num_heads": {"options": list(heads), "length": layers, "active": "depth"},
                "mlp_ratio": {"options": list(ratios), "length": layers, "active": "depth"},
            },
        },
        "search": {
            "evaluations": evaluations,
            "generations": 5,
            "bounds": {"params": [low, high]},
            "reachable": {"params": [params(extreme(min)), largest]},
        },
        "best": {**best, "extraction_error": 2.4e-7},
        "random_search": {**other, "evaluations": evaluations},
        "smallest": network(extreme(min)),
        "largest": network(extreme(max)),
        "subnet": "subnet",
        "versions": {"jaxnas": "0.1.0", "jax": "0.10.2", "flax": "0.12.0", "python": "3.11"},
        "device": "cpu (2 cores)",
    }
    (root / "result.json").write_text(json.dumps(result))
    return root


class Structure(html.parser.HTMLParser):
    """Collects text and attributes, and fails where elements are not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.words = [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
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


def edit(root, change):
    """Applies ``change`` to the result in ``root`` and returns the page that is then written."""
    path = root / "result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    return report.write(root).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return make_workdir(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def page(demo):
    return report.write(demo).read_text(encoding="utf-8")


def test_same_files_give_same_bytes_in_any_folder(demo, page, tmp_path):
    other = make_workdir(tmp_path / "elsewhere")
    assert report.write(other).read_bytes() == report.write(demo).read_bytes()
    assert str(demo) not in page and "elsewhere" not in page
    assert sorted(p.name for p in other.iterdir()) == [
        "metrics.jsonl",
        "report.html",
        "result.json",
        "search",
    ]


def test_page_is_well_formed_and_loads_nothing(page):
    structure = Structure(page)
    ids = [value for _, key, value in structure.attributes if key == "id"]
    assert len(ids) == len(set(ids)) > 0
    loads = [
        a for a in structure.attributes if a[1] in ("src", "href", "srcset", "data", "action", "xlink:href")
    ]
    assert loads == [("link", "href", "data:,")]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in page


def test_every_figure_is_xml_with_title_and_description(page):
    space, named = "{http://www.w3.org/2000/svg}", 0
    for text in re.findall(r"<svg.*?</svg>", page, flags=re.S):
        root = xml.etree.ElementTree.fromstring(text)
        if root.get("aria-hidden"):
            continue  # a sign in a legend
        named += 1
        ids = root.get("aria-labelledby").split()
        assert [root.find(f"{space}{tag}").get("id") for tag in ("title", "desc")] == ids
        assert root.find(f"{space}desc").text
    assert named == 10  # four figures wide and narrow, and loss and learning rate


def test_figures_leave_colours_to_the_style_sheet(page):
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.S))
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(|fill=|stroke=", drawings)
    used = set(re.findall(r"var\((--\w+)\)", page))
    light, dark = re.findall(r":root\{(.*?)\}", page, flags=re.S)[:2]
    assert used <= set(re.findall(r"(--\w+):", light))
    assert set(re.findall(r"(--\w+):", light)) == set(re.findall(r"(--\w+):", dark))


def test_numbers_of_the_result_are_on_the_page(demo, page):
    text = Structure(page).text
    result = json.loads((demo / "result.json").read_text())
    for name in ("best", "random_search", "smallest", "largest"):
        network = result[name]
        for wanted in (
            f"{network['params']:,}",
            f"{100 * network['search_accuracy']:.2f} %",
            f"{100 * network['test_accuracy']:.2f} %",
        ):
            assert wanted in text, (name, wanted)
    share = result["best"]["params"] / result["largest"]["params"]
    assert (
        f"{100 * result['best']['test_accuracy']:.1f} % test accuracy with "
        f"{result['best']['params']:,} parameters, {100 * share:.0f} % of the largest"
    ) in text
    wanted = (
        "2.4e-07",
        "1,077",
        "training.batch_size",
        "0.10.2",
        "cpu (2 cores)",
        'jaxnas.load_subnet("subnet")',
        "model.stablehlo",
        "--config=digits",
    )
    assert [w for w in wanted if w not in text] == []


def test_every_evaluation_has_a_mark(page):
    wide = next(s for s in re.findall(r"<svg.*?</svg>", page, flags=re.S) if "scatter-wide" in s)
    assert len(re.findall(r'class="mark evolution late', wide)) == 250
    assert len(re.findall(r'class="mark random late', wide)) == 250


def test_front_against_brute_force():
    rng = random.Random(0)
    for n in (1, 2, 30, 200):
        points = [(rng.randrange(40), rng.randrange(40)) for _ in range(n)]
        beaten = {p for p in points for q in points if q != p and q[0] <= p[0] and q[1] >= p[1]}
        front = figures.pareto_front(points)
        assert [points[i] for i in front] == sorted(set(points) - beaten)
        assert all(points.index(points[i]) == i for i in front)
    assert figures.pareto_front([]) == []


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
    "seconds, text",
    [
        (4.4e-5, "0.044 ms"),
        (0.00434, "4.34 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (4.128, "4.13 s"),
        (1234.0, "1230 s"),
    ],
)
def test_durations(seconds, text):
    assert svg.duration(seconds).replace("\u00a0", " ") == text


def test_short_numbers():
    values = (0, 0.0005, 999, 1000, 41226, 999_999, 5.9e9)
    texts = [svg.short(value).replace("\u00a0", " ") for value in values]
    assert texts == ["0", "0.0005", "999", "1 k", "41.2 k", "1 M", "5.9 G"]


@pytest.mark.parametrize(
    "missing, note",
    [
        ("metrics.jsonl", "No training metrics were found"),
        ("search/history.jsonl", "No search history was found"),
    ],
)
def test_missing_files_are_noted(tmp_path, missing, note):
    root = make_workdir(tmp_path, evaluations=60)
    (root / missing).unlink()
    assert note in Structure(report.write(root).read_text(encoding="utf-8")).text


def test_no_random_search_is_noted(tmp_path):
    root = make_workdir(tmp_path, evaluations=60)
    lines = (root / "search/history.jsonl").read_text().splitlines(keepends=True)
    (root / "search/history.jsonl").write_text("".join(x for x in lines if "evolution" in x))
    page = edit(root, lambda result: result.pop("random_search"))
    text = Structure(page).text
    assert "Random search was not run" in text and "no random search to compare with" in text
    assert "random search&#x27;s best" not in page


def test_a_result_with_only_the_best(tmp_path):
    best = {"params": 10, "search_accuracy": 0.5, "test_accuracy": 0.25}
    (tmp_path / "result.json").write_text(json.dumps({"best": best}))
    text = Structure(report.write(tmp_path).read_text(encoding="utf-8")).text
    assert "25.0 % test accuracy with 10 parameters" in text
    assert "does not hold the architecture" in text and "not measured" in text


def test_one_evaluation(tmp_path):
    Structure(report.write(make_workdir(tmp_path, evaluations=1)).read_text(encoding="utf-8"))


def test_stragglers_and_wide_ranges_stay_inside_the_plot(tmp_path):
    root = make_workdir(tmp_path, evaluations=100)
    with open(root / "search/history.jsonl", "a") as file:
        for i, (size, score) in enumerate(((40, 0.1), (9_000_000, 0.2))):
            file.write(
                json.dumps({"index": 500 + i, "strategy": "random", "params": size, "score": score}) + "\n"
            )
    page = report.write(root).read_text(encoding="utf-8")
    assert "log scale" in page and "2 evaluations below the axis" in page
    wide = next(s for s in re.findall(r"<svg.*?</svg>", page, flags=re.S) if "scatter-wide" in s)
    starts = re.findall(r'class="mark .*?" d="M([-\d.]+) ([-\d.]+)', wide)
    assert all(40 < float(x) < 960 and 0 < float(y) < 470 for x, y in starts)


def test_values_that_are_not_finite(tmp_path):
    root = make_workdir(tmp_path, evaluations=60)
    with open(root / "metrics.jsonl", "a") as file:
        file.write('{"step": 3010, "split": "train", "loss": NaN, "accuracy": 0.1}\n')
    page = edit(root, lambda result: result["smallest"].update(test_accuracy=math.nan))
    assert "1 losses were not finite" in page and not re.search(r"\bnan\b", page.lower())


def test_architectures_without_heads_become_a_table(tmp_path):
    root = make_workdir(tmp_path, evaluations=60)
    other = {"kernel": [3, 5, None], "operation": "<skip>"}
    page = edit(root, lambda result: result["best"].update(architecture=other))
    text = Structure(page).text
    assert "3, 5, –" in text and "<skip>" in text and "network-wide" not in page


def test_layers_beyond_the_depth_are_ghosts(tmp_path):
    root = make_workdir(tmp_path, layers=14, widths=(192, 216, 240), heads=(3, 4), evaluations=60)
    arch = {"embed_dim": 192, "depth": 12, "num_heads": [3] * 14, "mlp_ratio": [3.5] * 12 + [None] * 2}
    page = edit(root, lambda result: result["best"].update(architecture=arch))
    wide = next(s for s in re.findall(r"<svg.*?</svg>", page, flags=re.S) if "network-wide" in s)
    assert wide.count('class="head"') == 12 * 3 and wide.count('class="mlp"') == 12
    assert wide.count(">skipped<") == 2 and wide.count(">672<") == 12


def test_text_is_escaped(tmp_path):
    root = make_workdir(tmp_path, evaluations=60)
    evil = "<script>alert('1')</script>\"&"

    def change(result):
        result["config"][evil] = evil
        result["config"]["name"] = result["data"]["name"] = result["device"] = evil
        result["versions"][evil] = evil
        result["data"]["image_shape"] = [evil]
        result["space"]["cardinality"] = evil
        result["best"]["architecture"]["kind"] = evil

    page = edit(root, change)
    assert "<script>alert" not in page and page.count("<script>") == 1
    assert evil in "".join(Structure(page).words)


def test_errors_name_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"result\.json is missing"):
        report.write(tmp_path)
    (tmp_path / "result.json").write_text('{"best": ')
    with pytest.raises(ValueError, match=r"result\.json is not valid JSON"):
        report.write(tmp_path)
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(ValueError, match=r"result\.json: expected an object"):
        report.write(tmp_path)
    (tmp_path / "result.json").write_text('{"best": {"params": 3}}')
    with pytest.raises(ValueError, match=r"result\.json: 'best' has no .*'search_accuracy'"):
        report.write(tmp_path)
    make_workdir(tmp_path, evaluations=60)
    for name in ("metrics.jsonl", "search/history.jsonl"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text + '{"step": 3\n')
        n = text.count("\n") + 1
        with pytest.raises(ValueError, match=rf"line {n} of .*{name} is not valid JSON"):
            report.write(tmp_path)
        (tmp_path / name).write_text(text + "{}\n")
        with pytest.raises(ValueError, match=rf"line {n} of .*{name} has no '\w+'"):
            report.write(tmp_path)
        (tmp_path / name).write_text(text)
    assert not (tmp_path / "report.html").exists()


def test_lines_written_twice_count_once(demo, page, tmp_path):
    root = make_workdir(tmp_path)
    for name in ("metrics.jsonl", "search/history.jsonl"):
        lines = (root / name).read_text().splitlines(keepends=True)
        (root / name).write_text("".join(lines + lines[-20:]))
    assert report.write(root).read_text(encoding="utf-8") == page


def test_summary_lines(demo):
    result = json.loads((demo / "result.json").read_text())
    lines = report.summary_lines(result, "runs/demo")
    assert lines[0].startswith("Found: ") and f"{result['best']['params']:,} parameters" in lines[0]
    assert any(line.startswith("  random search: ") for line in lines)
    assert lines[-1] == "Open runs/demo/report.html"
    assert len(lines) <= 6 and all(len(line) <= 100 for line in lines)
    assert report.summary_lines({"best": result["best"]})[-1] == "Open report.html"
    with pytest.raises(ValueError, match="'best' is missing"):
        report.summary_lines({})


def test_picture_for_the_readme(demo, tmp_path):
    pytest.importorskip("matplotlib")
    figures.save_png(demo, tmp_path / "hero.png")
    data = (tmp_path / "hero.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20]) == 1600
    best = {"params": 10, "search_accuracy": 0.5, "test_accuracy": 0.25}
    (tmp_path / "result.json").write_text(json.dumps({"best": best}))
    figures.save_png(tmp_path, tmp_path / "alone.png")
    assert (tmp_path / "alone.png").stat().st_size > 1000
