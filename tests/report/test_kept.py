"""The drawing of a transformed network: every place once, as long as its share, in order."""

import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
import workdirs

import jaxnas
from jaxnas import Choice, Depth, Size, Skip, files, report
from jaxnas.report import kept, live
from jaxnas.report.result import SpaceOf
from jaxnas.training.plain import to_dict


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


class Convolutional(nn.Module):
    @nn.compact
    def __call__(self, x):
        for channels in (8, 16):
            x = nn.relu(nn.Conv(channels, (3, 3))(x))
        return nn.Dense(3, name="last")(nn.relu(nn.Dense(12, name="a")(x.mean((1, 2)))))


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
    "convolutions": lambda: supernet_of(
        Convolutional(),
        (2, 6, 6, 1),
        {"Conv_*/channels": Choice(2, 8), "Conv_1/kernel": Choice(1, 3), "a/hidden": Choice(5, 12)},
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


def places_of(net):
    return net.described()["places"]


def test_each_place_is_drawn_once_with_its_share(net):
    for seed in range(4):
        arch = net.space.sample(jax.random.key(seed))
        spec = kept.chart(places_of(net), net.space.to_dict(arch))
        texts, runs = shown(spec), expected(net, arch)
        assert {name: text for name, text in texts.items() if name in runs} == runs
        assert set(texts.values()) - set(runs.values()) <= {"runs", "skipped"}  # modules
        for one in spec["datasets"]["cells"]:
            share = {"runs": 100, "skipped": 0}.get(one["text"])
            share = float(one["text"].split(" · ")[1].rstrip("\u00a0%")) if share is None else share
            assert abs(100 * one["value"] - share) <= 0.5
        assert report.kept_svg(net, arch).startswith("<svg")


def test_rows_are_blocks_in_the_order_of_the_network():
    rows = {
        "blocks": ["all blocks", *(f"block_{i}" for i in range(11))],
        "convolutions": ["Conv_0", "Conv_1", "a"],
        "scan": ["layers[0]", "layers[1]", "layers[2]"],
    }
    columns = {
        "blocks": {"width", "block", "attention", "hidden", "attention/heads"},
        "convolutions": {"channels", "kernel", "hidden"},
        "scan": {"hidden", "block"},
    }
    for name, expected in rows.items():
        net = made(name)
        found = kept.rows_of(kept.kept_of(places_of(net), net.space.to_dict(net.space.largest())))
        assert list(found) == expected
        assert {column for cells in found.values() for column in cells} == columns[name]
        assert all(one.kept for cells in found.values() for one in cells.values())


def test_a_page_draws_what_its_result_holds(net, tmp_path):
    space, arch = net.space, net.space.sample(jax.random.key(5))
    record = json.loads(json.dumps(files.plain(to_dict(net))))
    root = workdirs.decided(
        tmp_path / "run",
        space.to_dict(arch),
        space=SpaceOf(cardinality=str(space.cardinality), choices=space.to_json()),
        config={"network": record, "seed": 3},
    )
    page = workdirs.page_of(root)
    assert shown(page.charts["kept"]) == shown(kept.chart(places_of(net), space.to_dict(arch)))
    assert "network.type" in page.text and "network.places" not in page.text
    line = {"index": 0, "strategy": "one", "generation": 0, "score": 0.5, "architecture": space.to_dict(arch)}
    workdirs.write_lines(tmp_path / "live/search/history.jsonl", [line])
    result = report.read_run(root).result
    path = live.write(tmp_path / "live", result.task, result.space, "It runs.", network=record)
    drawn = workdirs.Page(path.read_text()).charts["kept"]  # while the run goes on
    assert shown(drawn) == shown(page.charts["kept"])


def test_other_networks_have_no_such_picture(tmp_path):
    with pytest.raises(TypeError, match="Dense"):
        report.kept_svg(nn.Dense(3), {})
    assert "kept" not in workdirs.page_of(workdirs.vision(tmp_path)).charts
