"""Assessment of a result, and the next steps; commands that repeat or resume a run."""

from __future__ import annotations

import itertools
import shlex
import statistics

from jaxnas.report import findings, words
from jaxnas.report.findings import Run

LINEAR = "linear model (logistic regression)"
# Where `result.config` has what the command line asked for.
CONFIG, SET = "--config", "--set"


def commands(run: Run) -> list[str]:
    """The commands that make a run like this; [] if no config by its name did."""
    named = isinstance(run.result.config.get("name"), str)
    return [command(run, binary) for binary in (*_first(run), "retrain", "evaluate")] if named else []


def _first(run: Run) -> tuple[str, ...]:
    """The binaries up to the result; a checkpoint needs no supernet's training."""
    return ("search",) if run.result.loader and not run.metrics else ("train_supernet", "search")


def command(run: Run, binary: str, *more: str, workdir: str = "DIR") -> str:
    """The command of a binary on this run; `more` are flags, or assignments for --set.

    The binaries behind the first one find its assignments in the workdir, so only that repeats them.
    """
    config = run.result.config
    own = config.get(SET, ()) if binary == _first(run)[0] else ()
    # The last assignment of a field counts.
    last = {text.partition("=")[0].strip(): text for text in (*own, *more)}.values()
    parts = [f"--config={config.get(CONFIG, config.get('name'))}", f"--workdir={workdir}", *last]
    flags = [("" if one.startswith("--") else f"{SET} ") + shlex.quote(one) for one in parts]
    return f"jaxnas {binary} {' '.join(flags)}"


def still_improving(run: Run) -> float | None:
    """How much the training loss fell over its last fifth; 0 where it was flat, None where noise hides that.

    It was flat where 20 losses or more leave no room, within two standard errors, for a twentieth of its
    whole fall.
    """
    losses = [loss for _, loss in run.series("train", "loss")]
    half = max(2, len(losses) // 10)
    if len(losses) < 2 * half:
        return None
    before, after = losses[-2 * half : -half], losses[-half:]
    # A trend is the mean of the differences; their deviation is sqrt(2) times the noise's.
    noise = statistics.stdev(b - a for a, b in itertools.pairwise(losses[-2 * half :])) / half**0.5
    fall, whole = statistics.fmean(before) - statistics.fmean(after), max(losses) - losses[-1]
    if fall > max(3 * noise, 0.01 * whole):
        return 2 * fall
    return 0.0 if len(losses) >= 20 and 2 * (fall + 2 * noise) < 0.05 * whole else None


def advice(run: Run, workdir: str = "DIR") -> list[tuple[str, str]]:
    """The verdict on a result and next steps, each with its command, "" for none, and for runs in Python."""
    steps, settings = [], run.result.config.get("search")
    found, final, role = run.result.found, findings.final(run), run.final_role
    value, inherited = final.value(run.metric, role), run.value(found, role)

    def step(text: str, binary: str = "", *more: str, where: str = workdir) -> None:
        code = command(run, binary, *more, workdir=where) if binary and commands(run) else ""
        steps.append((text, code))

    linear = run.result.linear.get(role)
    if value is not None and linear is not None and run.sign * (value - linear) <= 0:
        ahead = words.amount_text(run.metric, value - linear)
        text = f"A {LINEAR} is better by {ahead}. First train for more steps or try another learning rate."
        if value == linear:
            text = f"A {LINEAR} is as good as this network: such data hardly tell networks apart."
        step(text)

    last = max((int(line["step"]) for line in run.metrics), default=0)
    if fall := still_improving(run):
        text = f"The training had not converged: its loss fell by {fall:.2g} at the end of {last:,} steps. "
        text += f"Try {2 * last:,} steps in a new workdir."
        step(text, "train_supernet", f"training.steps={2 * last}", where="NEW")
    elif fall is not None:
        text = f"The loss was flat over the last fifth of {last:,} steps. In a longer training the learning "
        step(f"{text}rate comes down later, which may still help.")

    if found.weights == "inherited" and final.network is found:
        text = "The weights are inherited. Training the network alone usually improves it (runs.retrain)."
        step(text, "retrain")
    elif found.weights == "inherited" and final.network.weights == "from scratch":
        if value is not None and inherited is not None and run.sign * (value - inherited) < 0:
            text = "Trained from scratch, the network is worse than with inherited weights. Fine-tune those."
            step(text, "retrain", "--weights=inherited")

    if run.result.searches and not run.result.replacements and isinstance(settings, dict):
        parts, given, method = [], [], settings.get("method") or {}
        if not method.get("finalists"):
            given += [*([] if method else ["search.method=strategy"]), "search.method.finalists=5"]
            parts.append("train the five best networks alone and take the best of them (finalists=5)")
        if run.result.ranking is None:
            given.append("search.ranked=10")
            parts.append("measure on ten networks how well the supernet ranks (ranked=10)")
        if parts:
            text = f"The search compared networks by inherited weights. To trust it, {words.listed(parts)}."
            step(text, "search", *given)
    return steps
