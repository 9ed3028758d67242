"""Time, compile time and memory of a supernet, relative to the networks that it contains.

  python -m benchmarks.elastic --space=tiny --out=elastic_tiny.json
  python -m benchmarks.elastic --space=wide --architectures=8 --repeats=7
  python -m benchmarks.elastic --dtype=bfloat16 --batch=256 --form=masked

For each sampled architecture the program times the supernet in both forms, the extracted network compiled
alone and, with PyTorch installed, a plain PyTorch network of the same sizes (bfloat16 uses automatic mixed
precision). It times the forward pass, the gradient, and one of four steps of gradient descent in one call:
on CPUs XLA asks the system for memory in every call and PyTorch does not, so PyTorch's column of steps is
its gradient. Preloading an allocator that keeps memory (`LD_PRELOAD=libtcmalloc_minimal.so.4`) has the same
effect on single calls. On a GPU switches compile for minutes; `--form=masked` skips them.
Forms alternate in one process, except that the masked form runs after the others. The table shows medians
over repeats, as ratios to the extracted network averaged over architectures. Compile times are those of a
process that has compiled nothing before.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

import jaxnas
from jaxnas import files, spaces
from jaxnas.experiments import binary
from jaxnas.latency import median_times
from jaxnas.supernets import ViT

_SPACE = flags.DEFINE_enum("space", "tiny", ["tiny", "wide"], "AutoFormer-T, or widths of 1x to 4x.")
_ARCHITECTURES = flags.DEFINE_integer("architectures", 8, "Number of sampled architectures.")
_POPULATION = flags.DEFINE_integer("population", 64, "Architectures evaluated in one call; 0 for none.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls of each form for each architecture.")
_BATCH = flags.DEFINE_integer("batch", 8, "Number of images.")
_RELATIVE = flags.DEFINE_boolean("relative_positions", True, "2-D relative positions in K and V.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of architectures, weights and images.")
_ALL_KINDS, _ALL_FORMS = ["forward", "gradient", "steps"], ["switch", "masked"]
_KINDS = flags.DEFINE_multi_enum("kind", _ALL_KINDS, _ALL_KINDS, "Timed passes.")
_FORMS = flags.DEFINE_multi_enum("form", _ALL_FORMS, _ALL_FORMS, "Forms of the supernet.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Computation dtype.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")
_TORCH = flags.DEFINE_boolean("torch", True, "Time PyTorch too, if it is installed.")


_STEPS = 4  # in one call, for the kind "steps"


def make_space(name: str) -> jaxnas.Space:
    """AutoFormer-T's space, or one whose widths and heads span a factor of four."""
    if name == "tiny":
        return spaces.autoformer("tiny")
    return spaces.vit((96, 192, 288, 384), (6, 9, 12), (2, 4, 6, 8), (1.0, 2.0, 4.0))


def compiled(fn: Callable, *args: Any) -> tuple[Callable, dict[str, float]]:
    """Compiles ahead of time; returns the program, its compile seconds and megabytes of buffers."""
    jax.clear_caches()  # what was traced for one network is not there for the next: each is the first
    start = time.perf_counter()
    program = jax.jit(fn).lower(*args).compile()
    seconds = time.perf_counter() - start
    # In a cast: the analysis is None only on platforms that have none.
    memory = cast(Any, program.memory_analysis())
    return program, {"seconds": seconds, "megabytes": memory.temp_size_in_bytes / 1e6}


