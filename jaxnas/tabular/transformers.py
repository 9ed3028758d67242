"""Tables of language models: HW-GPT-Bench (arXiv 2405.10299) and LiteTransformerSearch (2203.02094)."""

from collections.abc import Mapping

import numpy as np

from jaxnas.choice import Choice
from jaxnas.space import Space
from jaxnas.tabular.table import Table, from_arrays

HWGPT = "hwgpt/hwgpt_s.npz"
LTS = {
    f"lts_{stem.lower()}": f"lts_transformer/random_{stem}.npz"
    for stem in ("GPT2_wt103", "GPT2_lm1b", "TransXL_wt103", "TransXL_lm1b", "TransXL_wt103_homogeneous")
}


def _layers(
    arrays: Mapping[str, np.ndarray], plain: tuple[str, ...], layered: tuple[str, ...]
) -> tuple[dict[str, Choice], dict[str, np.ndarray]]:
    """Choices of the values seen, and the rows as a batch of architectures.

    Beyond `n_layer` a row has zeros, which are no options: inactive elements are 0 as an index.
    """
    active = np.arange(arrays[layered[0]].shape[1]) < arrays["n_layer"][:, None]
    choices, archs = {}, {}
    for name in (*plain, *layered):
        values = arrays[name].astype(np.int64)
        options = np.unique(values[active] if name in layered else values)
        choices[name] = Choice(*options.tolist())
        if name in layered:
            choices[name] = choices[name].repeat(values.shape[1], active="n_layer")
            values = np.where(active, values, options[0])
        archs[name] = np.searchsorted(options, values).astype(np.int32)
    return choices, archs


def hwgpt(name: str, arrays: Mapping[str, np.ndarray]) -> Table:
    """Makes the table of GPT-s on OpenWebText: 10,000 of about 10**12 architectures.

    Metrics:
      perplexity, accuracy (of the next token): with the shared weights of a supernet, not trained
        alone; perplexity_surrogate: as the benchmark's network predicts it.
      params (millions), flops (millions, as the file counts them).
      latency_<device> (ms), energy_<device>, mean_energy_<device> (as the file gives them),
        memory_<device> (MB). Energies that the file has as 0 in all rows are left out.
    """
    choices, archs = _layers(arrays, ("embed_dim", "n_layer"), ("mlp_ratio", "n_head"))
    choices["bias"] = Choice("no", "yes")
    archs["bias"] = arrays["bias"].astype(np.int32)
    metrics = {
        "perplexity": arrays["perplexity"],
        "accuracy": arrays["accuracy"],
        "perplexity_surrogate": arrays["perplexity_surrogate"],
        "params": arrays["params"] / 1e6,
        "flops": arrays["flops_a100cfg"] / 1e6,
    }
    for key, values in arrays.items():
        kind, _, device = key.replace("mem_", "mem.").partition(".")
        device, _, what = device.partition(".")
        if kind == "energy" and values.any():
            metrics[f"{'mean_' * what.startswith('mean')}energy_{device}"] = values
        elif kind in ("lat", "mem"):
            metrics[f"{'latency' if kind == 'lat' else 'memory'}_{device}"] = values
    objectives = {key: "max" if key == "accuracy" else "min" for key in metrics}
    return from_arrays(name, Space(**choices), archs, metrics, objectives)


def lts(name: str, arrays: Mapping[str, np.ndarray]) -> Table:
    """Makes the table of language models that were each trained alone.

    The options are the values seen in the file; `d_embed` is a choice where it is not the same in
    all rows or equal to `d_model`, and `div_val` where it varies.

    Metrics: validation_perplexity, test_perplexity (on lm1b the file has the same for both),
    params, params_embedding, params_attention, params_ffn, params_nonembedding (millions),
    training_seconds. At most three rows of a table have no results: NaN.
    """
    varies = len(np.unique(arrays["d_embed"])) > 1
    plain = ["n_layer", "d_model"]
    if varies and not np.array_equal(arrays["d_embed"], arrays["d_model"]):
        plain.append("d_embed")
    if len(np.unique(arrays["div_val"])) > 1:
        plain.append("div_val")
    choices, archs = _layers(arrays, tuple(plain), ("n_head", "d_inner"))
    parts = (
        ("params", "total"),
        ("params_embedding", "AdaEmb"),
        ("params_attention", "Attn"),
        ("params_ffn", "FFN"),
        ("params_nonembedding", "nonembedding"),
    )
    metrics = {
        "validation_perplexity": arrays["valid_ppl"],
        "test_perplexity": arrays["test_ppl"],
        **{key: arrays[f"params.{part}"] / 1e6 for key, part in parts},
        "training_seconds": arrays["train_elapsed"],
    }
    return from_arrays(name, Space(**choices), archs, metrics, dict.fromkeys(metrics, "min"))
