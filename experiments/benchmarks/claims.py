"""A picture of AutoFormer's claims, of runs that the binaries and `inherited` have made.

  python -m experiments.benchmarks.claims --workdirs=runs/small0,runs/small1 --out=docs/claims.png

Three panels: the same random architectures with the weights of each supernet; the found network
with inherited weights, fine-tuned and from scratch; and the best score so far of evolution and random search.
Each colour is a run of its own.
"""

from __future__ import annotations

import pathlib

import numpy as np
from absl import flags
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments import binary
from jaxnas import files
from jaxnas.report import result

_WORKDIRS = flags.DEFINE_list("workdirs", None, "Workdirs that were searched and retrained.", required=True)
_METRIC = flags.DEFINE_string("metric", "accuracy", "What is drawn, a share of one.")
_OUT = flags.DEFINE_string("out", None, "PNG file to write.", required=True)


def draw_inherited(panel: Axes, workdirs: list[pathlib.Path]) -> None:
    """Draws inherited.json of each run beside the others."""
    for place, workdir in enumerate(workdirs):
        scores = 100 * np.asarray(files.read_json(workdir / "inherited.json"))
        across = place + np.linspace(-0.3, 0.3, len(scores))  # apart, in no meaningful order
        panel.plot(across, scores, "o", color=f"C{place}", markersize=2.5)
        panel.plot([place - 0.4, place + 0.4], [scores.mean()] * 2, color="black")
    panel.set_xticks([])
    panel.set_title("random architectures, inherited weights\n(search images; lines are means)", fontsize=9)


def draw_found(panel: Axes, workdirs: list[pathlib.Path]) -> None:
    """Draws the test figures of the found network in its three forms."""
    names = ("inherited", "fine-tuned", "from scratch")
    for number, workdir in enumerate(workdirs):
        alone = (next((workdir / "retrained").glob(f"found-{form}-*")) for form in ("inherited", "scratch"))
        forms = [workdir, *alone]
        values = [result.read(form).found.metrics["test"][_METRIC.value] or np.nan for form in forms]
        panel.plot(range(3), 100 * np.asarray(values), "o-", color=f"C{number}", markersize=4, linewidth=1)
    panel.set_xticks(range(3), names)
    panel.set_title("the found network (test images)", fontsize=9)


def draw_searches(panel: Axes, workdirs: list[pathlib.Path]) -> None:
    """Draws the best score so far of both searches against evaluations."""
    kinds = {"evolution": ("evolution", "-"), "random": ("random search", "--")}
    for number, workdir in enumerate(workdirs):
        lines = files.read_lines(workdir / "search" / "history.jsonl", ("strategy", "score"))
        for strategy, (label, style) in kinds.items():
            scores = [one["score"] for one in lines if one["strategy"] == strategy]
            best = 100 * np.maximum.accumulate(np.asarray(scores))
            (line,) = panel.plot(1 + np.arange(len(best)), best, style, color=f"C{number}", linewidth=1)
            if number == 0:
                line.set_label(label)
    panel.legend(fontsize=8)
    panel.set_xlabel("evaluations", fontsize=9)
    panel.set_title("best so far (search images)", fontsize=9)


def main() -> None:
    """Writes the picture."""
    workdirs = [pathlib.Path(one) for one in _WORKDIRS.value]
    figure = Figure(figsize=(10, 3.4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    draw_inherited(left, workdirs)
    draw_found(middle, workdirs)
    draw_searches(right, workdirs)
    left.set_ylabel(f"{_METRIC.value}, %", fontsize=9)
    figure.savefig(_OUT.value)


if __name__ == "__main__":
    binary.run(main)
