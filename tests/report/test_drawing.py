"""Drawings of found networks: every decision is in its row, and every place of a transformed network once."""

import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
import workdirs

import jaxnas
from jaxnas import Choice, Depth, Size, Skip, Space, files, spaces
from jaxnas.report import drawing, words
from jaxnas.report.findings import read_run
from jaxnas.report.page import write_running
from jaxnas.report.result import Network, Result, SpaceOf
from jaxnas.training.plain import to_dict

SPACES = {
    "AutoFormer": spaces.vit((192, 216, 240), tuple(range(1, 15)), (3, 4), (3.0, 3.5, 4.0)),
    "S3": spaces.s3_small_images(28),
    "hybrids": spaces.hybrid_small(),
    "NASViT": spaces.nasvit_small(),
    "EfficientNetV2": spaces.efficientnetv2(),
    "AutoAttend on texts": spaces.autoattend(24),
    "AutoAttend, one layer": spaces.autoattend(1),
    "AutoAttend on graphs": spaces.autoattend(3, spaces.AUTOATTEND_CITESEER),
    "of one's own": Space(
        depth_1=Choice(1, 3),
        **{"<b>_1": Choice("a&b", "c").repeat(3, active="depth_1")},
        kind_1=Choice("c", "zero").repeat(3),
        rest_2=Choice(0, 1),
    ),
    "positions with options of their own": Space(
        depth_1=Choice(1, 2),
        width_1=Choice(4, 8, 16).repeat(2, active="depth_1").at_positions((4, 8), (8, 16)),
    ),
}


def check(space, architecture):
    """Every value of every decision is where it belongs."""
    made = drawing.table({"found": architecture}, space.to_json())
    assert all(len(row) in (1, len(made["head"])) for row in made["rows"])
    titles, blocks, stage = {"": ""}, {"": []}, ""
    for label, *cells in made["rows"]:
        if not cells:
            stage = label.partition(":")[0].removeprefix("stage ") if label.startswith("stage ") else ""
            titles[stage], blocks[stage] = label, []
        else:
            blocks[stage].append((label, dict(zip(made["head"][1:], cells, strict=True))))
    for name, value in architecture.items():
        stem, _, number = name.rpartition("_")
        stem, number = (stem, number) if number in titles and number else (name, "")
        if not isinstance(value, list):
            assert f"{words.plain(stem)} {words.show(value)}" in titles[number]
            continue
        rows = blocks[number]
        assert len(rows) == space.to_json()[name]["length"]
        texts = [cells[words.plain(stem)] for _, cells in rows]
        texts = [cell and (cell if isinstance(cell, str) else cell["text"]) for cell in texts]
        wanted = ["" if one is None else words.plain(words.show(one)) for one in value]
        assert texts == wanted + [""] * (len(rows) - len(value))
    for label, cells in (row for rows in blocks.values() for row in rows):
        assert label.endswith("skipped") == (not any(cells.values()))


@pytest.mark.parametrize("name", SPACES)
def test_all_decisions_and_blocks_are_drawn(name):
    space = SPACES[name]
    for seed in range(4):
        check(space, space.to_dict(space.sample(jax.random.key(seed))))


def test_bars_are_shares_of_the_largest_option():
    space, shares = SPACES["S3"], []
    for arch in (space.largest(), space.smallest()):
        rows = drawing.table({"found": space.to_dict(arch)}, space.to_json())["rows"]
        shares.append({cell["share"] for _, *cells in rows for cell in cells if cell})
    assert shares[0] == {1.0} and min(shares[1]) < 0.5


def test_blocks_of_networks_are_side_by_side_and_equal_ones_are_shown_once():
    space = spaces.par(12)
    own, other = (space.to_dict(space.sample(jax.random.key(i))) for i in range(2))
    made = drawing.table({"found": own, "other": other, "same": own}, space.to_json())
    assert made["head"] == ["", "found", "other"]
    for i, (_, *cells) in enumerate(made["rows"]):
        assert [one["text"] for one in cells] == [words.plain(x["block"][i]) for x in (own, other)]
        assert [one["color"] is None for one in cells] == [x["block"][i] == "identity" for x in (own, other)]
    assert drawing.table({"found": {"units": 3}}, {"units": {"options": [3, 4]}}) == {}


# ---- The sizes that are kept of a transformed network.


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4, name="attention")(y, y)
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(32, name="up")(nn.LayerNorm()(x))))


