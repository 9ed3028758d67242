"""The config.json of decoders: Llama, Mistral, Qwen 2 and 3, Gemma 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxnas.hf.decoder import ACTIVATIONS, Decoder, Form, Rope
from jaxnas.hf.values import layer_sizes, mapping, number, one_of, size

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
SIZES = ("kv_groups", "group_heads", "hidden")
_GEMMA = "gemma3_text"
_HEAD_DIM = {"qwen3": 128, _GEMMA: 256}  # where the family has a default of its own
_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, _GEMMA: 4}
_ROPES = ("default", "linear", "llama3")
_MOST = 4  # times the heads, to which they are padded


def read(values: Mapping[str, Any]) -> Decoder:
    """The module of a config.json.

    Raises:
      ValueError: a value that is missing or not supported.
    """
    family = values["model_type"]
    layers, width = size(values, "num_hidden_layers"), size(values, "hidden_size")
    heads, hidden = size(values, "num_attention_heads"), size(values, "intermediate_size")
    groups = size(values, "num_key_value_heads", _KV_HEADS.get(family, heads))
    if heads % groups:
        raise ValueError(
            f"config.json: num_attention_heads is {heads}, expected a multiple of num_key_value_heads, "
            f"{groups}."
        )
    whole = dict(zip(SIZES, (groups, heads // groups, hidden), strict=True))
    form, tokens, windows = _form(values, width, heads), size(values, "vocab_size"), _windows(values, layers)
    kv_groups, group_heads, hiddens = layer_sizes(values, layers, whole)
    return Decoder(form, tokens, width, kv_groups, group_heads, hiddens, windows)


def _form(values: Mapping[str, Any], width: int, heads: int) -> Form:
    family = values["model_type"]
    gemma = family == _GEMMA
    if gemma and values.get("use_bidirectional_attention"):
        raise ValueError("config.json: use_bidirectional_attention is true, expected a causal decoder.")
    head_dim = size(values, "head_dim", _HEAD_DIM.get(family, width // heads))
    scale = number(values, "query_pre_attn_scalar", 256) if gemma else head_dim
    biases = bool(values.get("attention_bias", False)) and family in ("llama", "qwen3", _GEMMA)
    cap = values.get("final_logit_softcapping") if gemma else None
    key = "hidden_activation" if gemma and values.get("hidden_activation") else "hidden_act"
    return Form(
        head_dim=head_dim,
        rope=_rope(values, "full_attention", 1e6 if gemma else 1e4),
        local_rope=_rope(values, "sliding_attention", 1e4) if gemma else None,
        attention_scale=float(scale) ** -0.5,
        epsilon=number(values, "rms_norm_eps", 1e-6),
        activation=one_of(values, key, "gelu_pytorch_tanh" if gemma else "silu", ACTIVATIONS),
        qkv_bias=biases or family == "qwen2",
        out_bias=biases,
        mlp_bias=family == "llama" and bool(values.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", _GEMMA),
        post_norms=gemma,
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=width**0.5 if gemma else 1.0,
        softcap=None if cap is None else number(values, "final_logit_softcapping", 0.0),
        tied=bool(values.get("tie_word_embeddings", gemma)),
    )


def _rope(values: Mapping[str, Any], kind: str, theta: float) -> Rope:
    """The rotary embeddings of one kind of layers; keys of transformers 4 are read, too."""
    given = mapping(values, "rope_parameters")
    nested = kind in given
    if nested:
        given = mapping(given, kind)
    elif kind == "full_attention" or values["model_type"] != _GEMMA:
        given = given or mapping(values, "rope_scaling")
        theta = number(values, "rope_theta", theta)
    else:
        given = {}
        theta = number(values, "rope_local_base_freq", theta)
    name = one_of(given, "rope_type" if "rope_type" in given else "type", "default", _ROPES)
    share = number(given, "partial_rotary_factor", number(values, "partial_rotary_factor", 1.0))
    if share != 1.0:
        raise ValueError(f"config.json: partial_rotary_factor is {share}, expected 1: all channels turn.")
    theta = number(given, "rope_theta", theta)
    if name == "default":
        return Rope(theta)
    factor = number(given, "factor", 1.0)
    if name == "linear":
        return Rope(theta, name, factor)
    original = size(given, "original_max_position_embeddings", values.get("max_position_embeddings"))
    low, high = number(given, "low_freq_factor", 1.0), number(given, "high_freq_factor", 4.0)
    return Rope(theta, name, factor, low, high, original)


def _windows(values: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """How far each layer sees."""
    family = values["model_type"]
    window = values.get("sliding_window", 4096 if family in ("mistral", _GEMMA) else None)
    if family == "llama" or (family.startswith("qwen") and not values.get("use_sliding_window")):
        window = None
    if window is None:
        return (None,) * layers
    window = size(values, "sliding_window", 4096)
    if family == "mistral":
        return (window,) * layers
    kinds = values.get("layer_types")
    if kinds is None and family == _GEMMA:
        key = "sliding_window_pattern" if "sliding_window_pattern" in values else "_sliding_window_pattern"
        every = size(values, key, 6)
        kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    elif kinds is None:
        first = number(values, "max_window_layers", 28)
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise ValueError(
            f"config.json: layer_types is {kinds!r:.200}, expected sliding_attention or full_attention for "
            f"each of {layers} layers."
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def write(module: Decoder, values: Mapping[str, Any]) -> tuple[Decoder, dict[str, Any], list[str]]:
    """The config.json of a module whose layers have one size, and the module as it is stored.

    Raises:
      ValueError: sizes that no family has.
    """
    new, notes = dict(values), []
    (groups,), (queries,), (hidden,) = (
        {*row} for row in (module.kv_groups, module.group_heads, module.hidden)
    )
    form, heads = module.form, groups * queries
    if new["model_type"] == "llama" and module.width % heads and not (form.qkv_bias or form.mlp_bias):
        for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
            new.pop(key, None)
        new |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
        notes.append(
            f"written as mistral, which is the same function: a llama's hidden_size ({module.width}) is a "
            f"multiple of its num_attention_heads ({heads})"
        )
    elif new["model_type"] in ("llama", _GEMMA) and module.width % heads:
        groups, queries = _divisible(module.width, groups, queries)
        notes.append(f"{heads} heads are padded with zeros to {groups * queries}, which divide hidden_size")
    count, heads = len(module.windows), groups * queries
    sizes = {
        "vocab_size": module.vocabulary,
        "hidden_size": module.width,
        "intermediate_size": hidden,
        "num_hidden_layers": count,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": form.head_dim,
    }
    implied = {"head_dim": _HEAD_DIM.get(new["model_type"], module.width // heads)}
    if new["model_type"] == "llama":
        implied["num_key_value_heads"] = heads
    # A key that is absent, and implied, stays absent: the file of an unchanged network is unchanged.
    new |= {key: n for key, n in sizes.items() if new.get(key) is not None or implied.get(key) != n}
    if new["model_type"] in ("qwen2", "qwen3", _GEMMA) and count != values["num_hidden_layers"]:
        kinds = ["full_attention" if window is None else "sliding_attention" for window in module.windows]
        new["layer_types"] = kinds
    if new["model_type"] == _GEMMA and form.embedding_scale != module.width**0.5:
        # A Gemma scales embeddings by the root of its width; a narrower one keeps the scale of the whole.
        form = dataclasses.replace(form, embedding_scale=module.width**0.5)
        notes.append("the embeddings and the final norm carry the embedding scale of the wider network")
    return module.clone(form=form, kv_groups=(groups,) * count, group_heads=(queries,) * count), new, notes


def _divisible(width: int, groups: int, queries: int) -> tuple[int, int]:
    """The fewest groups and query heads, not fewer than given, whose product divides the width."""
    most = _MOST * groups * queries
    pairs = [
        (k, g) for k in range(groups, most + 1) for g in range(queries, most // k + 1) if width % (k * g) == 0
    ]
    if not pairs:
        raise ValueError(
            f"A width of {width} and {groups * queries} heads can't be written: this family needs a multiple "
            f"of its heads, and no number of them up to {most} divides the width. Offer widths that are "
            f"multiples of {groups * queries}."
        )
    return min(pairs, key=lambda pair: pair[0] * pair[1])
