"""Pictures of architectures: every decision is in its row, and every block that the network could have."""

import hypothesis
import jax
import pytest
import workdirs
from hypothesis import strategies as st

from jaxnas import Choice, Space, spaces
from jaxnas.report import pictures, words

SPACES = {
    "S3": spaces.s3_small_images(28),
    "hybrids": spaces.hybrid_small(),
    "NASViT": spaces.nasvit_small(),
    "EfficientNetV2": spaces.efficientnetv2(),
    "positions with options of their own": Space(
        depth_1=Choice(1, 2),
        width_1=Choice(4, 8, 16).repeat(2, active="depth_1").at_positions((4, 8), (8, 16)),
    ),
    "of one's own": Space(
        depth_1=Choice(1, 3), **{"<b>_1": Choice("a&b", "c").repeat(3, active="depth_1")}, rest=Choice(0, 1)
    ),
}


def drawn(space, architecture, **others):
    picture = pictures.picture(architecture, space.to_json(), others)
    assert all(len(cells) in (0, len(picture["head"]) - 1) for _, cells in picture["rows"])
    return picture


@pytest.mark.parametrize("name", SPACES)
def test_all_decisions_and_blocks_of_stages_are_drawn(name):
    space = SPACES[name]
    for seed in range(6):
        architecture = space.to_dict(space.sample(jax.random.key(seed)))
        picture = drawn(space, architecture)
        stages, blocks = [], []
        for label, cells in picture["rows"]:
            if label.startswith("stage"):
                stages.append(label)
                blocks.append([])
            else:
                blocks[-1].append((label, dict(zip(picture["head"][1:], cells, strict=True))))
        for i, (stage, made) in enumerate(zip(stages, blocks, strict=True), 1):
            depth, most = architecture[f"depth_{i}"], int(space[f"depth_{i}"].table.max())
            assert f"{depth} of {most}" in stage and len(made) == most
            assert [label.endswith("skipped") for label, _ in made] == [n >= depth for n in range(most)]
        for choice, value in architecture.items():
            stem, _, number = choice.rpartition("_")
            if isinstance(value, list):
                column = [cells[words.plain(stem)]["text"] for _, cells in blocks[int(number) - 1]]
                assert column[: len(value)] == [
                    words.plain(words.show(one)) if one is not None else "" for one in value
                ]
            elif number.isdecimal() and stem != "depth":
                assert f"{words.plain(stem)} {words.show(value)}" in stages[int(number) - 1]
            elif stem != "depth":
                assert f"{words.plain(choice)} {words.show(value)}" in picture["note"]


def test_bars_are_shares_of_the_largest_option():
    space = SPACES["S3"]
    shares = [
        {
            cell["share"]
            for _, cells in drawn(space, space.to_dict(arch))["rows"]
            for cell in cells
            if "share" in cell
        }
        for arch in (space.largest(), space.smallest())
    ]
    assert shares[0] == {1.0} and min(shares[1]) < 0.5


def test_a_transformer_has_its_heads_and_its_mlp_in_each_layer():
    space = spaces.vit((192, 216, 240), tuple(range(1, 15)), (3, 4), (3.0, 3.5, 4.0))
    architecture = {"embed_dim": 192, "depth": 12, "num_heads": [3] * 12, "mlp_ratio": [3.5] * 12}
    rows = drawn(space, architecture)["rows"]
    assert [label for label, _ in rows] == [f"layer {i + 1}" for i in range(14)]
    assert all(heads["boxes"] == (3, 4) and mlp["text"] == "672" for _, (heads, mlp) in rows[:12])
    assert all(mlp["share"] == pytest.approx(672 / 960) for _, (_, mlp) in rows[:12])
    assert [cells[0]["text"] for _, cells in rows[12:]] == ["skipped"] * 2


def test_blocks_of_networks_are_rows_and_equal_ones_one_row():
    space = spaces.par(12)
    own, other = (space.to_dict(space.sample(jax.random.key(i))) for i in range(2))
    picture = drawn(space, own, other=other, same=own)
    (name,) = own
    signs = words.letters([*map(words.show, space[name].options)])
    assert [[cell["text"] for cell in cells] for _, cells in picture["rows"]] == [
        [signs[one] for one in arch[name]] for arch in (own, other)
    ]
    assert all(
        words.plain(cell["about"]) in picture["note"] for _, cells in picture["rows"] for cell in cells
    )


@st.composite
def graphs(draw):
    """Of one to ten layers, written as result.json has them."""
    arch, names = {}, spaces.AUTOATTEND_TEXT
    for i in range(draw(st.integers(1, 10))):
        attends, some = draw(st.booleans()), st.sampled_from(names[1:])
        layer = {"layer": "attention" if attends else "addition", "source": draw(st.integers(0, i))}
        layer |= {"first": draw(some), "second": None if attends else draw(st.sampled_from(names))}
        layer |= {name: draw(some) if attends else None for name in ("key", "value")}
        for name, value in layer.items():
            arch.setdefault(name, []).append(value)
    # What counts in no layer is left out, as `Space.to_dict` does.
    return {name: values for name, values in arch.items() if any(value is not None for value in values)}


def check_graph(space, architecture):
    rows = drawn(space, architecture)["rows"]
    for i, (label, (first, source, *others)) in enumerate(rows):
        row = {name: values[i] if i < len(values) else None for name, values in architecture.items()}
        assert label == f"{i + 1} {row['layer']}" and first["text"] == words.plain(row["first"])
        inputs = [row[name] for name in pictures.KINDS[row["layer"]]]
        assert [one["text"] for one in others if one["text"]] == [words.plain(one) for one in inputs]
        joined = "input" if row["source"] == 0 else f"layer {row['source']}"
        assert source["text"] == ("–" if inputs == ["zero"] else joined)


PUBLISHED = spaces.autoattend(24), spaces.autoattend_sst_options()
CITESEER = spaces.autoattend(3, spaces.AUTOATTEND_CITESEER)
ADDITIONS = {
    "layer": ["addition"] * 2,
    "source": [0, 1],
    "first": ["gru"] * 2,
    "second": ["zero", "identity"],
}


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
def test_every_layer_of_a_graph_has_its_operations(space, architecture):
    check_graph(space, architecture)


@hypothesis.given(graphs())
@hypothesis.settings(max_examples=40, deadline=None)
def test_any_graph_is_drawn(architecture):
    check_graph(spaces.autoattend(len(architecture["layer"])), architecture)


def test_pictures_go_by_the_decisions():
    space, architecture = PUBLISHED
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
        assert pictures.layers(arch, of) == {}
    for space in (spaces.fashion_mnist(), spaces.par(4), spaces.autoattend(3)):
        assert pictures.stages(space.to_dict(space.smallest()), space.to_json()) == {}
    assert pictures.picture({"units": 3}, {"units": {"options": [3, 4]}}, {}) == {}
