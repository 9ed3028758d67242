"""Public networks as supernets: groups, exactness, and the time of analysis, compilation and calls.

  python -m benchmarks.networks --batch=8
  python -m benchmarks.networks --networks=llama --repeats=9

Each group has half of its size and its full size as options. The difference is that of the smallest and of a
random architecture from their extracted networks, relative to the largest output. Times of compilation and
of calls are those of the gradient over those of the plain network, medians over repeats in turn; of the
supernet for the random architecture, whose share of the products is the last column. Needs equimo.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import equimo.models.convnext as convnext
import equimo.models.vit as vit
import jax
import jax.numpy as jnp
from absl import flags

import jaxnas
from jaxnas import Choice
from jaxnas.experiments import binary
from jaxnas.hf.decoder import Decoder, Form, Rope
from jaxnas.latency import median_times

KEY = jax.random.key(0)


_BATCH = flags.DEFINE_integer("batch", 8, "Rows of a batch.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Timed calls of each.", lower_bound=1)


def _llama() -> Decoder:
    form = Form(head_dim=32, rope=Rope(theta=1e4), attention_scale=32**-0.5)
    return Decoder(form, 1024, 256, (4,) * 4, (2,) * 4, (768,) * 4, (None,) * 4)


NETWORKS: dict[str, Callable[[], Any]] = {
    "vit": lambda: vit.VisionTransformer(32, 3, 192, 4, 6, [6], num_classes=10, key=KEY),
    "convnext": lambda: convnext.ConvNeXt(
        3, depths=[2, 2], dims=[48, 96], num_classes=10, layer_scale_init_value=0.1, key=KEY
    ),
    "llama": _llama,
}
_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), f"Of {', '.join(NETWORKS)}.")


def inputs_of(name: str) -> jax.Array:
    """Random images or tokens."""
    if name == "llama":
        return jax.random.randint(KEY, (_BATCH.value, 64), 0, 1024)
    return jax.random.normal(KEY, (_BATCH.value, 3, 32, 32))


def compiled(call: Callable[..., Any], *arguments: Any) -> tuple[Callable[[], Any], float]:
    """The gradient of the sum of a function of (variables, ...), and the seconds of its compilation."""

    def total(params: Any, others: Any, *more: Any) -> jax.Array:
        return call({**others, "params": params}, *more).astype(jnp.float32).sum()

    variables, *more = arguments
    given = variables["params"], {k: x for k, x in variables.items() if k != "params"}, *more
    begun = time.perf_counter()
    program = jax.jit(jax.grad(total, allow_int=True)).lower(*given).compile()
    return lambda: program(*given), time.perf_counter() - begun


def measured(name: str) -> str:
    """The row of a network."""
    inputs, model = inputs_of(name), NETWORKS[name]()
    variables = model.init(KEY, inputs) if name == "llama" else None
    begun = time.perf_counter()
    groups = jaxnas.analyze(model, variables, inputs)
    seconds = time.perf_counter() - begun
    variables = groups.model.variables
    halves = {
        one.name: Choice(one.size // 2, one.size)
        for one in groups
        if one.kind not in ("kernel", "head_dim", "value_dim")
    }
    calls, compiling, errors = {}, {}, []
    calls["plain"], compiling["plain"] = compiled(
        lambda v, x: groups.model.call(v, x, KEY, False)[0], variables, inputs
    )
    share = 0.0
    for form in ("masked", "switch"):
        net = jaxnas.supernet(groups, halves, form=form, verify=False)
        cost, arch = jaxnas.cost(net, inputs), net.space.sample(jax.random.key(1))
        share = float(cost(arch)["macs"] / cost(net.space.largest())["macs"])
        calls[form], compiling[form] = compiled(net.apply, variables, inputs, arch)
        small = [jaxnas.extract(net, variables, one, verify=inputs) for one in (net.space.smallest(), arch)]
        errors += [one.error for one in small]
    calls["extracted"], _ = compiled(small[-1].net.apply, small[-1].variables, inputs)
    times = median_times(calls, warmup=1, repeats=_REPEATS.value)
    axes = sum(len(one.places) for one in groups)
    cells = [name, str(len(groups)), str(axes), f"{max(errors):.0e}", f"{seconds:.2f} s"]
    cells += [f"{compiling[form] / compiling['plain']:.1f}" for form in ("masked", "switch")]
    cells += [f"{times[form] / times['plain']:.2f}" for form in ("masked", "switch", "extracted")]
    return " | ".join(["", *cells, f"{share:.2f}", ""]).strip()


def main() -> None:
    head = (
        "network groups axes difference analysis compile,masked compile,switch masked switch extracted share"
    )
    print("| " + " | ".join(head.split()) + " |", flush=True)
    for name in _NETWORKS.value:
        print(measured(name), flush=True)


if __name__ == "__main__":
    binary.run(main)
