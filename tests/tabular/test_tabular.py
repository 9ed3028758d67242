"""Tables of architectures: the real ones where their files are there, small ones always."""

import functools
import itertools
import os
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals

from jaxnas import tabular
from jaxnas.choice import Choice
from jaxnas.space import Space
from jaxnas.tabular import index, library, nasbench201, nasbench_graph, transformers
from tools import convert_tables as convert

SHARED = pathlib.Path(__file__).parents[3] / "shared" / "tabular"
DATA = pathlib.Path(os.environ.get(library.VARIABLE) or SHARED)
NB201, GRAPH = nasbench201.PATHS["cifar10"], nasbench_graph.PATHS["nasbench_graph"]
FILES = (NB201, GRAPH, transformers.HWGPT, *transformers.LTS.values())
MISSING = [path for path in FILES if not (DATA / path).is_file()]
WHY = f"{DATA} lacks {len(MISSING)} of the {len(FILES)} files of tables; JAXNAS_DATA names where they are"
real = pytest.mark.skipif(bool(MISSING), reason=WHY)
POOLS = [name for name in tabular.names() if name.startswith(("hwgpt", "lts"))]
# The other data sets of NAS-Bench-201 and NAS-Bench-Graph are read from their packages below.
GRAPHS = [f"nasbench_graph_{name}" for name in nasbench_graph.SETS["nasbench_graph"]]
NAMES = [name for name in tabular.names() if name in ("nasbench201", *POOLS, *GRAPHS)]
SMALL = Space(depth=Choice(1, 2), op=Choice("conv", "pool").repeat(2, active="depth"))
CSV = "depth,op_0,op_1,accuracy,ms\n1,conv,,90.5,2\n2,conv,pool,92,\n2,pool,pool,91,3.5\n"


@pytest.fixture(scope="module")
def load():
    """Loads each table once."""
    return functools.cache(lambda name: tabular.load(name, DATA))


@pytest.fixture(scope="module")
def cells(load):
    return load("nasbench201")


def small_table(**changes):
    archs = {"depth": np.array([0, 1, 1], np.int32), "op": np.array([[0, 1], [0, 1], [1, 1]], np.int32)}
    metrics = {"accuracy": [90.5, 92, 91], "ms": [2, np.nan, 3.5]}
    good = dict(name="small", space=SMALL, archs=archs, metrics=metrics)
    return tabular.from_arrays(**good | {"objectives": {"accuracy": "max", "ms": "min"}} | changes)


