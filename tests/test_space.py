"""Spaces: what belongs to them, how many architectures, and the operations on architectures."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnas import spaces
from jaxnas.space import Choice, Space

NESTED = Space(
    heads=Choice(1, 2, 4).repeat(3).when("kind", "attention"),
    kind=Choice("identity", "attention").repeat(3, active="depth"),
    depth=Choice(0, 1, 3),
    extra=Choice(1, 2).when("mode", "b"),
    mode=Choice("a", "b"),
    inner=Choice(5, 6, 7).when("extra", 2),
)
TINY = spaces.autoformer("tiny")
PUBLISHED = spaces.published_options("tiny")  # of AutoFormer-T
# One option less at one position: positions with different numbers of options.
RAGGED = Space(
    depth=Choice(1, 2), width=Choice(3, 4, 5).repeat(2, active="depth").at_positions((3, 5), (3, 4, 5))
)
SPACES = {"tiny": TINY, "nested": NESTED, "ragged": RAGGED, "fixed": TINY.fix(TINY.from_dict(PUBLISHED))}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def equal(a, b):
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


def test_cardinality_of_autoformer():
    """The sizes of autoformer.md, 1.1, exactly."""
    for size, count, rounded in (
        ("tiny", 3 * (6**12 + 6**13 + 6**14), "2.81e+11"),
        ("small", 3 * (9**12 + 9**13 + 9**14), "7.71e+13"),
        ("base", 3 * (9**14 + 9**15 + 9**16), "6.25e+15"),
    ):
        space = spaces.autoformer(size)
        assert space.cardinality == count and f"{count:.2e}" == rounded
        space.check(space.from_dict(spaces.published_options(size)))


def check_enumeration(space):
    grid = itertools.product(*(range(size) for size in space.sizes))
    every = space.encode(space.canonical(space.decode(np.array(list(grid), np.int32))))
    codes = np.asarray(space.encode(space.enumerate()))
    assert space.cardinality == len(codes)
    np.testing.assert_array_equal(np.unique(codes, axis=0), np.unique(np.asarray(every), axis=0))


@pytest.mark.parametrize("name", ("nested", "ragged", "fixed"))
def test_enumerate_is_every_canonical_architecture_once(name):
    check_enumeration(SPACES[name])


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_enumerate_of_any_space(data):
    choices = {}
    for i in range(data.draw(st.integers(1, 5))):
        choice = Choice(*range(data.draw(st.integers(0, 1)), data.draw(st.integers(2, 4))))
        plain = [name for name, c in choices.items() if c.length is None]
        if data.draw(st.booleans()):
            choice = choice.repeat(3, active=data.draw(st.sampled_from([None, *plain])))
        parents = list(choices) if choice.length else plain
        if parents and data.draw(st.booleans()):
            parent = data.draw(st.sampled_from(parents))
            choice = choice.when(parent, choices[parent].options[-1])
        choices[f"c{i}"] = choice
    space = Space(**dict(reversed(choices.items())))
    if np.prod(space.sizes.astype(float)) <= 3000:
        check_enumeration(space)


@every_space
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), probability=st.floats(0, 1))
def test_samples_mutants_and_children_belong_to_the_space_and_survive_encoding_and_files(
    space, seed, probability
):
    key_a, key_b, key = jax.random.split(jax.random.key(seed), 3)
    a, b = space.sample(key_a), space.sample(key_b)
    child, code = space.crossover(key, a, b), jax.random.randint(key, (space.length,), 0, space.sizes)
    for arch in (a, space.mutate(key, a, probability), child, space.canonical(space.decode(code))):
        space.check(arch)
        space.check_static(arch)
        assert equal(space.canonical(arch), arch)
        assert equal(space.decode(space.encode(arch)), arch)
        assert equal(space.from_dict(json.loads(json.dumps(space.to_dict(arch)))), arch)
    assert equal(space.mutate(key, a, 0), a)
    assert equal(space.crossover(key, a, a), a)
    in_a, in_b = space.active(a), space.active(b)
    for name, active in space.active(child).items():
        from_a = in_a[name] & (child[name] == a[name])
        from_b = in_b[name] & (child[name] == b[name])
        neither = ~in_a[name] & ~in_b[name] & (child[name] == 0)
        assert np.all(~active | from_a | from_b | neither)


def assert_uniform(indices, atol):
    share = np.bincount(np.ravel(indices), minlength=3) / np.size(indices)
    np.testing.assert_allclose(share, 1 / 3, atol=atol)


def test_mutants_change_only_where_a_rate_is_given_and_their_new_layers_are_random():
    @jax.jit
    def mutants(arch, rates):
        return jax.vmap(lambda key: TINY.mutate(key, arch, rates))(jax.random.split(jax.random.key(1), 600))

    none = dict.fromkeys(TINY, 0.0)
    arch = TINY.sample(jax.random.key(0))
    many = jax.tree.map(np.array, mutants(arch, none | {"num_heads": 1.0}))
    for name in ("embed_dim", "depth", "mlp_ratio"):
        assert np.all(many[name] == np.array(arch[name]))
    depth = TINY["depth"].options[int(arch["depth"])]
    assert abs(np.mean(many["num_heads"][:, :depth]) - 0.5) < 0.03
    arch = TINY.canonical({**TINY.smallest(), "mlp_ratio": jnp.ones(14, jnp.int32)})
    many = jax.tree.map(np.array, mutants(arch, none | {"depth": 1.0}))
    deepest = many["mlp_ratio"][many["depth"] == 2]
    assert np.all(deepest[:, :12] == 1)
    assert_uniform(deepest[:, 12:], 0.08)


def test_sample_is_uniform_per_decision():
    """As AutoFormer samples: a depth is not likelier for having more networks."""
    many = TINY.sample(jax.random.key(0), 3000)
    for indices in (many["depth"], many["embed_dim"], many["mlp_ratio"][:, 0]):
        assert_uniform(indices, 0.04)


def test_jit_and_vmap_equal_the_loop():
    space, key = NESTED, jax.random.key(3)
    keys, batch = jax.random.split(key, 4), space.sample(key, 4)
    assert equal(batch, jax.jit(space.sample, static_argnums=1)(key, 4))
    rows = [jax.tree.map(lambda x, i=i: x[i], batch) for i in range(4)]
    for row, k in zip(rows, keys, strict=True):
        assert equal(row, space.sample(k))
    for f in (space.active, space.canonical):
        many = jax.jit(jax.vmap(f))(batch)
        assert equal(many, jax.tree.map(lambda *x: jnp.stack(x), *map(f, rows)))
        assert equal(many, f(batch))
    assert np.array_equal(space.encode(batch), jax.vmap(space.encode)(batch))
    assert equal(space.decode(space.encode(batch)), batch)
    many = jax.vmap(lambda k, a: space.mutate(k, a, 0.5))(keys, batch)
    assert equal(jax.tree.map(lambda x: x[2], many), space.mutate(keys[2], rows[2], 0.5))


def test_smallest_and_largest_and_what_files_leave_out():
    shallow = {"embed_dim": 192, "depth": 12, "num_heads": [3] * 12, "mlp_ratio": [3.0] * 12}
    deep = {"embed_dim": 240, "depth": 14, "num_heads": [4] * 14, "mlp_ratio": [4.0] * 14}
    unordered = Space(width=Choice(5, 9, 2), kind=Choice("z", "a"))
    ends = {"width": 2, "kind": "z"}, {"width": 9, "kind": "a"}
    for space, *expected in ((TINY, shallow, deep), (unordered, *ends)):
        assert [space.to_dict(arch) for arch in (space.smallest(), space.largest())] == expected
    values = dict(depth=3, kind=["attention", "identity", "attention"], heads=[2, None, 4], mode="a")
    for inactive in (values, {"depth": 0, "mode": "b", "extra": 1}):
        assert NESTED.to_dict(NESTED.from_dict(inactive)) == inactive


def test_soft_architectures():
    soft = jax.tree.map(jax.nn.softmax, TINY.logits())
    TINY.check(soft)
    TINY.check({**soft, "depth": np.int32(1)})
    TINY.check(jax.tree.map(lambda x: np.stack([x, x]), soft))
    TINY.check_static(soft)
    thirds = {"depth": np.int32(0), "width": np.full((2, 3), 1 / 3, np.float32)}
    RAGGED.check(thirds | {"width": np.float32([[0.5, 0.5, 0], [0.2, 0.3, 0.5]])})
    key, hard = jax.random.key(0), TINY.smallest()
    doors = (
        *(TINY.active, TINY.canonical, TINY.encode, TINY.to_dict, TINY.fix),
        lambda arch: TINY.mutate(key, arch, 0.1),
        lambda arch: TINY.crossover(key, hard, arch),
    )
    refusals.check(
        (lambda: TINY.check({**soft, "depth": np.float32([0.5, np.nan, 0.5])}), ValueError, "'depth'"),
        (lambda: TINY.check({**soft, "depth": np.float32([0.5, 0.5])}), ValueError, "'depth'", "(2,)"),
        (lambda: RAGGED.check(thirds), ValueError, "'width'"),  # position 0 has no third option
        *((lambda door=door: door(soft), TypeError, "soft") for door in doors),
    )


@every_space
def test_fix(space):
    arch = space.sample(jax.random.key(0))
    fixed = space.fix(arch)
    assert fixed.cardinality == 1
    assert fixed.to_dict(fixed.smallest()) == space.to_dict(arch)
    assert equal(fixed.sample(jax.random.key(0)), fixed.largest())
    assert equal(fixed.enumerate(), jax.tree.map(lambda x: x[None], fixed.smallest()))
    assert equal(fixed.mutate(jax.random.key(0), fixed.smallest(), 0.5), fixed.smallest())
    assert fixed.fix(fixed.smallest()) == fixed


def test_restrict():
    space = TINY.restrict(depth=(13, 12), num_heads=4)
    assert space["depth"].options == (12, 13)
    assert space.cardinality == 3 * (3**12 + 3**13)
    assert space["num_heads"].length == 13
    TINY.check(TINY.from_dict(space.to_dict(space.sample(jax.random.key(0)))))
    assert NESTED.restrict(mode="a").cardinality == NESTED.cardinality // 5
    assert RAGGED.restrict(width=(3, 5)).cardinality == 2 + 4
    refusals.check(
        (lambda: TINY.restrict(depth=(14, 15)), ValueError, "'depth'", "15", "14"),
        (lambda: RAGGED.restrict(width=4), ValueError, "position 0"),
        (lambda: TINY.restrict(num_head=3), ValueError, "'num_heads'"),
    )


@every_space
def test_a_space_is_static_and_goes_through_json(space):
    again = Space.from_json(json.loads(json.dumps(space.to_json())))
    assert again == space and hash(again) == hash(space) and list(again) == list(space)
    assert repr(again) == repr(space)
    f = jax.jit(lambda space, key: space.sample(key), static_argnums=0)
    f(space, jax.random.key(0)), f(again, jax.random.key(1))
    assert f._cache_size() == 1


def test_architectures_that_are_not_of_the_space_are_refused():
    def check(*missing, **change):
        arch = {name: value for name, value in {**TINY.smallest(), **change}.items() if name not in missing}
        return lambda: TINY.check(arch)

    def read(**change):
        return lambda: TINY.from_dict({**PUBLISHED, **change})

    many, key = jax.tree.map(np.array, TINY.sample(jax.random.key(0), 3)), jax.random.key(0)
    TINY.check(many)
    wrong = jax.tree.map(np.array, many)
    wrong["num_heads"][2, 4] = 9
    jax.jit(TINY.check_static)(TINY.smallest())
    outside = [{**TINY.smallest(), "depth": x} for x in np.asarray([99, -1, 2**40])]
    assert jax.jit(TINY.encode)(outside[0])[1] == 99  # what is traced cannot be refused
    refusals.check(
        *((lambda a=a: TINY.encode(a), ValueError, "'depth'", str(a["depth"])) for a in outside),
        (lambda: TINY.mutate(key, outside[0], 0.1), ValueError, "'depth'", "99"),
        (lambda: TINY.crossover(key, TINY.smallest(), outside[0]), ValueError, "'depth'", "99"),
        (check(depht=0), ValueError, "'depht'", "'depth'"),
        (check(num_heads=np.zeros(13, np.int32)), ValueError, "'num_heads'", "(13,)", "(14,)"),
        (check(mlp_ratio=np.int32([0] * 5 + [-1] + [0] * 8)), ValueError, "'mlp_ratio'[5]", "-1"),
        (check(mlp_ratio=np.zeros(14, bool)), TypeError, "'mlp_ratio'", "bool"),
        (check(depth=np.zeros(2, np.int32)), ValueError, "batch axes"),
        (lambda: TINY.check(wrong), ValueError, "'num_heads'[2, 4]", "9"),
        (lambda: TINY.check_static(many), ValueError, "vmap"),
        (lambda: jax.jit(TINY.check)(TINY.smallest()), TypeError, "check_static"),
        (read(embed_dims=192), ValueError, "'embed_dim'"),
        (read(embed_dim=200), ValueError, "200", "192"),
        (read(embed_dim="192"), ValueError, "'192' is not", "did you mean 192?"),
        (read(num_heads=[3] * 3 + [5] + [3] * 9), ValueError, "'num_heads'[3]", "5"),
        (read(depth=12, mlp_ratio=[3] * 12), ValueError, "'num_heads'", "13", "'depth'"),
        (read(num_heads=3), ValueError, "'num_heads'", "list"),
        (lambda: TINY.enumerate(), ValueError, "280,804,921,344", "100,000"),
        (lambda: TINY.mutate(key, TINY.smallest(), {"depth": 0.2}), ValueError, "embed_dim"),
        (lambda: TINY.mutate(key, TINY.smallest(), 1.2), ValueError, "1.2"),
        (lambda: spaces.autoformer("huge"), ValueError, "'huge'", "'tiny'"),
    )


def test_choices_and_spaces_that_cannot_be_are_refused():
    def by_position(rows):
        return lambda: Choice.from_json({"options": [1, 4], "length": 2, "per_position": rows})

    def at_positions(*rows):
        return lambda: Choice(1, 4).repeat(2).at_positions(*rows)

    refusals.check(
        (lambda: Choice(1, 1.0), ValueError, "twice"),
        (lambda: Choice((1, 2)), TypeError, "(1, 2)"),
        (lambda: Choice(True), TypeError, "True"),
        (lambda: Choice(float("nan")), ValueError, "nan"),
        (lambda: Choice(1e300), ValueError, "1e+300"),
        (lambda: Choice(2**31), ValueError, "2147483648"),
        (lambda: Choice(1).repeat(0), ValueError, "from 1", "0"),
        (lambda: spaces.par(10**11), ValueError, "10,000", str(10**11)),
        (lambda: Choice(1).repeat(2).repeat(2), ValueError, "repeated"),
        (at_positions((1,)), ValueError, "1", "2"),
        (at_positions((1,), (3,)), ValueError, "3", "position 1", "4"),
        (by_position([[1], [3]]), ValueError, "3", "position 1"),
        (lambda: Space(a=3), TypeError, "Choice"),
        (lambda: Space(a=Choice(1).when("zzzzz", 1)), ValueError, "'zzzzz'"),
        (lambda: Space(depth=Choice(2), a=Choice(1).repeat(2, active="dept")), ValueError, "'depth'"),
        (lambda: Space(depth=Choice(2, 3), a=Choice(1).repeat(2, active="depth")), ValueError, "3"),
        (lambda: Space(depth=Choice(2.0), a=Choice(1).repeat(2, active="depth")), ValueError, "ints"),
        (lambda: Space(d=Choice(1).repeat(2), a=Choice(1).repeat(2, active="d")), ValueError, "'d'"),
        (lambda: Space(a=Choice("x", "y"), b=Choice(1).when("a", "z")), ValueError, "'z'"),
        (lambda: Space(a=Choice(1).repeat(2), b=Choice(1).when("a", 1)), ValueError, "equal"),
        (lambda: Space(a=Choice(1).when("b", 1), b=Choice(1).when("a", 1)), ValueError, "cycle"),
    )
