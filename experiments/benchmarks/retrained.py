"""Times of a training step and of inference of the networks that were retrained in a workdir, all in turn.

  python -m experiments.benchmarks.retrained --config=wikitext2_small --workdir=runs/par \\
      --base=interleaved --out=retrained.json

One network of each architecture, for any task; ratios of medians to the network that --base names.
"""

from __future__ import annotations

import json
from typing import Any

import jax
from absl import flags

import jaxnas
from experiments import binary
from experiments.configs import CONFIGS
from jaxnas import files, runs
from jaxnas.latency import median_times
from jaxnas.report import result


def main() -> None:
    config, path = binary.read_config(CONFIGS, trains=False)
    networks: dict[str, Any] = {}
    seen = set()
    for folder in sorted(path.glob("retrained/*/subnet")):
        found = result.read(folder.parent).found
        if (architecture := json.dumps(found.architecture)) not in seen:
            seen.add(architecture)
            networks[found.name] = folder
    base = flags.FLAGS.base or next(iter(networks), None)
    if base not in networks:
        raise ValueError(
            f"{path}/retrained has no network {base!r}, only {list(networks)}. First run experiments.retrain."
        )
    session = binary.bring_to_life(config)
    task, calls = session.task.whole(), {}
    for name, folder in networks.items():
        net, _ = jaxnas.load_subnet(folder, module=type(session.net))
        timed, _ = runs.timed_calls(task, net, config.alone, session.mesh)
        calls |= {(name, kind): call for kind, call in timed.items()}
    times = median_times(calls, warmup=2, repeats=flags.FLAGS.repeats)
    width, record = max(map(len, networks)), []
    print(f"{'network':{width}}  training step   ratio    inference   ratio")
    for name in networks:
        line: dict[str, Any] = {"network": name, "device": jax.devices()[0].device_kind}
        text = f"{name:{width}}"
        for kind in ("train", "infer"):
            seconds, ratio = times[name, kind], times[name, kind] / times[base, kind]
            line |= {f"{kind}_ms": 1e3 * seconds, f"{kind}_ratio": ratio}
            text += f"  {1e3 * seconds:8.1f} ms  {ratio:6.2f}"
        record.append(line)
        print(text, flush=True)
    if flags.FLAGS.out:
        files.write_json(flags.FLAGS.out, record)


if __name__ == "__main__":
    binary.define_flags(CONFIGS)
    flags.DEFINE_string("base", None, "The network that others are compared with; by default the first.")
    flags.DEFINE_integer("repeats", 15, "Timed calls of each.")
    flags.DEFINE_string("out", None, "A JSON file for the figures.")
    binary.run(main)
