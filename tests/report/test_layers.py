"""The drawing of additions and attentions: everything in it, nothing that is not there, lines kept apart."""

import collections
import itertools
import re
import xml.etree.ElementTree

import hypothesis
import pytest
import workdirs
from hypothesis import strategies as st

from jaxnas import report, spaces
from jaxnas.report import layers

SVG = "{http://www.w3.org/2000/svg}"
CITESEER = spaces.autoattend(3, spaces.AUTOATTEND_CITESEER)


def published():
    return spaces.autoattend(24), spaces.autoattend_sst_options()


def drawn(space, architecture):
    """The layers, and the drawing as an element."""
    found = layers.layers_of(architecture, space.to_json())
    return found, xml.etree.ElementTree.fromstring(re.search(r"<svg.*</svg>", layers.draw(found)).group())


def labels_of(architecture):
    """All texts that a drawing should have, counted."""
    words = ["input"]
    for i, kind in enumerate(architecture["layer"]):
        attends = kind == "attention"
        words += [f"{i + 1} {kind}", ("query " if attends else "") + architecture["first"][i]]
        operations = [architecture[name][i] for name in (("key", "value") if attends else ("second",))]
        words += [f"key {operations[0]}", f"value {operations[1]}"] if attends else operations
        if operations != ["zero"]:
            words.append(f"from {architecture['source'][i] or 'input'}")
    return collections.Counter(word.replace("_", " ") for word in words)


@st.composite
def architectures(draw):
    """Of one to ten layers, written as result.json has them."""
    count, names = draw(st.integers(1, 10)), spaces.AUTOATTEND_TEXT
    arch = {name: [] for name in ("layer", "source", "first", "second", "key", "value")}
    for i in range(count):
        attends = draw(st.booleans())
        some = st.sampled_from(names[1:])
        values = ("attention" if attends else "addition", draw(st.integers(0, i)), draw(some))
        values += (None, draw(some), draw(some)) if attends else (draw(st.sampled_from(names)), None, None)
        for name, value in zip(arch, values, strict=True):
            arch[name].append(value)
    # What counts in no layer is left out, as `Space.to_dict` does.
    return {name: values for name, values in arch.items() if any(value is not None for value in values)}


def check(space, architecture):
    found, figure = drawn(space, architecture)
    assert [one.kind for one in found] == architecture["layer"]
    assert collections.Counter(text.text for text in figure.iter(f"{SVG}text")) == labels_of(architecture)
    paths = collections.Counter(path.get("class") for path in figure.iter(f"{SVG}path"))
    zeros = sum(other == ("second", "zero") for one in found for other in one.others)
    inputs = sum(1 + len(one.others) for one in found)
    assert paths["arrowhead"] == inputs - zeros and paths["nothing"] == zeros
    assert paths["line front"] == len(found)  # the chain
    width, height = map(float, figure.get("viewBox").split()[2:])
    for text in figure.iter(f"{SVG}text"):
        assert 0 < float(text.get("x")) < width and 0 < float(text.get("y")) < height
    letter, lines = 6.5, collections.defaultdict(list)  # px; a letter of the labels is narrower on average
    for text in figure.iter(f"{SVG}text"):
        long, x = letter * len(text.text), float(text.get("x"))
        left = {"end": x - long, "middle": x - long / 2}.get(text.get("text-anchor"), x)
        lines[text.get("y")].append((left, left + long))
    for spans in map(sorted, lines.values()):
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
    for layer in range(1, len(found) + 1):
        assert f"layer {layer}, {found[layer - 1].kind}: " in figure.find(f"{SVG}desc").text


@pytest.mark.parametrize(
    "space, architecture",
    [
        published(),
        (spaces.autoattend(3), workdirs.SMALL_GRAPH),
        (CITESEER, workdirs.SMALL_GRAPH | {"first": ["const", "sym_gat", "gene_linear"]}),
        (
            spaces.autoattend(2, attention=False),
            {
                "layer": ["addition"] * 2,
                "source": [0, 1],
                "first": ["gru"] * 2,
                "second": ["zero", "identity"],
            },
        ),
    ],
    ids=["published", "small", "of a graph", "additions alone"],
)
def test_every_layer_and_every_operation_is_in_the_drawing(space, architecture):
    check(space, architecture)


@hypothesis.given(architectures())
@hypothesis.settings(max_examples=40, deadline=None)
def test_lines_of_different_sources_have_lanes_of_their_own(architecture):
    space = spaces.autoattend(len(architecture["layer"]))
    check(space, architecture)
    found = layers.layers_of(architecture, space.to_json())
    lane_of = layers.lanes(found)
    spans = {}
    for number, one in enumerate(found, 1):
        if one.joined:
            spans.setdefault(one.source, set()).update(range(one.source, number + 1))
    assert spans.keys() == lane_of.keys()
    for a, b in itertools.combinations(spans, 2):
        assert lane_of[a] != lane_of[b] or not spans[a] & spans[b]


def test_the_drawing_is_on_the_page_and_goes_by_the_decisions(tmp_path):
    space, architecture = published()
    page = report.write(workdirs.attention_graph(tmp_path, architecture)).read_text(encoding="utf-8")
    assert 'id="layers-t"' in page and "Its layers are 11 additions and 13 attentions." in page

    choices = space.to_json()
    changes = {
        "no sources": (architecture, {name: x for name, x in choices.items() if name != "source"}),
        "no keys": (architecture, {name: x for name, x in choices.items() if name != "key"}),
        "other kinds": (
            architecture,
            choices | {"layer": {"options": ["addition", "product"], "length": 24}},
        ),
        "a source above": (architecture | {"source": [1, *architecture["source"][1:]]}, choices),
        "a missing operation": (architecture | {"first": [None, *architecture["first"][1:]]}, choices),
        "nothing repeated": (dict.fromkeys(architecture, "addition"), choices),
        "nothing": ({}, {}),
    }
    assert {name: layers.layers_of(*pair) for name, pair in changes.items()} == dict.fromkeys(changes, [])


def test_names_of_operations_are_escaped():
    evil = "<script>\"&'"
    one = layers.Layer("attention", 0, evil, (("key", evil), ("value", evil)))
    html = layers.draw([one])
    assert "<script>" not in html and html.count("&lt;script&gt;") >= 4
    xml.etree.ElementTree.fromstring(html)