class Stacked(nn.Module):
    """Eleven blocks, so that the alphabet is not the order of the network."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16, name="stem")(x)
        for i in range(11):
            x = Block(name=f"block_{i}")(x)
        return nn.Dense(5, name="head")(x.mean(axis=1))


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(16, name="down")(nn.gelu(nn.Dense(32, name="up")(nn.LayerNorm()(x)))), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return nn.Dense(5)(layers(name="layers")(nn.Dense(16)(x), None)[0])


def supernet_of(module, shape, choices, **more):
    inputs = jax.ShapeDtypeStruct(shape, jnp.float32)
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros(shape))
    return jaxnas.supernet(
        jaxnas.analyze(module, variables, inputs), choices, form="masked", verify=False, **more
    )


NETS = {
    "blocks": lambda: supernet_of(
        Stacked(),
        (2, 3, 4),
        {
            "width": Choice(8, 12, 16),
            "block_*/hidden": Size(lambda ratio, width: int(ratio * width)),
            "block_*/attention/heads": Choice(2, 4),
            "block_*": Skip(),
            "block_*/attention": Skip(),
        },
        decisions={"ratio": Choice(1.0, 2.0).repeat(11)},
    ),
    "scan": lambda: supernet_of(
        Scanned(), (2, 4), {"layers/hidden": Choice(8, 16, 32).repeat(3), "layers": Depth(1, 2, 3)}
    ),
}


@functools.cache
def made(name):
    return NETS[name]()


@pytest.fixture(scope="module", params=NETS)
def net(request):
    return made(request.param)


def shown(spec):
    """The text of each place, by its whole name."""
    cells = spec["datasets"]["cells"]
    assert len(cells) == len({one["name"] for one in cells})
    return {one["name"]: one["text"] for one in cells}


def expected(net, arch):
    """The same from `Supernet.sizes`, which knows nothing of the record."""
    sizes = net.clone(space=net.space.fix(arch)).sizes()
    runs = {name: size for name, size in sizes.items() if name not in net.groups.groups}
    found = {}
    for place in net.places:
        if place.name in runs:
            continue
        full = net.groups[place.name].size
        size = sizes[place.name] if place.turn is None else sizes[place.name][place.turn]
        around = [runs[name] for name in runs if place.name.startswith(f"{name}/")]
        on = all(one if place.turn is None else one[place.turn] for one in around)
        name = place.name if place.turn is None else f"{place.name}[{place.turn}]"
        found[name] = f"{size} of {full} · {100 * size / full:.0f}\u00a0%" if on and size else "skipped"
    return found


def test_each_place_is_drawn_once_with_its_share(net):
    for seed in range(4):
        arch = net.space.sample(jax.random.key(seed))
        spec = drawing.chart(net.described()["places"], net.space.to_dict(arch))
        texts, runs = shown(spec), expected(net, arch)
        assert {name: text for name, text in texts.items() if name in runs} == runs
        assert set(texts.values()) - set(runs.values()) <= {"runs", "skipped"}  # modules
        for one in spec["datasets"]["cells"]:
            share = {"runs": 100, "skipped": 0}.get(one["text"])
            share = float(one["text"].split(" · ")[1].rstrip("\u00a0%")) if share is None else share
            assert abs(100 * one["value"] - share) <= 0.5


def test_rows_are_blocks_in_the_order_of_the_network():
    names = {"width", "block", "attention", "hidden", "attention/heads"}
    for name, rows, columns in (
        ("blocks", ["all blocks", *(f"block_{i}" for i in range(11))], names),
        ("scan", ["layers[0]", "layers[1]", "layers[2]"], {"hidden", "block"}),
    ):
        net = made(name)
        spec = drawing.chart(net.described()["places"], net.space.to_dict(net.space.largest()))
        cells = spec["datasets"]["cells"]
        assert list(dict.fromkeys(one["y"] for one in cells)) == rows
        assert {one["x"] for one in cells} == columns and all(one["value"] > 0 for one in cells)


def test_a_page_draws_what_its_result_holds(net, tmp_path):
    space, arch = net.space, net.space.sample(jax.random.key(5))
    record = json.loads(json.dumps(files.plain(to_dict(net))))
    described = SpaceOf(cardinality=str(space.cardinality), choices=space.to_json())
    config = {"network": record, "seed": 3}
    root = workdirs.decided(tmp_path / "run", space.to_dict(arch), space=described, config=config)
    page = workdirs.page_of(root)
    assert shown(page.charts["kept"]) == shown(drawing.chart(net.described()["places"], space.to_dict(arch)))
    assert "network.type" in page.text and "network.places" not in page.text
    line = {"index": 0, "strategy": "one", "generation": 0, "score": 0.5, "architecture": space.to_dict(arch)}
    workdirs.write_lines(tmp_path / "live/search/history.jsonl", [line])
    best = Network(name="best so far", architecture={}, costs={}, metrics={})
    result = Result(task=read_run(root).result.task, space=described, found=best, config=config)
    write_running(tmp_path / "live", result, "It runs.")
    drawn = workdirs.Page((tmp_path / "live/report.html").read_text()).charts["kept"]  # while the run goes on
    assert shown(drawn) == shown(page.charts["kept"])