def raw(path):
    with np.load(DATA / path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def random_codes(table, n):
    """Codes of n random architectures, as they may come: inactive elements hold anything."""
    return np.random.default_rng(1).integers(table.space.sizes, size=(n, table.space.length), dtype=np.int32)


@real
def test_nasbench201_holds_the_published_facts(cells):
    assert len(cells) == cells.space.cardinality == 15625 and not cells.pool
    assert cells.unique == 6466
    arrays = raw(NB201)
    joint = set(zip(cells.classes.tolist(), arrays["unique_id"].tolist(), strict=True))
    assert len(joint) == 6466  # one to one: the same partition
    for name, best in (("validation_accuracy", 91.607), ("test_accuracy", 94.373)):
        arch, value = cells.best(name)
        assert value == pytest.approx(best, abs=5e-4)
        assert float(cells.metric(name)(arch)) == value
    ops = cells.codes
    convolutions = [(ops == nasbench201.OPS.index(f"nor_conv_{k}")).sum(1) for k in ("1x1", "3x3")]
    macs = 7.783 + 3.932 * convolutions[0] + 35.39 * convolutions[1]
    np.testing.assert_allclose(cells.metrics["macs"], macs, rtol=2e-4)
    np.testing.assert_array_equal(cells.metrics["params"], arrays["cifar10_params_M"])
    assert not np.isnan(cells.metrics["validation_accuracy"]).any()  # third seeds may lack
    np.testing.assert_array_equal(nasbench201.EDGES, arrays["edges"])
    assert cells.space["op"].options == tuple(arrays["op_names"].tolist())
    seconds, short = (cells.metrics[name] for name in ("training_seconds", "training_seconds_12"))
    np.testing.assert_allclose(short / 12, seconds / 200, rtol=1e-6)
    assert sum(name.startswith("latency_") for name in cells.metrics) == 28
    assert cells.objectives["test_accuracy_12"] == "max" and cells.objectives["macs"] == "min"


def test_equal_cells_are_one_class():
    none, skip, one, three, _ = range(5)
    ops = [
        [one, three, skip, none, none, skip],  # node 2 = three(x) + one(x), and the output is it
        [three, one, skip, none, none, skip],
        [one, three, skip, none, one, skip],  # another term
        [three, none, none, skip, none, skip],  # x + 0
        [none, skip, none, skip, none, none],  # x
    ]
    assert nasbench201.classes(np.array(ops)).tolist() == [0, 0, 1, 2, 3]  # zeros are terms of a sum


@real
@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_well_formed_and_its_lookups_are_those_of_numpy(load, name):
    table = load(name)
    space = table.space
    assert table.codes.dtype == table.classes.dtype == np.int32
    assert ((table.codes >= 0) & (table.codes < space.sizes)).all()
    assert len(np.unique(table.codes, axis=0)) == len(table)
    assert set(table.objectives) == set(table.metrics)

    @jax.jit
    def by_batch(codes):
        archs = space.canonical(space.decode(codes))
        return space.encode(archs), table.row(space.decode(codes))

    @jax.jit
    @jax.vmap
    def by_vmap(code):
        arch = space.decode(code)
        first = table.metric(next(iter(table.metrics)))(arch)
        return table.lookup(arch), first, space.encode(table.canonical(arch))

    known = np.random.default_rng(0).integers(len(table), size=1000)
    given = np.concatenate([table.codes[known], random_codes(table, 1000)])
    codes, rows = jax.device_get(by_batch(given))
    # Expected: by a dictionary of canonical codes.
    if name.startswith("nasbench_graph"):
        expected = raw(GRAPH)["canon_row"].reshape(-1)[codes @ np.array([6561, 729, 81, 9, 1])]
    else:
        places = {code.tobytes(): row for row, code in enumerate(table.codes)}
        expected = np.array([places.get(code.tobytes(), -1) for code in codes])
    np.testing.assert_array_equal(expected[:1000], known)
    np.testing.assert_array_equal(rows, expected)
    metrics, first, canonical = jax.device_get(by_vmap(given))
    assert set(metrics) == set(table.metrics)
    for metric, values in table.metrics.items():
        assert values.dtype == metrics[metric].dtype == np.float32
        assert np.isnan(values).mean() < 0.02 and not np.isinf(values).any(), metric
        assert np.nanmin(values) < np.nanmax(values), metric
        looked_up = np.where(expected < 0, np.float32(np.nan), values[expected])
        np.testing.assert_array_equal(metrics[metric], looked_up, metric)
    np.testing.assert_array_equal(first, metrics[next(iter(table.metrics))])
    leads = table.representatives
    stands_for = table.codes[leads[expected]]
    np.testing.assert_array_equal(canonical, np.where(expected[:, None] < 0, codes, stands_for))
    # So the canonical form keeps the class, and its own is itself.
    np.testing.assert_array_equal(table.classes[leads], table.classes)
    np.testing.assert_array_equal(leads[leads], leads)
    assert table.pool == (name in POOLS) == (expected[1000:] < 0).all()


@real
def test_nasbench_graph_holds_the_published_facts_and_maps_cells_to_one_representative(load):
    published = {"cora": (0.8193, 0.8313), "citeseer": (0.7280, 0.7157), "pubmed": (0.8113, 0.7860)}
    for name, values in published.items():
        table = load(f"nasbench_graph_{name}")
        best = [table.best(f"{role}_accuracy")[1] for role in ("validation", "test")]
        assert len(table) == table.unique == 26206 and best == pytest.approx(values, abs=5e-5)
    archs = table.space.enumerate(limit=200_000)
    rows = np.asarray(jax.jit(table.row)(archs))
    assert len(rows) == 24 * 9**4 and (rows < 0).sum() == 24
    assert (np.asarray(archs["op"])[rows < 0] == nasbench_graph.OPS.index("skip")).all()
    assert len(np.unique(rows[rows >= 0])) == 26206
    codes = np.asarray(table.space.encode(jax.jit(table.canonical)(archs)))
    np.testing.assert_array_equal(codes[rows >= 0], table.codes[rows[rows >= 0]])
    np.testing.assert_array_equal(codes[rows < 0], np.asarray(table.space.encode(archs))[rows < 0])
    # The row of any cell is one of an equal network, by formulas.
    arrays = raw(GRAPH)
    assert ["".join(map(str, x)) for x in arrays["canon_links"]] == list(nasbench_graph.LINKS)
    every = np.asarray(table.space.encode(archs))
    for k in np.random.default_rng(0).choice(len(rows), 3000, replace=False):
        row, (link, *ops) = rows[k], every[k].tolist()
        text = convert.formula([int(x) for x in nasbench_graph.LINKS[link]], ops)
        assert text == (convert.formula(arrays["links"][row], arrays["ops"][row]) if row >= 0 else "")


def test_formulas_contract_skips():
    def formula(links, *ops):
        return convert.formula([int(x) for x in links], [nasbench_graph.OPS.index(op) for op in ops])

    assert formula("0012", "gat", "gcn", "skip", "fc") == "gat(),gcn(fc())"
    assert formula("0123", "skip", "gat", "skip", "gcn") == "gat(gcn())"
    assert formula("0111", "gat", "skip", "gcn", "fc") == "gat(fc(),gcn(),skip)"
    # A skip that is read by a skip only still passes its input to the output.
    assert formula("0112", "gat", "skip", "gcn", "skip") == "gat(gcn(),skip)"
    assert formula("0123", "skip", "skip", "skip", "skip") == ""


@real
def test_pools_hold_their_facts(load):
    hwgpt, arrays = load("hwgpt_s"), raw(transformers.HWGPT)
    assert len(hwgpt) == 10000 and hwgpt.best("perplexity")[1] == pytest.approx(22.159, abs=1e-3)
    for row in (0, 9999):
        values, depth = hwgpt.space.to_dict(hwgpt.space.decode(hwgpt.codes[row])), arrays["n_layer"][row]
        assert (values["n_layer"], values["embed_dim"]) == (depth, arrays["embed_dim"][row])
        for name in ("n_head", "mlp_ratio"):
            assert values[name] == arrays[name][row, :depth].tolist()
        assert values["bias"] == ("yes" if arrays["bias"][row] else "no")
    assert [len(load(name)) for name in POOLS[1:]] == [200, 200, 200, 186, 99]
    assert "d_embed" in load("lts_gpt2_wt103").space
    assert not {"d_embed", "div_val"} & {*load("lts_transxl_lm1b").space}
    for name, path in transformers.LTS.items():
        table, arrays = load(name), raw(path)
        assert table.space["d_inner"].active == "n_layer"
        np.testing.assert_array_equal(table.metrics["validation_perplexity"], arrays["valid_ppl"])
        values = table.space.to_dict(table.space.decode(table.codes[7]))
        assert values["d_inner"] == arrays["d_inner"][7, : arrays["n_layer"][7]].tolist()


def test_rows_with_equal_hashes_are_told_apart():
    sizes = np.full(9, 30, np.int32)
    codes = np.unique(np.random.default_rng(0).integers(30, size=(32, 9)), axis=0).astype(np.int32)
    found = index.make(sizes, codes)
    assert isinstance(found, index.Hashed) and found.probes == 1
    # Weights of 2**30 leave four hashes: nearly all rows collide.
    weights = np.full(9, 2**30, np.uint32)
    keys = np.sum(codes.astype(np.uint32) * weights, axis=1, dtype=np.uint32)
    order = np.argsort(keys, kind="stable").astype(np.int32)
    probes = int(np.unique(keys, return_counts=True)[1].max())
    bad = index.Hashed(weights, keys[order], order, codes[order], probes)
    assert probes > 6
    for lookup in (jax.jit(found.find), jax.jit(bad.find), jax.jit(jax.vmap(found.find))):
        np.testing.assert_array_equal(lookup(jnp.asarray(codes)), np.arange(len(codes)))
        assert (np.asarray(lookup(jnp.asarray(codes[:3, ::-1] * 0 + 7))) == -1).all()


def test_arrays_make_a_table():
    table = small_table(classes=[5, 8, 5])
    assert (len(table), table.unique, table.pool) == (3, 2, True)
    assert "3 of 6 architectures, 2 networks" in repr(table) and "1 without ms" in repr(table)
    assert table.codes.tolist() == [[0, 0, 0], [1, 0, 1], [1, 1, 1]]  # inactive: 0
    arch = SMALL.from_dict({"depth": 2, "op": ["conv", "pool"]})
    assert int(table.row(arch)) == 1
    found = {name: float(x) for name, x in table.lookup(arch).items()}
    assert found == pytest.approx({"accuracy": 92, "ms": np.nan}, nan_ok=True)
    inactive = {"depth": jnp.int32(0), "op": jnp.array([0, 1], jnp.int32)}
    assert float(jax.jit(table.metric("ms"))(inactive)) == 2
    last = SMALL.from_dict({"depth": 2, "op": ["pool", "pool"]})
    assert SMALL.to_dict(table.canonical(last)) == {"depth": 1, "op": ["conv"]}
    arch, value = table.best("ms")
    assert value == 2 and SMALL.to_dict(arch) == {"depth": 1, "op": ["conv"]}
    assert table.metric("ms") == table.metric("ms") != table.metric("accuracy")
    assert hash(table.metric("ms")) == hash(table.metric("ms"))
    beyond = {"depth": jnp.int32(1), "op": jnp.array([0, 3], jnp.int32)}
    assert int(jax.jit(table.row)(beyond)) == -1  # what is traced cannot be refused
    refusals.check((lambda: table.row(beyond), ValueError, "'op'[1]", "3"))
    with pytest.raises(ValueError, match="read-only"):
        table.codes[0] = 1


def test_a_csv_is_the_same_table(tmp_path):
    path = tmp_path / "mine.csv"
    ids = iter(("id", "a", "b", "c"))
    path.write_text("".join(f"{line},{next(ids)}\n" for line in CSV.replace("\n1,", "\n1.0,").splitlines()))
    table, expected = tabular.from_csv(path, SMALL, {"accuracy": "max"}, ignore=["id"]), small_table()
    assert table.name == "mine"
    np.testing.assert_array_equal(table.codes, expected.codes)
    for name in ("accuracy", "ms"):
        np.testing.assert_array_equal(table.metrics[name], expected.metrics[name])


def test_mistakes_in_a_csv_are_named(tmp_path):
    path = tmp_path / "mine.csv"
    for old, new, name in (
        ("op_1", "op1", "'op_1'"),
        ("ms", "op_2", "column 'op_2'"),
        ("ms", "accuracy", "'accuracy'"),
        ("ms", "", "index=False"),
        ("conv,pool", "convv,pool", "'op_0'"),
        ("conv,pool", "conv,", "'op_1'"),
        ("92", "good", "'accuracy'"),
        (",3.5", "", "line 4"),
        (CSV[CSV.index("\n") :], "\n", "lines behind"),
        (CSV, CSV.replace(",", ";"), "depth;op_0"),
        (CSV, "\n", "first line"),
    ):
        path.write_text(CSV.replace(old, new))
        refusals.check((lambda: tabular.from_csv(path, SMALL), ValueError, name))
    for encoding in ("latin-1", "utf-16"):
        path.write_bytes(CSV.replace("conv", "cönv").encode(encoding))
        refusals.check((lambda: tabular.from_csv(path, SMALL), ValueError, "mine.csv", "UTF-8"))
    path.write_text("width,op,accuracy\n1,a,0.5\n1,b,0.6\n2,a,0.7\n")

    def case(error, name, given=path, **settings):
        settings = {"objectives": {"accuracy": "max"}} | settings
        return lambda: tabular.from_csv(given, **settings), error, name

    refusals.check(
        case(FileNotFoundError, "none.csv", given=tmp_path / "none.csv"),
        case(IsADirectoryError, str(tmp_path), given=tmp_path),
        case(TypeError, "space is 5", space=5),
        case(ValueError, "'op'", space=Space(width=Choice(1, 2))),
    )


def test_mistakes_in_arrays_are_named():
    def case(*names, error=ValueError, **changes):
        return lambda: small_table(**changes), error, *names

    ops, three = np.zeros((3, 2), np.int32), np.zeros(3, np.int32)
    refusals.check(
        case("'accuracy'", "[2]", metrics={"accuracy": [1, 2]}, objectives=None),
        case("no metrics", metrics={}, objectives=None),
        case("'accuracy'", "row 1", metrics={"accuracy": [1, np.inf, 2]}),
        case("'accuracy'", metrics={"accuracy": [1, 2, -1e60]}),
        case("classes", "canonical", classes=[0, 1, 2], canonical=lambda arch: arch),
        case("'acuracy'", objectives={"acuracy": "max"}),
        case("'ms'", objectives={"ms": "least"}),
        case("classes", "int64 [2]", classes=[0, 1]),
        case("rows 0", archs={"depth": three, "op": ops}),
        case("'depth'[0] is 2", archs={"depth": three + 2, "op": ops}),
        case("leading axis", archs={"depth": np.int32(0), "op": ops[0]}),
        case("space is None", error=TypeError, space=None),
        case("'depth'", error=TypeError, archs={"depth": np.zeros(3), "op": np.zeros((3, 2))}),
        (lambda: small_table().metric("acc"), ValueError, "'acc'"),
        (lambda: small_table(objectives=None).best("ms"), ValueError, "ms"),
        (lambda: tabular.load("nasbench_201"), ValueError, "'nasbench201'"),
    )


def test_a_table_knows_which_architectures_are_equal_and_what_predictors_see():
    space = Space(left=Choice("a", "b", "c"), right=Choice("a", "b", "c"))

    def ordered(arch):  # the two branches are added: their order does not matter
        both = jnp.sort(jnp.stack([arch["left"], arch["right"]]))
        return {"left": both[0], "right": both[1]}

    rows = {"left": np.array([0, 1, 2, 2], np.int32), "right": np.array([0, 0, 1, 0], np.int32)}
    made = functools.partial(tabular.from_arrays, "sums", space, objectives={"x": "max"}, canonical=ordered)
    table = made(rows, {"x": [1.0, 2.0, 3.0, 4.0]}, features=ordered)
    assert (table.unique, table.pool) == (4, True)
    every = space.enumerate()
    found = jax.jit(table.row)(every)
    np.testing.assert_array_equal(found, [0, 1, 3, 1, -1, 2, 3, 2, -1])
    np.testing.assert_array_equal(jax.jit(jax.vmap(table.row))(every), found)
    codes = np.asarray(space.encode(jax.jit(table.canonical)(every)))
    np.testing.assert_array_equal(codes[found >= 0], table.codes[found[found >= 0]])
    assert table.features is ordered
    both = made(every, {"x": np.arange(9.0)})  # each cell has a row, and equal ones are one network
    assert (len(both), both.unique, both.pool) == (9, 6, False)
    np.testing.assert_array_equal(both.row(every), np.arange(9))
    np.testing.assert_array_equal(both.classes[[1, 2, 5]], both.classes[[3, 6, 7]])


def test_the_space_of_a_csv_is_read_from_its_columns(tmp_path):
    path = tmp_path / "grid.csv"
    path.write_text("id,layers,rate,act,ok,ms\n7,2,0.1,relu,1,9\n8,10,1e-2,tanh,2,8\n9,2,.01,relu,3,7\n")
    table = tabular.from_csv(path, objectives={"ok": "max", "ms": "min"}, ignore=["id"])
    assert table.space == Space(layers=Choice(2, 10), rate=Choice(0.01, 0.1), act=Choice("relu", "tanh"))
    np.testing.assert_array_equal(table.codes, [[0, 1, 0], [1, 0, 1], [0, 0, 0]])
    assert list(table.metrics) == ["ok", "ms"] and table.best("ms")[1] == 7
    each = {name: "max" for name in ("ok", "ms", "layers", "rate", "act")}

    def case(name, objectives=table.objectives, ignore=("id",)):
        return lambda: tabular.from_csv(path, objectives=objectives, ignore=[*ignore]), ValueError, name

    refusals.check(
        case("objectives must name", {}, ()),
        case("'okay'", {"okay": "max"}, ()),
        case("'id'", ignore=()),
        case("objectives must name", each),
        case("ignore has 'none'", ignore=("id", "act", "none")),
    )
    path.write_text(path.read_text().replace("tanh", ""))
    refusals.check(case("'act'"))


def test_missing_and_damaged_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv(library.VARIABLE, str(tmp_path))
    names, place = ("nb201_cifar10", "tools.convert_tables"), str(tmp_path / "nb201")
    refusals.check((lambda: tabular.load("nasbench201"), FileNotFoundError, place, *names))
    monkeypatch.delenv(library.VARIABLE)
    assert library.data_directory() == pathlib.Path.home() / ".cache" / "jaxnas"
    path = tmp_path / "nb201_cifar10.npz"  # right in the directory
    np.savez(path, ops=np.zeros((3, 6), np.int8))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    for content in (b"", b"PK", whole[:-40], bytes(flipped), pickle.dumps({"a": 1})):
        path.write_bytes(content)
        refusals.check((lambda: tabular.load("nasbench201", tmp_path), ValueError, "nb201_cifar10"))


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_pickles_of_plain_values_alone_are_read():
    value = {3: [1.5, np.float64(2.5), np.int32(7), np.float32(0.5)], "a": (None, True, b"x")}
    found = convert.unpickle(pickle.dumps(value), "here")
    assert found == {3: [1.5, 2.5, 7, 0.5], "a": (None, True, b"x")}
    assert all(type(x) in (int, float) for x in found[3])
    with pytest.raises(ValueError, match="here: .*truncated"):
        convert.unpickle(pickle.dumps(value)[:-9], "here")
    for value, names in (
        (Evil(os.system, ("true",)), ("posix.system", "nt.system")),
        (Evil(eval, ("1",)), ("builtins.eval",)),
        (np.zeros(3), ("multiarray._reconstruct", "numeric._frombuffer")),
        (np.datetime64(1, "s"), ("dtype 'M8'",)),
        (pathlib.PurePosixPath("a"), ("pathlib",)),
    ):
        with pytest.raises(ValueError, match=f"here: refused.*({'|'.join(names)})"):
            convert.unpickle(pickle.dumps({"a": value}), "here")


def nasbench201_rows(ops, *columns):
    names = ("val_acc", "train_time", "model_size", "latency")
    rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
    return dict(zip(ops, rows, strict=True))


def test_data_sets_are_converted_from_what_the_packages_hold(tmp_path, monkeypatch, capsys):
    """Pickles of the packages' form, since the packages are not at hand: their digests stand in."""

    def expect(path, name, read):
        monkeypatch.setitem(convert.DIGESTS, path, (library.digest(read(tmp_path, name)),))

    def convert_to(folder, *more):
        convert.main(["--out", str(folder), "--nasbench201", str(tmp_path), *more])

    keys = ["".join(map(str, ops)) for ops in itertools.product(range(5), repeat=6)]
    numbers = np.arange(float(len(keys)))
    small = [[0.1] * 2] * len(keys), [[0.01]] * len(keys)
    columns = np.stack([numbers, 3 * numbers], 1).tolist(), np.stack([numbers] * 2, 1).astype(int).tolist()
    rows = nasbench201_rows(keys, *columns, *small)
    for data in ("cifar100", "imagenet"):
        (tmp_path / f"{data}.pkl").write_bytes(pickle.dumps(rows))
    for data in ("cifar100", "imagenet16_120"):
        expect(nasbench201.PATHS[data], data, convert.nasbench201_arrays)
    cells = {
        int(f"{tree}{ops}"): {"valid_perf": 0.1 * k, "perf": 0.2, "latency": 0.3, "para": 0.4}
        for k, (tree, ops) in enumerate([(0, 1147), (8, 4571), (3, 7714)])
    }
    (tmp_path / "proteins.bench").write_bytes(pickle.dumps(cells))
    stem, out = "nasbench_graph_proteins", tmp_path / "out"
    expect(nasbench_graph.PATHS[stem], stem, convert.nasbench_graph_arrays)
    convert_to(out, "--nasbench_graph", str(tmp_path))
    written = capsys.readouterr().out.split()
    assert sorted(written) == sorted(str(path) for path in out.rglob("*.npz")) and len(written) == 3
    for data in ("cifar100", "imagenet16_120"):
        arrays = library.read(nasbench201.PATHS[data], out)
        table = nasbench201.table(f"nasbench201_{data}", arrays, data)
        assert table.unique == 6466 and table.best("validation_accuracy")[1] == 2 * 15624
    proteins = nasbench_graph.table(stem, library.read(nasbench_graph.PATHS[stem], out))
    assert proteins.space["op"].options == nasbench_graph.PROTEINS_OPS and len(proteins) == 3
    accuracy = proteins.metric("validation_accuracy")
    arch = proteins.space.from_dict({"links": "0123", "op": ["sage", "arma", "fc", "gcn"]})
    assert float(accuracy(arch)) == pytest.approx(0.1)
    other = proteins.space.from_dict({"links": "0000", "op": ["fc", "gcn", "sage", "gcn"]})
    assert float(accuracy(other)) == 0  # in any order
    with pytest.raises(SystemExit, match="nothing was written"):
        convert_to(out)
    assert "is there and was kept" in capsys.readouterr().err
    rows["000000"]["val_acc"] = [50.0]
    (tmp_path / "cifar100.pkl").write_bytes(pickle.dumps(rows))
    with pytest.raises(SystemExit, match="another version"):
        convert_to(tmp_path / "b")


def test_converting_nothing_or_other_things_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(convert, "_installed", lambda *_: None)

    def case(name, *given):
        return lambda: convert.main(["--out", str(tmp_path), *given]), SystemExit, name

    (tmp_path / "cifar10.pkl").write_bytes(pickle.dumps([1, 2]))
    refusals.check(
        case("2"),
        case("holds none of cifar10.pkl", "--nasbench201", str(tmp_path / "absent.pkl")),
        case("expected {six digits", "--nasbench201", str(tmp_path / "cifar10.pkl")),
    )
    assert "nothing to convert" in capsys.readouterr().err
