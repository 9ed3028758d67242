"""The drawing of stages: every decision is in it once, and every block that the network has or could have."""

import collections
import re
import xml.etree.ElementTree

import jax
import pytest

from jaxnas import Choice, Space, spaces
from jaxnas.report import stages, words

SVG = "{http://www.w3.org/2000/svg}"
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
# The decisions that belong to no stage.
BESIDE = {
    "hybrids": ("width_stem", "width_head"),
    "NASViT": ("width_stem", "width_head"),
    "EfficientNetV2": ("width_stem", "width_head"),
    "of one's own": ("rest",),
}


def drawn(architecture, space):
    found = stages.stages_of(architecture, space.to_json())
    return found, xml.etree.ElementTree.fromstring(re.search(r"<svg.*</svg>", stages.draw(found)).group())


@pytest.mark.parametrize("name", SPACES)
def test_all_decisions_and_blocks_are_drawn(name):
    space = SPACES[name]
    count = sum(choice.startswith("depth_") for choice in space)
    for seed in range(6):
        architecture = space.to_dict(space.sample(jax.random.key(seed)))
        found, picture = drawn(architecture, space)
        depths = [architecture[f"depth_{i + 1}"] for i in range(count)]
        assert [len(stage.blocks) for stage in found] == depths
        kinds = collections.Counter(rect.get("class").split()[0] for rect in picture.iter(f"{SVG}rect"))
        most = sum(int(space[f"depth_{i + 1}"].table.max()) for i in range(count))
        assert kinds["box"] == sum(depths) and kinds["block-idle"] == most - sum(depths)
        texts = collections.Counter(text.text for text in picture.iter(f"{SVG}text"))
        for choice, value in architecture.items():
            label = words.plain(choice.rpartition("_")[0])
            if isinstance(value, list) and not isinstance(value[0], str):
                assert texts[label] >= sum(one is not None for one in value)
            elif isinstance(value, list):
                assert all(texts[words.plain(one)] for one in value if one is not None)
            elif not choice.startswith("depth_") and choice not in BESIDE.get(name, ()):
                assert any(f"{label} {words.show(value)}" in text for text in texts)
        expected = [f"{words.plain(choice)} {architecture[choice]}" for choice in BESIDE.get(name, ())]
        assert stages.beside(architecture) == expected


def test_nothing_leaves_the_picture_and_bars_are_shares():
    space = SPACES["S3"]
    _, picture = drawn(space.to_dict(space.largest()), space)
    _, _, width, height = map(float, picture.get("viewBox").split())
    for rect in picture.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height
    bars = {rect.get("width") for rect in picture.iter(f"{SVG}rect") if rect.get("class") == "mlp"}
    rails = {rect.get("width") for rect in picture.iter(f"{SVG}rect") if rect.get("class") == "ghost"}
    assert bars == rails and len(rails) == 1  # The largest network has the largest option everywhere.
    _, smaller = drawn(space.to_dict(space.smallest()), space)
    halves = {rect.get("width") for rect in smaller.iter(f"{SVG}rect") if rect.get("class") == "mlp"}
    assert halves != rails


def test_a_space_without_stages_has_none():
    for space in (spaces.fashion_mnist(), spaces.par(4), spaces.autoattend(3)):
        assert stages.stages_of(space.to_dict(space.smallest()), space.to_json()) == []
