"""What objects show in a notebook, and as data frames."""

import html.parser
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
import refusals
import small_tasks

import jaxnas
from jaxnas import Choice, Space, display, search
from jaxnas.report.result import MetricOf, Network, Result, SpaceOf, TaskOf

SPACE = Space(depth=Choice(1, 2), kind=Choice("<b>", "&").repeat(2, active="depth"))
ARCH = {"depth": 1, "kind": ["<b>", None]}
NETWORK = Network(
    name="found", architecture=ARCH, costs={"params": 12345}, metrics={"test": {"accuracy": 0.12345}}
)


def cells(text):
    """The caption, and the texts of the cells by row, of HTML that is well formed."""
    rows, stack, caption = [], [], []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            stack.append(tag)
            if tag == "tr":
                rows.append([])
            if tag in ("td", "th"):
                rows[-1].append("")

        def handle_endtag(self, tag):
            assert stack.pop() == tag

        def handle_data(self, data):
            if stack[-1] == "caption":
                caption.append(data)
            else:
                rows[-1][-1] += data

    Parser().feed(text)
    assert not stack and len({len(row) for row in rows}) == 1
    return "".join(caption), rows


def result():
    metric = MetricOf(name="accuracy", unit="%", direction="max")
    task = TaskOf(name="digits", examples="images", sizes={"test": 5}, metrics=(metric,))
    return Result(task=task, space=SpaceOf(cardinality="6", choices={}), found=NETWORK, networks=(NETWORK,))


def test_a_table_escapes_and_says_what_it_leaves_out():
    rows = [{"a<": 1.23456789, "b": "<script>"}, {"b": None, "c": [1, 2]}, {}]
    caption, shown = cells(display.table(rows, "x & y", most=2))
    assert caption == "x & y. 1 more rows"
    assert shown == [["a<", "b", "c"], ["1.235", "<script>", ""], ["", "", "[1, 2]"]]


def test_spaces_networks_searches_and_results_show_themselves():
    caption, rows = cells(SPACE._repr_html_())
    assert caption == f"{SPACE.cardinality} architectures" and rows[2] == [
        "kind",
        '["<b>", "&"]',
        "2",
        "depth",
    ]
    beyond_floats = Space(kind=Choice(*range(10)).repeat(400))
    assert cells(beyond_floats._repr_html_())[0] == "1.00e+400 architectures"
    found = search.run(
        search.RandomSearch(SPACE, evaluations=3), lambda values: values["depth"], jax.random.key(0)
    )
    caption, (head, best, *_) = cells(found._repr_html_())
    assert caption.startswith("3 ") and best[head.index("score")] == f"{found.score:.4g}"
    _, (head, *rows) = cells(result()._repr_html_())
    assert head == ["network", "weights", "params", "test accuracy", "architecture"]
    assert rows[0] == ["found", "inherited", "12,345", "0.1235", 'depth=1, kind=["<b>", null]']
    net = small_tasks.perceptron(2)
    inputs = small_tasks.task_of("images").inputs
    small = jaxnas.extract(
        net, jaxnas.init(net, jax.random.key(0), inputs), net.space.smallest(), inputs=inputs
    )
    assert cells(small._repr_html_())[1][1] == ["hidden", "[1, 1]"]
    model, x = nn.Sequential([nn.Dense(3), nn.Dense(2)]), jnp.zeros((1, 4))
    groups = jaxnas.analyze(model, model.init(jax.random.key(0), x), x)
    assert [row[0] for row in cells(groups._repr_html_())[1]] == ["group", *(one.name for one in groups)]


def test_pandas_is_asked_for_where_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    refusals.check((lambda: result().to_pandas(), ImportError, "pip install pandas"))


def test_results_as_data_frames():
    pytest.importorskip("pandas")
    frame = result().to_pandas()
    assert list(frame["params"]) == [12345, 12345] and frame["architecture"][0] == ARCH
