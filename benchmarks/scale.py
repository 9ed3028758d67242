"""Memory, communication and time of a training step on many devices, by a compiler and without the devices.

  python -m benchmarks.scale --platform=cpu --devices=8,64 --size=base --batch=4096
  python -m benchmarks.scale --platform=tpu --devices=8,64,256 --size=base --batch=4096

Compiles the step of an AutoFormer supernet ahead of time, for simulated CPU devices or, with `pip install
'.[tpu]'` and no TPU, for slices of TPU v5e by the TPU's own compiler. For each number of devices it prints
the memory of a device, the bytes that it communicates in a step by kind of collective, and bounds on the
step's time from the chip's published figures: products at full speed, communication at full speed, and the
efficiency if neither hides the other. All are of the largest architecture.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import Any

# Read when the compiler is loaded: a slice without its hosts.
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from jax.experimental import topologies
from jax.sharding import Mesh

import jaxnas
from benchmarks.collectives import communicated
from jaxnas import files, recipes, spaces, supernets, tasks, training
from jaxnas.experiments import binary
from jaxnas.training.mesh import rows_of
from jaxnas.training.step import Setup, abstract_state, make_step

_PLATFORM = flags.DEFINE_enum("platform", "cpu", ["cpu", "tpu"], "Compiler; tpu needs libtpu.")
_DEVICES = flags.DEFINE_list("devices", ["8"], "Numbers of devices.")
_MODEL = flags.DEFINE_integer("model_devices", 1, "Devices that share each parameter.")
_SIZE = flags.DEFINE_enum(
    "size", "base", ["toy", "tiny", "small", "base"], "AutoFormer's space; toy is for tests."
)
_BATCH = flags.DEFINE_integer("batch", 4096, "Images per step, over all devices.")
_REMAT = flags.DEFINE_boolean("remat", False, "Recompute layers in the backward pass.")
_EXTRACTED = flags.DEFINE_boolean(
    "extracted", False, "The largest architecture alone instead of the supernet."
)
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")

TOPOLOGIES = {
    8: ("v5e:2x4", 1),
    64: ("v5e:8x8", 1),
    256: ("v5e:16x16", 1),
    1024: ("v5e:16x16", 4),  # the largest slice has 256 chips
}


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published figures of a chip."""

    flops: float  # a second, in bfloat16
    link: float  # bytes a second that a chip exchanges with its neighbors, all links together


# Google Cloud's page of TPU v5e: 197 TFLOP/s, 1,600 Gbit/s between chips.
V5E = Chip(flops=197e12, link=1600e9 / 8)


@dataclasses.dataclass(frozen=True)
class Shapes(tasks.Task):
    """ImageNet by its shapes: no data."""

    name = "imagenet"
    examples = "images"
    metrics = ()
    inputs = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    sizes = {}

    def batches(self, role, batch_size, seed, shard=(0, 1)):
        raise NotImplementedError("there are shapes only")

    def evaluation(self, role, batch_size, limit):
        raise NotImplementedError("there are shapes only")

    def preprocess(self, batch):
        return batch["image"].astype(jnp.float32) / 255

    def loss(self, call):
        logits = call.apply(self.preprocess(call.batch)).astype(jnp.float32)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, call.batch["label"])
        return jnp.mean(loss), (call.carry, {})


def devices_of(count: int) -> list:
    """The devices that a program is compiled for."""
    if _PLATFORM.value == "cpu":
        return jax.devices()[:count]
    if count not in TOPOLOGIES:
        raise ValueError(
            f"--devices has {count}; slices of TPU v5e have {', '.join(map(str, TOPOLOGIES))} chips."
        )
    name, slices = TOPOLOGIES[count]
    more = {} if slices == 1 else {"num_slices": slices}
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **more).devices


def compile_step(net: supernets.ViT, mesh: Mesh) -> jax.stages.Compiled:
    """The training step for one batch, with AdamW."""
    task, settings = Shapes(), training.Training(steps=1000, batch_size=_BATCH.value)
    recipe = recipes.Uniform() if net.space.cardinality > 1 else recipes.Fixed()
    setup = Setup(task, net, settings, recipe, mesh, settings.optimizer())
    state = abstract_state(setup)
    batch = {
        "image": jax.ShapeDtypeStruct((_BATCH.value, 224, 224, 3), jnp.uint8, sharding=rows_of(mesh)),
        "label": jax.ShapeDtypeStruct((_BATCH.value,), jnp.int32, sharding=rows_of(mesh)),
    }
    jitted: Any = make_step(setup, state)
    return jitted.lower(state, {"train": batch}).compile()


def main() -> None:
    counts = [int(count) for count in _DEVICES.value]
    if _PLATFORM.value == "cpu":
        jax.config.update("jax_num_cpu_devices", max(counts))
    toy = spaces.vit((32, 64), (1, 2), (1, 2), (1.0, 2.0))
    space = toy if _SIZE.value == "toy" else spaces.autoformer(_SIZE.value)
    if _EXTRACTED.value:
        space = space.fix(space.largest())
    net = supernets.ViT(
        space,
        image_size=224,
        patch_size=16,
        num_classes=1000,
        dtype=jnp.bfloat16,
        remat=_REMAT.value,
    )
    macs = float(jaxnas.cost(net, Shapes.inputs)(net.space.largest())["macs"])
    rows = []
    for count in counts:
        mesh = Mesh(np.asarray(devices_of(count)).reshape(-1, _MODEL.value), ("data", "model"))
        begun = time.perf_counter()
        compiled = compile_step(net, mesh)
        seconds = time.perf_counter() - begun
        memory: Any = compiled.memory_analysis()
        collectives = communicated(compiled.as_text() or "")
        # Forward, and twice that backward; a product and a sum for each multiply-accumulate.
        compute = 6 * macs * _BATCH.value / count / V5E.flops
        # In a ring each device sends what it has to sum nearly twice, and what it gathers once.
        exchanged = sum((1 + (kind == "all-reduce")) * size for kind, (size, _) in collectives.items())
        exchange = exchanged / V5E.link
        rows.append(
            {
                "devices": count,
                "compile_s": round(seconds, 1),
                "arguments_GiB": memory.argument_size_in_bytes / 2**30,
                "temporary_GiB": memory.temp_size_in_bytes / 2**30,
                "collectives": {
                    kind: {"MB": size / 1e6, "count": n} for kind, (size, n) in collectives.items()
                },
                "compute_ms": 1e3 * compute,
                "communication_ms": 1e3 * exchange,
                "efficiency": compute / (compute + exchange),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if _OUT.value:
        files.write_json(_OUT.value, {"flags": {"size": _SIZE.value, "batch": _BATCH.value}, "rows": rows})


if __name__ == "__main__":
    binary.run(main)
