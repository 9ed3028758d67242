"""AutoAttend: the exact size of its space, weights by context, and the promises on texts and on nodes."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import promises
import pytest
import refusals
import tiers
from small_attention import CLASSES, LENGTH, NODES, RNG, SOME, TEXTS, WORDS, inputs_of, variables_of
from small_attention import autoattend as net_of
from small_nets import jit, sample

import jaxnas
from jaxnas import Choice, Space, spaces
from jaxnas.supernets import AutoAttendText, DARTFormer
from jaxnas.supernets.autoattend.attention_weights import OperationUses, Pairs
from jaxnas.supernets.autoattend.text import windows

pytestmark = pytest.mark.more  # a whole supernet

CONTEXTS = ("none", "source", "target", "full")
FURTHER = tiers.nightly(("unframed", "full"), ("unframed", "none"), ("text", "full"))


def test_spaces_have_the_sizes_of_the_paper_and_its_network():
    for layers, operations, size in ((2, 8, 318_402), (2, 13, 7_098_912), (3, 13, 40_123_050_624)):
        names = ("zero", *map(str, range(operations - 1)))
        assert spaces.autoattend(layers, names).cardinality == size
    assert math.log10(spaces.autoattend(24).cardinality) == pytest.approx(76.36, abs=0.005)
    alone = spaces.autoattend(3, SOME, attention=False)
    assert alone.cardinality == math.prod(layer * 5 * 4 for layer in (1, 2, 3))
    assert spaces.autoattend(24, spaces.AUTOATTEND_CORA).cardinality > spaces.autoattend(24).cardinality
    space = spaces.autoattend(24)
    values = space.to_dict(space.from_dict(spaces.autoattend_sst_options()))
    assert values["layer"].count("attention") == 13 and values["source"][17] == 14
    assert values["first"][3] == "convolution_1" and values["key"][3] == "max_pool"
    assert values["value"][3] == "convolution_1" and values["second"][0] == "convolution_1"


def by_torch(torch, params, values):
    """Logits of the texts, layer by layer, with the weights of the copy for each pair of layers."""
    functional = torch.nn.functional
    params = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf)), params)
    mask = torch.tensor(np.asarray(TEXTS["mask"]))

    def norm(x, own):
        return functional.layer_norm(x, x.shape[-1:], own["scale"], own["bias"], eps=1e-6)

    def convolution(x, own):
        kernel, bias = own["convolution"]["kernel"], own["convolution"]["bias"]
        x = (norm(x, own["norm"]) * mask[..., None]).transpose(1, 2)
        kernel = kernel.unflatten(0, (-1, x.shape[1])).permute(2, 1, 0)
        return torch.relu(functional.conv1d(x, kernel, bias, padding="same")).transpose(1, 2)

    def max_pool(x, own):
        x = norm(x, own["norm"]).masked_fill(~mask[..., None], -torch.inf)
        return functional.max_pool1d(x.transpose(1, 2), 3, 1, 1).transpose(1, 2)

    def gru(x, own):
        size, state = x.shape[-1], {}
        reference, zeros = torch.nn.GRU(size, size, batch_first=True, bidirectional=True), torch.zeros(size)
        for name, suffix in (("forward", ""), ("backward", "_reverse")):
            gates = own[name]
            state |= {
                f"weight_ih_l0{suffix}": torch.cat([gates[g]["kernel"].T for g in ("ir", "iz", "in")]),
                f"weight_hh_l0{suffix}": torch.cat([gates[g]["kernel"].T for g in ("hr", "hz", "hn")]),
                f"bias_ih_l0{suffix}": torch.cat([gates[g]["bias"] for g in ("ir", "iz", "in")]),
                f"bias_hh_l0{suffix}": torch.cat([zeros, zeros, gates["hn"]["bias"]]),
            }
        reference.load_state_dict(state)
        options = dict(batch_first=True, enforce_sorted=False)
        packed = torch.nn.utils.rnn.pack_padded_sequence(norm(x, own["norm"]), mask.sum(1), **options)
        packed, _ = reference(packed)
        both, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=LENGTH)
        return both[..., :size] + both[..., size:]

    words = params["embedding"]["embedding"][torch.tensor(np.asarray(TEXTS["tokens"]))]
    outputs = [convolution(words, params["stem"])]
    operations = {"convolution_3": convolution, "max_pool": max_pool, "gru": gru}
    for i, (layer, other) in enumerate(zip(values["layer"], values["source"], strict=True)):

        def edge(role, source, i=i):
            x, operation = outputs[source], values[role][i]
            if operation in operations:
                number = i * (i + 1) // 2 + source
                own = jax.tree.map(lambda leaf: leaf[number], params[operation])
                x = operations[operation](x, own).masked_fill(~mask[..., None], 0)
            return 0 * x if operation == "zero" else x

        if layer == "addition":
            outputs.append(edge("first", i) + edge("second", other))
            continue
        heads = [edge(*one) for one in (("first", i), ("key", other), ("value", other))]
        heads = [x.unflatten(2, (2, -1)).transpose(1, 2) for x in heads]  # [B, H, T, d]
        y = functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None])
        y = y.transpose(1, 2).flatten(2)
        outputs.append(norm(y, jax.tree.map(lambda leaf, i=i: leaf[i], params["norm"])))
    most = outputs[-1].masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
    return functional.linear(most, params["head"]["kernel"].T, params["head"]["bias"])


def test_operations_and_how_they_are_joined_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    sizes = dict(embedding=5, width=8, num_heads=2)
    net = AutoAttendText(spaces.autoattend(3, SOME), CLASSES, WORDS, **sizes, context="none")
    variables, apply, seen = promises.positive_variables(net, TEXTS), jit(net.apply), set()
    for seed in range(20):
        arch = sample(net.space, seed)
        values = net.space.to_dict(arch)
        seen.update(values["layer"], values["first"], values.get("second", ()))
        with torch.no_grad():
            expected = by_torch(torch, variables["params"], values).numpy()
        np.testing.assert_allclose(apply(variables, TEXTS, arch), expected, rtol=1e-4, atol=1e-5)
    assert seen >= {"addition", "attention", *SOME}


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
            kept = [edge for edge in names if edge // 3 in pairs.targets]
            kept = [edge for edge in kept if (pairs.of_layers if names[edge][0] else pairs.of_input)]
            names = {edge - 3 * pairs.targets.start: names[edge] for edge in kept}
            for edge, name in names.items():
                key = (operation, pairs, name)
                assert used[i, edge] and row_of.setdefault(key, indices[i, edge]) == indices[i, edge]
            assert used[i].sum() == len(names)
            assert sum(table.at_host(arch) for table in uses.distinct) == len(set(names.values()))
        rows = [row for (*of, _), row in row_of.items() if of == [operation, pairs]]
        assert len(set(rows)) == len(rows) and max(rows) < copies  # No two names have the same copy.


@pytest.mark.hlo
@pytest.mark.parametrize("kind, context", [("nodes", "full"), ("text", "none"), *FURTHER])
def test_extracted_networks_have_their_own_parameters_only(kind, context):
    net, variables, inputs = net_of(kind, context), variables_of(kind, context), inputs_of(kind)
    for seed in range(2 if kind == "nodes" else 1):
        arch = sample(net.space, seed)
        recurrent = "gru" in str(net.space.to_dict(arch))  # whose loop XLA counts once
        promises.check_extracted(net, variables, arch, inputs, macs=not recurrent)


def test_operations_that_differ_in_nothing_that_is_counted():
    space = spaces.autoattend(1, ("zero", "identity"))
    net = AutoAttendText(space, num_classes=2, vocabulary=WORDS, width=4, num_heads=1)
    promises.check_extracted(net, jaxnas.init(net, jax.random.key(0), TEXTS), space.smallest(), TEXTS)


def test_dropout_is_on_in_training():
    net, variables = net_of("nodes"), variables_of("nodes")
    apply = functools.partial(net.apply, variables, NODES, sample(net.space, 0), train=True)
    first, other = (apply(rngs={"dropout": jax.random.key(seed)}) for seed in range(2))
    assert np.any(first != other)


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
    if kind == "text":  # without a word
        empty = inputs | {"mask": jnp.zeros_like(inputs["mask"])}
        logits = net.apply(variables, empty, net.space.smallest())
        bias = np.asarray(variables["params"]["head"]["bias"])[None]
        np.testing.assert_allclose(logits, bias.repeat(3, axis=0), atol=1e-6)


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


def test_a_long_text_is_read_in_windows_up_to_its_end_whatever_its_padding():
    x = jnp.arange(20).reshape(2, 10)
    cut = windows(x, 4, 3)
    assert cut.reshape(2, 3, 4)[1].tolist() == [[10, 11, 12, 13], [13, 14, 15, 16], [16, 17, 18, 19]]
    assert windows(x[:, :9], 4, 3).reshape(2, 3, 4)[0, 2].tolist() == [6, 7, 8, 0]
    assert windows(x, 12, 6).shape == (2, 12)
    net, variables = net_of("text").clone(window=4, stride=3), variables_of("text")
    run = jit(net.apply)
    texts = {"tokens": jnp.asarray(RNG.integers(0, WORDS, (7, 10)), jnp.int32)}
    for arch in (sample(net.space, seed) for seed in range(3)):
        for length in (1, 4, 8):
            mask = jnp.broadcast_to(jnp.arange(10) < length, (7, 10))
            padded = run(variables, texts | {"mask": mask}, arch)
            cut = jax.tree.map(lambda x, length=length: x[:, :length], texts | {"mask": mask})
            np.testing.assert_allclose(padded, run(variables, cut, arch), rtol=1e-4, atol=1e-5)


def test_mistakes_are_refused():
    net, variables = net_of("text"), variables_of("text")
    arch = net.space.smallest()

    def made(**changes):
        return net.clone(space=Space(**(net.space.choices | changes)))

    refusals.check(
        (lambda: made(source=Choice(0, 1).repeat(2)), ValueError, "layer 0"),
        (lambda: made(first=Choice("gru", "lstm").repeat(2)), ValueError, "'lstm'"),
        (lambda: made(key=Choice("zero", "gru").repeat(2)), ValueError, "'key'", "['zero']"),
        (lambda: made(first=Choice("gru").repeat(3)), ValueError, "'first'", "3"),
        (lambda: made(layer=Choice("addition", "attention", "sum").repeat(2)), ValueError, "'sum'"),
        (lambda: net.clone(num_heads=3), ValueError, "heads", "3"),
        (lambda: net.clone(window=4, stride=5), ValueError, "stride", "5"),
        (lambda: net.clone(window=0), ValueError, "window is 0"),
        (lambda: net.clone(context="all"), ValueError, "'all'"),
        # No identity changes the number of features.
        (lambda: net_of("nodes").clone(framed=False), ValueError, "'identity'"),
        (lambda: net.apply(variables, TEXTS, net.space.soften(arch)), ValueError, "hard"),
        (lambda: net.clone(vocabulary=None).apply(variables, TEXTS, arch), ValueError, "vectors"),
        (lambda: net.clone(tune_vectors=True).apply(variables, TEXTS, arch), ValueError, "tune_vectors"),
    )