def measure() -> dict[str, Any]:
    """Runs the benchmark and returns what goes into the JSON file."""
    keys, kinds = jax.random.split(jax.random.key(_SEED.value), 4), _KINDS.value
    space = make_space(_SPACE.value)
    common: dict[str, Any] = dict(image_size=224, patch_size=16, num_classes=1000)
    common["max_relative_position"] = 14 if _RELATIVE.value else 0
    common["dtype"] = jnp.dtype(_DTYPE.value)
    nets = {form: ViT(space, **common | {"form": form}) for form in _FORMS.value}
    net = nets[_FORMS.value[0]]
    shape = (_BATCH.value, 224, 224, 3)
    params = jaxnas.init(net, keys[0], shape)["params"]
    images = jax.random.normal(keys[1], shape)
    labels = jax.random.randint(keys[2], shape[:1], 0, 1000)
    archs = [space.sample(key) for key in jax.random.split(keys[3], _ARCHITECTURES.value)]

    def forward_of(net: Any) -> Callable:
        return lambda params, images, *arch: net.apply({"params": params}, images, *arch)

    def gradient_of(apply: Callable) -> Callable:
        def loss(params: Any, images: Any, *arch: Any) -> jax.Array:
            chosen = jax.nn.log_softmax(apply(params, images, *arch))
            return -jnp.mean(jnp.take_along_axis(chosen, labels[:, None], axis=1))

        return jax.grad(loss)

    def steps_of(apply: Callable) -> Callable:
        gradient = gradient_of(apply)

        def steps(params: Any, images: Any, *arch: Any) -> Any:
            def one(_: jax.Array, params: Any) -> Any:
                gradients = gradient(params, images, *arch)
                return jax.tree.map(lambda x, slope: x - 1e-6 * slope, params, gradients)

            return lax.fori_loop(0, _STEPS, one, params)

        return steps

    # First: compiling takes longer in a process that has compiled, or run, large programs.
    made = {"forward": lambda form: form, "gradient": gradient_of, "steps": steps_of}
    networks = []
    for arch in archs:
        small, variables, _ = jaxnas.extract(net, {"params": params}, arch, inputs=shape)
        small_params = variables["params"]
        forward = forward_of(small)
        programs_of = {
            kind: compiled(made[kind](forward), small_params, images) for kind in kinds if kind != "steps"
        }
        networks.append((forward, small_params, programs_of))

    forms = {name: forward_of(one) for name, one in nets.items()}
    programs: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    compiling: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    for name, kind in ((name, kind) for name in forms for kind in kinds):
        program, cost = compiled(made[kind](forms[name]), params, images, archs[0])
        programs[kind][name], compiling[kind][name] = program, cost
        print(f"compiled {name} {kind}: {cost['seconds']:.1f} s", flush=True)
    for forward, small_params, extracted in networks if "steps" in kinds else ():
        extracted["steps"] = compiled(steps_of(forward), small_params, images)

    rows = []
    for number, (arch, (_, small_params, extracted)) in enumerate(zip(archs, networks, strict=True)):
        row: dict[str, Any] = {"architecture": space.to_dict(arch)}
        for kind, (program, cost) in extracted.items():
            calls: dict[str, Callable[[], Any]] = {
                name: functools.partial(supernet, params, images, arch)
                for name, supernet in programs[kind].items()
            }
            calls["extracted"] = functools.partial(program, small_params, images)
            torch_kind = "gradient" if kind == "steps" else kind
            torch_call = _torch_call(space, arch, torch_kind) if _TORCH.value else None
            if torch_call is not None:
                calls["pytorch"] = torch_call
            # Apart: its memory, several times that of the others, slows what runs next.
            alone = calls.pop("masked", None)
            row[kind] = median_times(calls, warmup=1, repeats=_REPEATS.value)
            if alone is not None:
                row[kind] |= median_times({"masked": alone}, warmup=1, repeats=_REPEATS.value)
            if kind == "steps":
                row[kind] = {n: t if n == "pytorch" else t / _STEPS for n, t in row[kind].items()}
            row[f"{kind}_compile"] = cost
        rows.append(row)
        shown = {k: {n: round(1e3 * t, 1) for n, t in row[k].items()} for k in programs}
        print(f"architecture {number}: {shown} ms", flush=True)

    result = {
        "space": _SPACE.value,
        "batch": _BATCH.value,
        "relative_positions": _RELATIVE.value,
        "dtype": _DTYPE.value,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "preloaded": os.environ.get("LD_PRELOAD", ""),
        "compile": compiling,
        "rows": rows,
        "ratios": ratios(rows),
    }
    write(result)  # the population takes long; what there is so far is safe
    if _POPULATION.value:
        print(show(result), flush=True)
        forwards = [(extracted["forward"][0], small_params) for _, small_params, extracted in networks]
        result["population"] = population(forward_of(net), params, images, archs, forwards)
        write(result)
    return result


