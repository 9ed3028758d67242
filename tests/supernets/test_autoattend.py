"""AutoAttend: the exact size of its space, weights by context, and the promises on texts and on nodes."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks
import tiers
from small_nets import jit, sample
from test_cost import lower, xla_macs

import jaxnas
from jaxnas import Choice, Space, spaces
from jaxnas.supernets import AutoAttendNodes, AutoAttendText, DARTFormer
from jaxnas.supernets.attention_weights import OperationUses, Pairs
from jaxnas.supernets.autoattend_text import BidirectionalGRU, Convolution, MaxPool, attention, windows
from jaxnas.training import make_evaluator, make_mesh
from jaxnas.training.step import active_masks

pytestmark = pytest.mark.more  # a whole supernet

LAYERS, WORDS, LENGTH, CLASSES = 2, 11, 7, 3
SOME = ("zero", "identity", "convolution_3", "max_pool", "gru")
RNG = np.random.default_rng(0)
TEXTS = {
    "tokens": jnp.asarray(RNG.integers(0, WORDS, (3, LENGTH)), jnp.int32),
    "mask": jnp.arange(LENGTH)[None] < jnp.asarray([LENGTH, 1, 4])[:, None],
}
EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
NODES = {
    "features": jnp.asarray(RNG.normal(size=(1, 5, 4)), jnp.float32),
    "edges": jnp.asarray([[*EDGES, *((b, a) for a, b in EDGES)]], jnp.int32),
    "edge_mask": jnp.ones((1, 10), bool),
    "node_mask": jnp.ones((1, 5), bool),
}
CONTEXTS = ("none", "source", "target", "full")


@functools.cache
def net_of(kind, context="full"):
    sizes = {"num_classes": CLASSES, "width": 8, "num_heads": 2, "context": context, "dropout": 0.2}
    if kind == "nodes":
        return AutoAttendNodes(spaces.autoattend(2, ("zero", "identity", "gcn", "gat_2")), **sizes)
    if kind == "unframed":
        return AutoAttendNodes(spaces.autoattend(3, ("zero", "gcn", "gat_2")), framed=False, **sizes)
    return AutoAttendText(spaces.autoattend(LAYERS, SOME), vocabulary=WORDS, embedding=5, **sizes)


def inputs_of(kind):
    return TEXTS if kind == "text" else NODES


@functools.cache
def variables_of(kind, context="full"):
    return random_variables(net_of(kind, context), inputs_of(kind))


def random_variables(net, inputs):
    """Random weights, also where the initial ones are 0 or 1."""
    initial = jaxnas.init(net, jax.random.key(0), inputs)
    leaves, structure = jax.tree.flatten(initial)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


@functools.cache
def runner(kind, context="full"):
    net, inputs, traces = net_of(kind, context), inputs_of(kind), []

    def run(variables, arch):
        traces.append(arch)
        return net.apply(variables, inputs, arch)

    return jit(run), traces


# ---- The space.


@pytest.mark.parametrize(
    "layers, operations, size", [(2, 8, 318_402), (2, 13, 7_098_912), (3, 13, 40_123_050_624)]
)
def test_the_space_has_the_size_of_the_paper(layers, operations, size):
    space = spaces.autoattend(layers, ("zero", *map(str, range(operations - 1))))
    assert space.cardinality == size


def test_the_space_of_texts_has_the_size_of_the_paper():
    assert math.log10(spaces.autoattend(24).cardinality) == pytest.approx(76.36, abs=0.005)
    alone = spaces.autoattend(3, SOME, attention=False)
    assert (
        alone.cardinality
        == math.prod(layer * 5 * 4 for layer in (1, 2, 3))
        == len(alone.enumerate()["source"])
    )
    assert spaces.autoattend(24, spaces.AUTOATTEND_CORA).cardinality > spaces.autoattend(24).cardinality


def test_the_published_network_is_in_the_space():
    space = spaces.autoattend(24)
    arch = space.from_dict(spaces.autoattend_sst_options())
    space.check(arch)
    values = space.to_dict(arch)
    assert values["layer"].count("attention") == 13 and values["source"][17] == 14
    assert values["first"][3] == "convolution_1" and values["key"][3] == "max_pool"
    assert values["value"][3] == "convolution_1" and values["second"][0] == "convolution_1"


def test_the_published_network_is_extracted_and_counted():
    net = AutoAttendText(spaces.autoattend(24), num_classes=CLASSES, vocabulary=WORDS, width=8, embedding=5)
    variables = jaxnas.init(net, jax.random.key(0), TEXTS)
    arch = net.space.from_dict(spaces.autoattend_sst_options())
    small = jaxnas.extract(net, variables, arch, inputs=TEXTS)
    np.testing.assert_allclose(
        jit(small.net.apply)(small.variables, TEXTS),
        jit(net.apply)(variables, TEXTS, arch),
        rtol=1e-4,
        atol=1e-5,
    )
    sizes = [x.size for x in jax.tree.leaves(small.variables["params"])]
    assert jaxnas.cost(net, TEXTS)(arch)["params"] == sum(sizes)


# ---- How layers are joined, by PyTorch.


def by_torch(torch, params, values):
    """Logits of the texts, layer by layer, with the weights of the copy for each pair of layers."""
    functional = torch.nn.functional
    params = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf)), params)
    mask = torch.tensor(np.asarray(TEXTS["mask"]))

    def norm(x, own):
        return functional.layer_norm(x, x.shape[-1:], own["scale"], own["bias"], eps=1e-6)

    def convolution(x, own):
        x = functional.linear(
            norm(x, own["norm"]), own["convolution"]["kernel"].T, own["convolution"]["bias"]
        )
        return torch.relu(x)

    words = params["embedding"]["embedding"][torch.tensor(np.asarray(TEXTS["tokens"]))]
    outputs = [convolution(words, params["stem"])]
    for i, (layer, other) in enumerate(zip(values["layer"], values["source"], strict=True)):

        def edge(role, source, i=i):
            x, operation = outputs[source], values[role][i]
            if operation == "convolution_1":
                number = i * (i + 1) // 2 + source
                return convolution(x, jax.tree.map(lambda leaf: leaf[number], params[operation]))
            return 0 * x if operation == "zero" else x

        if layer == "addition":
            outputs.append(edge("first", i) + edge("second", other))
            continue
        heads = [edge(*one) for one in (("first", i), ("key", other), ("value", other))]
        heads = [x.unflatten(2, (2, -1)).transpose(1, 2) for x in heads]  # [B, H, T, d]
        y = functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None])
        y = y.transpose(1, 2).flatten(2)
        outputs.append(norm(y, jax.tree.map(lambda leaf, i=i: leaf[i], params["norm"])))
    most = torch.where(mask[..., None], outputs[-1], -torch.inf).amax(dim=1)
    return functional.linear(most, params["head"]["kernel"].T, params["head"]["bias"])


def test_layers_are_joined_as_by_pytorch():
    torch = pytest.importorskip("torch")
    space = spaces.autoattend(4, ("zero", "identity", "convolution_1"))
    sizes = dict(num_classes=CLASSES, vocabulary=WORDS, embedding=5, width=8, num_heads=2, context="none")
    net = AutoAttendText(space, **sizes)
    variables, apply, kinds = random_variables(net, TEXTS), jit(net.apply), set()
    for seed in range(12):
        arch = space.sample(jax.random.key(seed))
        values = space.to_dict(arch)
        kinds.update(values["layer"])
        expected = by_torch(torch, variables["params"], values).numpy()
        np.testing.assert_allclose(apply(variables, TEXTS, arch), expected, rtol=1e-4, atol=1e-5)
    assert kinds == {"addition", "attention"}


# ---- Weights by context.


def edges_of(values, operation, context):
    """The edges with an operation, and what the released code calls their weights."""
    found = {}
    for layer, kind in enumerate(values["layer"]):
        roles = ("first", "second") if kind == "addition" else ("first", "key", "value")
        for place, role in enumerate(roles):
            source = layer if role == "first" else values["source"][layer]
            if values[role][layer] == operation:
                name = [source, layer + 1]
                if context in ("source", "full") and source > 0:
                    name.append(values["layer"][source - 1])
                if context in ("target", "full"):
                    name.append("add" if kind == "addition" else role)
                found[3 * layer + place] = tuple(name)
    return found


WHOLE = Pairs(range(3))
PARTS = (Pairs(range(2), of_layers=False), Pairs(range(2), of_input=False), Pairs(range(2, 3), False))


@pytest.mark.parametrize("context", CONTEXTS)
def test_each_place_and_context_has_weights_of_its_own(context):
    n = 3
    expected = {"none": n * (n + 1) // 2, "source": n * n, "target": 2 * n * (n + 1), "full": 4 * n * n}
    kinds, roles = (2 if context in ("source", "full") else 1), (4 if context in ("target", "full") else 1)
    of_parts = (2 * roles, kinds * roles, 2 * kinds * roles)
    space, row_of = spaces.autoattend(n, SOME), {}
    archs = space.sample(jax.random.key(0), 80)
    sizes = zip((WHOLE, *PARTS), (expected[context], *of_parts), strict=True)
    for operation, (pairs, copies) in itertools.product(("convolution_3", "gru"), sizes):
        uses = OperationUses(space, context, SOME, operation, pairs)
        assert uses.copies == copies
        indices, used = (np.asarray(x) for x in jax.vmap(uses)(archs))
        for i in range(80):
            arch = jax.tree.map(lambda x, i=i: np.asarray(x[i]), archs)
            names = edges_of(space.to_dict(arch), operation, context)
            names = {
                edge - 3 * pairs.targets.start: name
                for edge, name in names.items()
                if edge // 3 in pairs.targets and (pairs.of_layers if name[0] else pairs.of_input)
            }
            for edge, name in names.items():
                key = (operation, pairs, name)
                assert used[i, edge] and row_of.setdefault(key, indices[i, edge]) == indices[i, edge]
            assert used[i].sum() == len(names)
            assert sum(table.at_host(arch) for table in uses.distinct) == len(set(names.values()))
        rows = [row for (*of, _), row in row_of.items() if of == [operation, pairs]]
        assert len(set(rows)) == len(rows) and max(rows) < copies  # No two names have the same copy.


# ---- The promises.


@pytest.mark.hlo
@pytest.mark.parametrize(
    "kind, context",
    [
        ("nodes", "full"),
        ("text", "none"),
        *tiers.nightly(("unframed", "full"), ("unframed", "none"), ("text", "full")),
    ],
)
def test_extracted_networks_have_their_own_parameters_only(kind, context):
    net, variables = net_of(kind, context), variables_of(kind, context)
    cost = jaxnas.cost(net, inputs_of(kind))
    for seed in range(2):
        arch = net.space.sample(jax.random.key(seed))
        small = jaxnas.extract(net, variables, arch, verify=inputs_of(kind))
        assert small.error < 1e-5
        assert sum(x.size for x in jax.tree.leaves(small.variables)) == cost(arch)["params"]
        if "gru" not in str(net.space.to_dict(arch)):  # XLA counts the body of a loop once.
            one = jax.tree.map(lambda x: x[:1], inputs_of(kind))
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), one)
            assert xla_macs(lower(small.net, small.variables, shapes).as_text("hlo")) == cost(arch)["macs"]


FEW = ("zero", "identity", "convolution_1")


def test_a_found_network_is_measured_by_itself():
    task, net = small_tasks.task_of("text"), AutoAttendText(spaces.autoattend(2, FEW), 2, 6, width=8)
    arch = net.space.smallest()
    variables = jaxnas.init(net, jax.random.key(0), task.inputs)
    alone = jaxnas.extract(net, variables, arch, inputs=task.inputs)
    measured = [
        make_evaluator(task, one, "search", mesh=make_mesh(1)).with_errors(*given)[0]["loss"]
        for one, *given in ((net, variables, arch), (alone.net, alone.variables, None))
    ]
    np.testing.assert_allclose(*measured, rtol=1e-5)


@pytest.mark.parametrize("kind", ["nodes", *tiers.more(*(kind for kind in ("text", "unframed")))])
def test_one_program_serves_all_and_a_batch_of_them(kind):
    net, variables = net_of(kind), variables_of(kind)
    run, traces = runner(kind)
    archs = net.space.sample(jax.random.key(5), 12)
    one_by_one = jnp.stack([run(variables, jax.tree.map(lambda x, i=i: x[i], archs)) for i in range(12)])
    assert len(traces) == 1
    assert len({np.asarray(row).tobytes() for row in one_by_one}) > 9  # They are different functions.
    apply = functools.partial(net.apply, variables, inputs_of(kind))
    few = jax.tree.map(lambda x: x[:4], archs)
    np.testing.assert_allclose(jit(jax.vmap(apply))(few), one_by_one[:4], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["text", "nodes", *tiers.nightly("unframed")])
def test_a_gradient_is_zero_outside_of_the_architecture(kind):
    net, variables, inputs = net_of(kind), variables_of(kind), inputs_of(kind)

    def loss(params, arch, key):
        logits = net.apply({"params": params}, inputs, arch, train=True, rngs={"dropout": key})
        return jnp.sum(jnp.sin(logits))

    grad, masks = jit(jax.grad(loss)), active_masks(net, inputs)
    for seed in range(2):
        arch = net.space.sample(jax.random.key(seed))
        found, active = grad(variables["params"], arch, jax.random.key(0)), masks(arch)
        again = grad(variables["params"], arch, jax.random.key(1))
        for (path, leaf), mask in zip(
            jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(active), strict=True
        ):
            assert not np.any(np.where(mask, 0, leaf)), jax.tree_util.keystr(path)
        assert any(np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (found, again)), strict=True))


@pytest.mark.parametrize("kind", ["text", "nodes", "unframed"])
def test_nothing_comes_from_behind_the_end(kind):
    net, variables = net_of(kind), variables_of(kind)
    inputs, archs = dict(inputs_of(kind)), net.space.sample(jax.random.key(7), 8)
    apply = jit(lambda inputs: jax.lax.map(lambda arch: net.apply(variables, inputs, arch), archs))
    before = apply(inputs)
    if kind == "text":
        inputs["tokens"] = jnp.where(inputs["mask"], inputs["tokens"], WORDS - 1)
    else:  # A node and an edge more, which fill the graph up.
        inputs["features"] = jnp.pad(inputs["features"], [(0, 0), (0, 1), (0, 0)], constant_values=3)
        inputs["node_mask"] = jnp.pad(inputs["node_mask"], [(0, 0), (0, 1)])
        inputs["edges"] = jnp.concatenate([inputs["edges"], jnp.asarray([[[5, 0]]], jnp.int32)], axis=1)
        inputs["edge_mask"] = jnp.pad(inputs["edge_mask"], [(0, 0), (0, 1)])
    after = apply(inputs)
    after = after if kind == "text" else after[:, :, : before.shape[2]]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


# ---- Operations.


def test_the_recurrent_operation_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    x = jax.random.normal(jax.random.key(2), (3, LENGTH, 4))
    module, mask = BidirectionalGRU(), TEXTS["mask"]
    params = module.init(jax.random.key(0), x, mask)["params"]
    got = module.apply({"params": params}, x, mask)
    reference = torch.nn.GRU(4, 4, batch_first=True, bidirectional=True)
    state = {}
    for name, suffix in (("forward", ""), ("backward", "_reverse")):
        gates = params[name]
        zeros = jnp.zeros(4)
        biases = [gates["ir"]["bias"], gates["iz"]["bias"], gates["in"]["bias"]]
        state |= {
            f"weight_ih_l0{suffix}": jnp.concatenate([gates[g]["kernel"].T for g in ("ir", "iz", "in")]),
            f"weight_hh_l0{suffix}": jnp.concatenate([gates[g]["kernel"].T for g in ("hr", "hz", "hn")]),
            f"bias_ih_l0{suffix}": jnp.concatenate(biases),
            f"bias_hh_l0{suffix}": jnp.concatenate([zeros, zeros, gates["hn"]["bias"]]),
        }
    reference.load_state_dict({k: torch.tensor(np.asarray(v)) for k, v in state.items()})
    normalised = torch.nn.functional.layer_norm(torch.tensor(np.asarray(x)), (4,), eps=1e-6)
    lengths = torch.tensor(np.asarray(mask.sum(1)))
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        normalised, lengths, batch_first=True, enforce_sorted=False
    )
    both, _ = torch.nn.utils.rnn.pad_packed_sequence(
        reference(packed)[0], batch_first=True, total_length=LENGTH
    )
    expected = (both[..., :4] + both[..., 4:]).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_the_convolution_is_that_of_pytorch(size):
    torch = pytest.importorskip("torch")
    x, mask = jax.random.normal(jax.random.key(2), (3, LENGTH, 4)), TEXTS["mask"]
    module = Convolution(5, size)
    params = module.init(jax.random.key(0), x, mask)["params"]
    got = np.asarray(module.apply({"params": params}, x, mask))
    kernel = np.asarray(params["convolution"]["kernel"]).reshape(size, 4, 5)
    reference = torch.nn.Conv1d(4, 5, size, padding="same")
    weights = {"weight": kernel.transpose(2, 1, 0).copy(), "bias": np.zeros(5, np.float32)}
    reference.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    normalised = torch.nn.functional.layer_norm(torch.tensor(np.asarray(x)), (4,), eps=1e-6)
    normalised = normalised * torch.tensor(np.asarray(mask))[..., None]
    expected = torch.relu(reference(normalised.transpose(1, 2))).transpose(1, 2).detach().numpy()
    real = np.asarray(mask)
    np.testing.assert_allclose(got[real], expected[real], rtol=1e-5, atol=1e-5)
    assert not np.any(got[~real])


def test_attention_is_that_of_pytorch_without_projections():
    torch = pytest.importorskip("torch")
    query, key, value = (jax.random.normal(jax.random.key(i), (3, LENGTH, 6)) for i in range(3))
    got = attention(query, key, value, TEXTS["mask"], lambda x: x, num_heads=2)
    mask = torch.tensor(np.asarray(TEXTS["mask"]))[:, None, None]
    heads = [
        torch.tensor(np.asarray(x.reshape(3, LENGTH, 2, 3))).transpose(1, 2) for x in (query, key, value)
    ]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
    expected = expected.transpose(1, 2).reshape(3, LENGTH, 6).numpy()
    real = np.asarray(TEXTS["mask"])
    np.testing.assert_allclose(np.asarray(got)[real], expected[real], rtol=1e-5, atol=1e-5)
    assert not np.any(np.asarray(got)[~real])


def test_the_maximum_of_neighbours_leaves_padding_out():
    x = jnp.asarray([[[3.0, 1.0], [1.0, 3.0], [9.0, -9.0]]])
    mask = jnp.asarray([[True, True, False]])
    got = MaxPool().apply(MaxPool().init(jax.random.key(0), x, mask), x, mask)
    np.testing.assert_allclose(got[0], [[1, 1], [1, 1], [0, 0]], atol=1e-5)


def test_a_text_without_a_word_gives_numbers():
    net, variables = net_of("text"), variables_of("text")
    empty = TEXTS | {"mask": jnp.zeros_like(TEXTS["mask"])}
    head = variables["params"]["head"]
    logits = net.apply(variables, empty, net.space.smallest())
    np.testing.assert_allclose(logits, jnp.broadcast_to(head["bias"], logits.shape), atol=1e-6)


@pytest.mark.parametrize("kind", [*tiers.more("autoattend"), "transformer"])
def test_vectors_that_are_tuned_begin_as_those_of_the_task(kind):
    """Only those of words that occur are learned, and the extracted network has them."""
    given = {**TEXTS, "vectors": jax.random.normal(jax.random.key(2), (3, LENGTH, 6)), "label": jnp.arange(3)}
    fixed = net_of("text").clone(vocabulary=None)
    if kind == "transformer":
        space = spaces.dartformer(("linear", "softmax"))
        fixed = DARTFormer(space, num_classes=4, vocabulary=1, max_length=LENGTH, pool="mean")
    tuned = fixed.clone(vocabulary=WORDS, tune_vectors=True)
    arch, variables = fixed.space.smallest(), jaxnas.init(tuned, jax.random.key(0), given)
    own = {"params": {name: x for name, x in variables["params"].items() if name != "difference"}}
    run, expected = jit(functools.partial(tuned.apply, arch=arch)), jit(fixed.apply)(own, given, arch)
    np.testing.assert_allclose(run(variables, given), expected, rtol=1e-6, atol=1e-6)

    gradient = jit(jax.grad(lambda v: jnp.sum(tuned.apply(v, given, arch) ** 2)))(variables)
    moved = np.any(np.asarray(gradient["params"]["difference"]["embedding"]), axis=1)
    assert set(np.flatnonzero(moved)) <= set(np.asarray(TEXTS["tokens"])[TEXTS["mask"]]) and moved.any()

    changed = {"difference": {"embedding": jax.random.normal(jax.random.key(3), (WORDS, 6))}}
    variables = {"params": variables["params"] | changed}
    small = jaxnas.extract(tuned, variables, arch, inputs=given)
    got = jit(small.net.apply)(small.variables, given)
    np.testing.assert_allclose(got, run(variables, given), rtol=1e-5, atol=1e-6)
    assert np.max(np.abs(got - expected)) > 1e-3


def test_a_long_text_is_cut_into_windows():
    x = jnp.arange(20).reshape(2, 10)
    cut = windows(x, 4, 3)
    assert cut.reshape(2, 3, 4)[1].tolist() == [[10, 11, 12, 13], [13, 14, 15, 16], [16, 17, 18, 19]]
    assert windows(x[:, :9], 4, 3).reshape(2, 3, 4)[0, 2].tolist() == [6, 7, 8, 0]
    assert windows(x, 12, 6).shape == (2, 12)


def test_a_text_is_read_in_windows_up_to_its_end_whatever_its_padding():
    net, variables = net_of("text").clone(window=4, stride=3), variables_of("text")
    run = jit(net.apply)
    texts = {"tokens": jnp.asarray(RNG.integers(0, WORDS, (7, 10)), jnp.int32)}
    for arch in (sample(net.space, seed) for seed in range(3)):
        for length in (1, 3, 4, 5, 7, 8):
            mask = jnp.broadcast_to(jnp.arange(10) < length, (7, 10))
            padded = run(variables, texts | {"mask": mask}, arch)
            cut = jax.tree.map(lambda x, length=length: x[:, :length], texts | {"mask": mask})
            np.testing.assert_allclose(padded, run(variables, cut, arch), rtol=1e-4, atol=1e-5)


# ---- Errors.


def space_with(**changes):
    return Space(**(spaces.autoattend(2, SOME).choices | changes))


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(space=space_with(source=Choice(0, 1).repeat(2))), "layer 0"),
        (dict(space=space_with(first=Choice("gru", "lstm").repeat(2))), "'lstm'"),
        (dict(space=space_with(key=Choice("zero", "gru").repeat(2))), "only 'second' may have it"),
        (dict(space=Space(layer=Choice("addition").repeat(2))), "expected .*'first'"),
        (dict(space=space_with(first=Choice("gru").repeat(3))), "repeated as often as there"),
        (dict(space=space_with(layer=Choice("addition", "attention", "sum").repeat(2))), "'sum' is no kind"),
        (dict(space=3), "expected one such as"),
        (dict(num_heads=3), "which 3"),
        (dict(window=4, stride=5), "would leave words out"),
        (dict(width=0), "width is 0"),
        (dict(vocabulary=0), "vocabulary is 0"),
        (dict(window=0), "window is 0"),
        (dict(dropout=1.0), "dropout is 1"),
        (dict(context="all"), "'all'"),
    ],
)
def test_a_network_that_cannot_be_is_refused(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        net_of("text").clone(**change)


def test_no_identity_changes_the_number_of_features():
    with pytest.raises(ValueError, match="'identity'"):
        net_of("nodes").clone(framed=False)


def test_soft_architectures_and_texts_without_vectors_are_refused():
    net, variables = net_of("text"), variables_of("text")
    with pytest.raises(ValueError, match="takes hard architectures"):
        net.apply(variables, TEXTS, net.space.soften(net.space.smallest()))
    with pytest.raises(ValueError, match="the task gives no vectors"):
        net.clone(vocabulary=None).apply(variables, TEXTS, net.space.smallest())
    with pytest.raises(ValueError, match="tune_vectors is True"):
        net.clone(tune_vectors=True).apply(variables, TEXTS, net.space.smallest())


def test_operations_that_differ_in_nothing_that_is_counted():
    """A space may be restricted to those, and its costs and extracted networks are right."""
    space = spaces.autoattend(1, ("zero", "identity"))
    net = AutoAttendText(space, num_classes=2, vocabulary=WORDS, width=4, num_heads=1)
    cost = jaxnas.cost(net, TEXTS)
    variables = jaxnas.init(net, jax.random.key(0), TEXTS)
    arch = space.smallest()
    small = jaxnas.extract(net, variables, arch, verify=TEXTS)
    assert small.error < 1e-5
    assert cost(arch)["params"] == sum(x.size for x in jax.tree.leaves(small.variables))
