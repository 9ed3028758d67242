"""The drawing of additions and attentions: everything in it, nothing that is not there, lines kept apart."""

import collections
import itertools
import xml.etree.ElementTree

import hypothesis
import pytest
import workdirs
from hypothesis import strategies as st
from workdirs import SVG, elements, texts

from jaxnas import spaces
from jaxnas.report import layers

PUBLISHED = spaces.autoattend(24), spaces.autoattend_sst_options()
CITESEER = spaces.autoattend(3, spaces.AUTOATTEND_CITESEER)
ADDITIONS = {
    "layer": ["addition"] * 2,
    "source": [0, 1],
    "first": ["gru"] * 2,
    "second": ["zero", "identity"],
}


def labels_of(architecture):
    """All texts that a drawing should have, counted."""
    labels = ["input"]
    for i, kind in enumerate(architecture["layer"]):
        attends = kind == "attention"
        labels += [f"{i + 1} {kind}", ("query " if attends else "") + architecture["first"][i]]
        operations = [architecture[name][i] for name in (("key", "value") if attends else ("second",))]
        labels += [f"key {operations[0]}", f"value {operations[1]}"] if attends else operations
        if operations != ["zero"]:
            labels.append(f"from {architecture['source'][i] or 'input'}")
    return collections.Counter(label.replace("_", " ") for label in labels)


@st.composite
def architectures(draw):
    """Of one to ten layers, written as result.json has them."""
    arch, names = collections.defaultdict(list), spaces.AUTOATTEND_TEXT
    for i in range(draw(st.integers(1, 10))):
        attends, some = draw(st.booleans()), st.sampled_from(names[1:])
        arch["layer"].append("attention" if attends else "addition")
        arch["source"].append(draw(st.integers(0, i)))
        arch["first"].append(draw(some))
        arch["second"].append(None if attends else draw(st.sampled_from(names)))
        for name in ("key", "value"):
            arch[name].append(draw(some) if attends else None)
    # What counts in no layer is left out, as `Space.to_dict` does.
    return {name: values for name, values in arch.items() if any(value is not None for value in values)}


def check(space, architecture):
    found = layers.layers_of(architecture, space.to_json())
    (figure,) = workdirs.drawings(layers.draw(found))
    assert [one.kind for one in found] == architecture["layer"]
    assert collections.Counter(texts(figure)) == labels_of(architecture)
    paths = collections.Counter(path.get("class") for path in elements(figure, "path"))
    zeros = sum(other == ("second", "zero") for one in found for other in one.others)
    inputs = sum(1 + len(one.others) for one in found)
    assert paths["arrowhead"] == inputs - zeros and paths["nothing"] == zeros
    assert paths["line front"] == len(found)  # the chain
    workdirs.check_inside(figure)
    letter, lines = 6.5, collections.defaultdict(list)  # px; a letter of the labels is narrower on average
    for text in elements(figure, "text"):
        long, x = letter * len(text.text), float(text.get("x"))
        left = {"end": x - long, "middle": x - long / 2}.get(text.get("text-anchor"), x)
        lines[text.get("y")].append((left, left + long))
    for spans in map(sorted, lines.values()):
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
    for number, one in enumerate(found, 1):
        assert f"layer {number}, {one.kind}: " in figure.find(f"{SVG}desc").text
    return found


@pytest.mark.parametrize(
    "space, architecture",
    [
        PUBLISHED,
        (spaces.autoattend(3), workdirs.SMALL_GRAPH),
        (CITESEER, workdirs.SMALL_GRAPH | {"first": ["const", "sym_gat", "gene_linear"]}),
        (spaces.autoattend(2, attention=False), ADDITIONS),
    ],
    ids=["published", "small", "of a graph", "additions alone"],
)
def test_every_layer_and_every_operation_is_in_the_drawing(space, architecture):
    check(space, architecture)


@hypothesis.given(architectures())
@hypothesis.settings(max_examples=40, deadline=None)
def test_lines_of_different_sources_have_lanes_of_their_own(architecture):
    found = check(spaces.autoattend(len(architecture["layer"])), architecture)
    lane_of, spans = layers.lanes(found), collections.defaultdict(set)
    for number, one in enumerate(found, 1):
        if one.joined:
            spans[one.source].update(range(one.source, number + 1))
    assert spans.keys() == lane_of.keys()
    for a, b in itertools.combinations(spans, 2):
        assert lane_of[a] != lane_of[b] or not spans[a] & spans[b]


def test_the_drawing_is_on_the_page_and_goes_by_the_decisions(tmp_path):
    space, architecture = PUBLISHED
    page = workdirs.page_of(workdirs.attention_graph(tmp_path, architecture))
    assert 'id="layers-t"' in page and "Its layers are 11 additions and 13 attentions." in page

    choices, other = space.to_json(), {"options": ["addition", "product"], "length": 24}
    for arch, of in (
        (architecture, {name: x for name, x in choices.items() if name != "source"}),
        (architecture, {name: x for name, x in choices.items() if name != "key"}),
        (architecture, choices | {"layer": other}),
        (architecture | {"source": [1, *architecture["source"][1:]]}, choices),  # of a layer above
        (architecture | {"first": [None, *architecture["first"][1:]]}, choices),
        (dict.fromkeys(architecture, "addition"), choices),  # nothing is repeated
        ({}, {}),
    ):
        assert layers.layers_of(arch, of) == []


def test_names_of_operations_are_escaped():
    evil = "<script>\"&'"
    html = layers.draw([layers.Layer("attention", 0, evil, (("key", evil), ("value", evil)))])
    assert "<script>" not in html and html.count("&lt;script&gt;") >= 4
    xml.etree.ElementTree.fromstring(html)