def write(result: dict[str, Any]) -> None:
    """Writes the JSON file, if one was asked for."""
    if _OUT.value:
        files.write_json(_OUT.value, result)


def population(apply: Callable, params: Any, images: Any, archs: list, extracted: list) -> dict[str, Any]:
    """Seconds to evaluate a population: as a map, as a vmap over masks, and one by one extracted."""
    copies = max(_POPULATION.value // len(archs), 1)
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves * copies), *archs)
    chunk_size = math.gcd(copies * len(archs), 8)

    def mapped(params: Any, images: Any, batch: Any) -> jax.Array:
        return lax.map(lambda arch: apply(params, images, arch), batch)

    def vmapped(params: Any, images: Any, batch: Any) -> jax.Array:
        one = jax.vmap(apply, (None, None, 0))
        chunks = jax.tree.map(lambda x: x.reshape(-1, chunk_size, *x.shape[1:]), batch)
        return lax.map(lambda chunk: one(params, images, chunk), chunks)

    calls: dict[str, Callable[[], Any]] = {}
    for name, fn in (("map", mapped), ("vmap of masks", vmapped)):
        program, _ = compiled(fn, params, images, batch)
        calls[name] = lambda p=program: p(params, images, batch)

    def one_by_one() -> list:
        return [program(small, images) for program, small in extracted * copies]

    calls["extracted"] = one_by_one
    seconds = median_times(calls, warmup=1, repeats=3)
    return {"architectures": copies * len(archs), "seconds": seconds}


def ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean over architectures of each form's time over the extracted network's."""
    means: dict[str, dict[str, float]] = {}
    for kind in _KINDS.value:
        names = [name for name in rows[0][kind] if name != "extracted"]
        means[kind] = {
            name: float(np.mean([row[kind][name] / row[kind]["extracted"] for row in rows])) for name in names
        }
        compared = [name for name in names if name in _FORMS.value] if "pytorch" in names else []
        for name in compared:
            quotients = [row[kind][name] / row[kind]["pytorch"] for row in rows]
            means[kind][f"{name} over pytorch"] = float(np.mean(quotients))
    return means


def _torch_call(space: Any, arch: Any, kind: str) -> Callable[[], Any] | None:
    """Forward or gradient of a plain PyTorch network of the same sizes; None without PyTorch."""
    try:
        from benchmarks.torch_vit import timing_call
    except ImportError:
        return None
    values = space.to_dict(arch)
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    return timing_call(values, _BATCH.value, kind, _DTYPE.value, device, relative_positions=_RELATIVE.value)


def show(result: dict[str, Any]) -> str:
    """The table that is printed."""
    lines = [f"{result['space']} space, batch {result['batch']}, {result['device']}, ratios to extracted"]
    extracted = {k: [row[f"{k}_compile"] for row in result["rows"]] for k in _KINDS.value}
    for kind, means in result["ratios"].items():
        base = statistics.mean(row[kind]["extracted"] for row in result["rows"])
        compile_base = statistics.mean(cost["seconds"] for cost in extracted[kind])
        memory_base = statistics.mean(cost["megabytes"] for cost in extracted[kind])
        lines.append(
            f"{kind}: extracted {1e3 * base:.1f} ms, compile {compile_base:.1f} s, {memory_base:.0f} MB"
        )
        for name, mean in means.items():
            cost = result["compile"][kind].get(name)
            more = (
                ""
                if cost is None
                else (
                    f"  compile {cost['seconds'] / compile_base:5.2f} x"
                    f"  memory {cost['megabytes'] / memory_base:5.2f} x"
                )
            )
            lines.append(f"  {name:24s} {mean:5.2f} x{more}")
    if "population" in result:
        seconds = result["population"]["seconds"]
        lines.append(f"population of {result['population']['architectures']}, forward")
        for name, value in seconds.items():
            lines.append(f"  {name:24s} {value / seconds['extracted']:5.2f} x  {value:.2f} s")
    return "\n".join(lines)


def main() -> None:
    print(show(measure()))


if __name__ == "__main__":
    binary.run(main)
