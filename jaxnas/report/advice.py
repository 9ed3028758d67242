"""Assessment of a result, and the next steps with their commands or calls."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from jaxnas.report import commands, networks, words
from jaxnas.report.commands import by_binaries, command
from jaxnas.report.read import Run


class Advice(NamedTuple):
    """A sentence on the result, and the code that follows from it; "" for none."""

    text: str
    code: str = ""


def still_improving(run: Run) -> float | None:
    """How much the training loss fell over the last fifth of the training, if that is more than its noise.

    Returns:
      The fall; 0 where the loss had settled; None where fewer than two losses were recorded.
    """
    points = run.series("train", "loss")
    if len(points) < 2:
        return None
    steps, losses = zip(*points, strict=True)
    last = min(len(points), max(3, len(points) // 5))
    line = statistics.linear_regression(steps[-last:], losses[-last:])
    span = steps[-1] - steps[-last]
    # Second differences leave nothing of a trend; their deviation is sqrt(6) times the noise's.
    bends = [abs(a - 2 * b + c) for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
    noise = statistics.median(bends) / 1.65 if bends else 0.0
    spread = statistics.pstdev(steps[-last:]) * last**0.5
    fall, whole = -line.slope * span, max(losses) - losses[-1]
    return fall if fall > max(2 * noise * span / spread, 0.02 * whole) else 0.0


def advice(run: Run, workdir: str = "DIR") -> list[Advice]:
    """The verdict on a result and next steps, most important first; commands name the workdir."""
    return [*_against_linear(run), *_convergence(run), *_alone(run, workdir), *_ranks(run, workdir)]


def _against_linear(run: Run) -> list[Advice]:
    lead, role = networks.lead_over_linear(run), run.final_role
    if lead is None or lead > 0:
        return []
    if lead == 0:
        return [Advice(f"A {words.LINEAR} is as good as this network: such data hardly tell networks apart.")]
    figure = words.value_text(run.metric, run.result.linear[role])
    text = (
        f"A {words.LINEAR} is better: {figure} {words.metric_name(run.metric, role)}, ahead by "
        f"{words.amount_text(run.metric, lead)}. First train for more steps or try another "
        "learning rate."
    )
    return [Advice(text)]


def _convergence(run: Run) -> list[Advice]:
    fall, steps = still_improving(run), commands.steps_of(run)
    if fall is None:
        return []
    if fall:
        text = f"The training had not converged: its loss fell by {fall:.2g} at the end of {steps:,} steps."
    elif (networks.lead_over_linear(run) or 0) < 0:  # a learning rate that falls to zero settles any loss
        text = f"The loss settled in the last fifth of {steps:,} steps, far from what the data give."
    else:
        return [
            Advice(f"The training converged: the loss did not fall over the last fifth of {steps:,} steps.")
        ]
    text += f" Try {2 * steps:,} steps in a new workdir:"
    code = (
        f"settings = {commands.training_call(run, 2 * steps)}\n"
        'trained = training.fit(task, net, settings, workdir="NEW")'
    )
    if by_binaries(run):
        code = command(run, "train_supernet", f"training.steps={2 * steps}", workdir="NEW")
    return [Advice(text, code)]


def _alone(run: Run, workdir: str) -> list[Advice]:
    found, (value, _, group) = run.result.found, networks.final(run)
    if found.weights != "inherited":
        return []
    text, name, given, more = (
        "The weights are inherited. Training the network alone usually improves it:",
        "found",
        "",
        "",
    )
    if group is not None:
        inherited = run.value(found, run.final_role)
        worse = value is not None and inherited is not None and run.sign * (value - inherited) < 0
        if not worse or group.weights != "from scratch":
            return []
        text = "Trained from scratch, the network is worse than with inherited weights. Fine-tune those:"
        name, given, more = "fine_tuned", ", variables=trained.variables", " --weights=inherited"
    if by_binaries(run):
        return [Advice(text, command(run, "retrain", workdir=workdir) + more)]
    code = (
        "arch = net.space.from_dict(result.found.architecture)\n"
        f"alone = {commands.training_call(run, commands.steps_of(run) or 1000)}\n"
        f'lab = runs.Lab("{workdir}/retrained/{name}", alone=alone)\n'
        f"runs.retrain(task, net, arch, lab{given})\n"
        f'runs.publish("{workdir}")  # updates this page and subnet/'
    )
    return [Advice(text, code)]


def _ranks(run: Run, workdir: str) -> list[Advice]:
    settings = run.result.config.get("search")
    if not run.result.searches or run.result.replacements or not isinstance(settings, dict):
        return []
    parts, changes, method = [], {}, settings.get("method")
    own = "dataclasses.replace(settings.method, finalists=5)" if method else "runs.ByStrategy(finalists=5)"
    if not (method or {}).get("finalists"):
        changes |= {} if method else {"method": "strategy"}
        changes["method.finalists"] = 5
        parts.append("train the five best networks alone and take the best of them")
    if run.result.ranking is None:
        changes["ranked"] = 10
        parts.append("measure on ten networks how well the supernet ranks")
    if not parts:
        return []
    given = [f"method={own}"] if "method.finalists" in changes else []
    given += ["ranked=10"] if "ranked" in changes else []
    code = (
        f"settings = dataclasses.replace(settings, {', '.join(given)})\n"
        f"alone = {commands.training_call(run, commands.steps_of(run) or 1000)}\n"
        f'lab = runs.Lab("{workdir}", alone=alone)\n'
        "runs.search_and_finish(task, net, trained.variables, settings, lab)"
    )
    if by_binaries(run):
        code = command(run, "search", *(f"search.{k}={v}" for k, v in changes.items()), workdir=workdir)
    return [Advice(f"The search compared networks by inherited weights. To {words.listed(parts)}:", code)]
