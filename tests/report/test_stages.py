"""The drawing of stages: every decision is in it once, and every block that the network has or could have."""

import collections

import jax
import pytest
import workdirs
from workdirs import elements, texts

from jaxnas import Choice, Space, spaces
from jaxnas.report import stages, words

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


def drawn(architecture, space):
    found = stages.stages_of(architecture, space.to_json())
    (picture,) = workdirs.drawings(stages.draw(found))
    workdirs.check_inside(picture)
    return found, picture


@pytest.mark.parametrize("name", SPACES)
def test_all_decisions_and_blocks_are_drawn(name):
    space = SPACES[name]
    count = sum(choice.startswith("depth_") for choice in space)
    beside = [choice for choice in space if choice in ("width_stem", "width_head", "rest")]
    for seed in range(6):
        architecture = space.to_dict(space.sample(jax.random.key(seed)))
        found, picture = drawn(architecture, space)
        depths = [architecture[f"depth_{i + 1}"] for i in range(count)]
        assert [len(stage.blocks) for stage in found] == depths
        kinds = collections.Counter(rect.get("class").split()[0] for rect in elements(picture, "rect"))
        most = sum(int(space[f"depth_{i + 1}"].table.max()) for i in range(count))
        assert kinds["box"] == sum(depths) and kinds["block-idle"] == most - sum(depths)
        said = collections.Counter(texts(picture))
        for choice, value in architecture.items():
            label = words.plain(choice.rpartition("_")[0])
            if isinstance(value, list) and not isinstance(value[0], str):
                assert said[label] >= sum(one is not None for one in value)
            elif isinstance(value, list):
                assert all(said[words.plain(one)] for one in value if one is not None)
            elif not choice.startswith("depth_") and choice not in beside:
                assert any(f"{label} {words.show(value)}" in text for text in said)
        assert stages.beside(architecture) == [f"{words.plain(one)} {architecture[one]}" for one in beside]


def test_bars_are_shares_of_the_largest_option():
    space = SPACES["S3"]
    widths = []
    for architecture in (space.largest(), space.smallest()):
        _, picture = drawn(space.to_dict(architecture), space)
        widths.append(
            [{x.get("width") for x in elements(picture, "rect", kind)} for kind in ("mlp", "ghost")]
        )
    (bars, rails), (smaller, same) = widths
    assert bars == rails == same and len(rails) == 1 and smaller != rails


def test_a_space_without_stages_has_none():
    for space in (spaces.fashion_mnist(), spaces.par(4), spaces.autoattend(3)):
        assert stages.stages_of(space.to_dict(space.smallest()), space.to_json()) == []
