"""The contents of a run's page, as a dict of texts, tables and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from flax.traverse_util import flatten_dict

from jaxnas.report import advice, charts, drawing, findings, words
from jaxnas.report.findings import LATENCY, Run
from jaxnas.report.result import Candidate, SelectionOf
from jaxnas.report.words import is_number

Facts = dict[str, Any]
Section = dict[str, Any]
MOST_SHOWN = 12  # candidates
EXACT = 1e-5  # Extraction must reproduce the supernet's outputs this closely (relative, in float32).
_USES = {
    "train": "trains the weights",
    "search": "held out of training; the search compares networks on it",
    "validation": "held out of training; settings are chosen on it",
    "test": "held out of training and search; measured once, at the end",
}
_HOW = {
    "argmax": "the most probable option of each decision",
    "sampling": "the best of {n} sampled architectures with inherited weights",
    "trials": "the best of {n} sampled architectures, each trained alone for a while",
    "perturbation": "for each decision the option whose removal harmed the supernet most",
    "pruning": "what was left when blocks were removed one by one, the least harmful first",
    "strongest": "the blocks whose removal harmed the supernet most",
}
_LOAD = """import jaxnas{imported}

net, variables = jaxnas.load_subnet("{subnet}"{module})  # the folder beside this page
predictions = net.apply(variables, inputs)"""
_LOAD_EXPORTED = """from jax import export  # needs jax and flatbuffers alone; runs on CPU, CUDA GPU and TPU

model = export.deserialize(open("{subnet}/model.stablehlo", "rb").read())
predictions = model.call(inputs)"""
_LOAD_CHECKPOINT = """import transformers

model = transformers.{loader}.from_pretrained("{subnet}")  # the folder beside this page"""


def facts(run: Run, doing: str = "") -> Facts:
    """The contents of a run's page; `doing` describes the progress of one that is running.

    A section has a "title" and what it is made of: "text", "steps", "code", "charts" by name, "tables",
    "lists" and "notes". Sections that hold nothing are left out.
    """
    measured, task = bool(run.result.found.metrics) or not doing, run.result.task.name
    before, value, after = findings.headline(run)
    before = f"Best so far: {before}" if doing else before
    heading = (before, value, after) if measured else ("Training on ", task, "")
    found = _found(run) if measured else ()
    if doing:
        text = [] if run.metrics or run.history else ["The first figures appear here."]
        parts = [dict(title="Nothing is recorded yet", text=text), *found, *_tried(run), *_training(run)]
    else:
        steps = dict(title="Is it any good, and what to do next", steps=advice.advice(run))
        parts = [steps, *_used(run), *found, *_tried(run), _measured(run), *_training(run), _made(run)]
    return {
        "title": "".join(heading).replace(words.NBSP, " "),
        "eyebrow": f"jaxnas · architecture search on {task}",
        "heading": heading,
        "lead": [doing] if doing else _lead(run),
        "tiles": tiles(run) if measured else [],
        "sections": [one for one in parts if any(value for key, value in one.items() if key != "title")],
    }


def _lead(run: Run) -> list[str]:
    """The work done."""
    done = [f"The space has {words.power_text(run.result.space.cardinality)} architectures."]
    done += [_how(run.result.selection)] if run.result.selection is not None else []
    for one in run.result.searches:
        parts = [f"{words.count(one.evaluations)} evaluations"]
        for cost, (low, high) in one.bounds.items():
            parts += [f"at least {words.cost_amount(cost, low)}"] if low is not None else []
            parts += [f"at most {words.cost_amount(cost, high)}"] if high is not None else []
        done.append(f"{words.capital(words.strategy_name(one.name))}: {', '.join(parts)}.")
    return done


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """The figures that most people look for: name, value, and what is below it."""
    metric, found, role, final = run.metric, run.result.found, run.final_role, findings.final(run)
    mean, _, spread = final.text(metric, role).partition(" ± ")
    error = findings.standard_error(run, role, final.network, final.value(metric, role))
    sub = [f"± {spread}" if spread else "", final.label.partition(", ")[2]]
    sub += [f"standard error {words.amount_text(metric, error)}" if error else ""]
    shown = [(words.metric_name(metric, role, unit=True), mean, ", ".join(filter(None, sub)))]
    for other in run.result.task.metrics[1:3]:
        if (one := final.value(other, role)) is not None:
            shown.append((words.metric_name(other, role, unit=True), words.value_text(other, one), ""))
    for name, cost in found.costs.items():
        times = run.milliseconds if name == LATENCY else None
        sub = "measured; quartiles {0:.3g} and {2:.3g}".format(*times["found"]) if times else ""
        shown.append((words.cost_name(name), words.cost_text(times["found"][1] if times else cost), sub))
    if (part := findings.share(run)) and run.reference is not None:
        name, of = f"against the {run.reference.name} network", f"of its {words.cost_name(run.cost or '')}"
        shown.append((name, words.percent(part, 0), of))
    if is_number(error := found.extraction_error):
        sign = "✓ within" if error <= EXACT else "✗ above"
        shown.append(("extraction error", f"{error:.1e}", f"{sign} {EXACT:g}, relative"))
    return shown


def latency_text(run: Run) -> list[str]:
    """The measured latency as sentences; [] if there is none."""
    if not (times := run.milliseconds):
        return []
    (low, middle, high), part = times["found"], findings.latency_share(run, "largest")
    batch = f"A batch of {words.count(run.timed.get('rows'))} takes {middle:.3g} ms"
    done = [f"{batch} on {run.timed.get('device')} (quartiles {low:.3g} and {high:.3g})."]
    if "largest" in times:
        share = f"That is {words.percent(part, 0)} of the largest network’s time."
        done.append(share if part else "It is no faster than the largest network within the noise.")
    if (most := run.bounds.get(LATENCY, (None, None))[1]) is not None:
        verdict = "keeps" if high <= most else "exceeds" if low > most else "is, within the noise, at"
        done.append(f"It {verdict} the budget of at most {most:.3g} ms.")
    return done


def _used(run: Run) -> Iterator[Section]:
    """How long the found network takes, and how to load it."""
    result, subnet, module, chosen = run.result, run.result.subnet, run.result.module, findings.retrained(run)
    if run.milliseconds:
        yield dict(title="Latency, as measured", text=latency_text(run), charts=charts.latency(run))
    seed = f", seed {chosen.network.seed}" if chosen else ""
    notes = [f"Weights: {(chosen.network if chosen else result.found).weights}{seed}."]
    if result.loader:
        load = _LOAD_CHECKPOINT.format(loader=result.loader, subnet=subnet)
        if result.loader == "AutoModelForCausalLM":
            load += f'\ntokenizer = transformers.AutoTokenizer.from_pretrained("{subnet}")'
        code = [("", load)]
        notes.append(f'With jaxnas: module, variables, config = jaxnas.hf.load("{subnet}").')
    else:
        imported = f"\nfrom my_network import {module}  # from where your class is" if module else ""
        load = _LOAD.format(subnet=subnet, imported=imported, module=f", module={module}" if module else "")
        size = result.exported_batch
        title = "Without jaxnas, as StableHLO" + ("" if size is None else f", for batches of {size} alone")
        code = [("", load), (title, _LOAD_EXPORTED.format(subnet=subnet))]
        notes += [f"Inputs: {result.task.inputs}."] if result.task.inputs else []
        notes.append(f"Preprocessing of inputs and meaning of outputs: {subnet}/preprocessing.json.")
    yield dict(title="Load the network", code=code, notes=notes)


def _found(run: Run) -> Iterator[Section]:
    """All that was evaluated, and the best of it."""
    if drawn := charts.scatter(run):
        better = "More" if run.sign > 0 else "Less"
        text = f"Every evaluated architecture, and the Pareto front. {better} is better."
        outside = drawn["usermeta"]["outside"]
        notes = [f"{outside} evaluations are beyond the axis."] if outside else []
        notes.append("Ctrl + wheel zooms, dragging moves, a double click resets; click the legend to filter.")
        name = f"{words.metric_name(run.metric, run.search_role)} against {words.cost_name(run.cost or '')}"
        yield dict(title=words.capital(name), text=[text], charts={"scatter": drawn}, notes=notes)
    architecture, choices = run.result.found.architecture, run.result.space.choices
    shown, others = {}, {"found": architecture}
    for net in (*run.result.networks, *(one.network for one in run.retrained)):
        others.setdefault("found before" if net.name == "found" else net.name, net.architecture)
    if places := drawing.places_of(run.result):
        drawn = {"kept": drawing.chart(places, architecture)}
        shown = dict(text=["The share of each size that is kept, by block."], charts=drawn)
    blocks = {} if places else drawing.table(others, choices)
    options = {name: ", ".join(words.options_of(choices.get(name, {}))) for name in architecture}
    rows = [(words.plain(name), words.show(value), options[name]) for name, value in architecture.items()]
    every = dict(head=("decision", "value", "options"), rows=rows, kind="words")
    every["fold"] = "all decisions and their options" if shown or blocks else ""
    tables = [one for one in (blocks, every) if one.get("rows")]
    yield dict(title=f"The {run.result.found.name} architecture", tables=tables, **shown)


def _tried(run: Run) -> Iterator[Section]:
    """The course of the search, by method."""
    if record := run.result.replacements:
        metric = "Kullback–Leibler divergence of predictions" if record.metric == "kl" else record.metric
        text = (
            f"{words.count(record.evaluations)} networks that replace one place of the largest were compared "
            f"with it by the {metric}. The best sum within a budget is exact; the whole was then measured. "
            "All with inherited weights."
        )
        yield dict(title="What other budgets would cost", text=[text], charts=charts.budgets(record))
    if run.result.spaces:
        yield _spaces(run)
    if run.result.selection is not None:
        yield from _selection(run, run.result.selection)
    if run.history or run.result.searches:
        yield _searches(run)
    if (of := run.result.ranking) and (drawn := charts.ranking(run, of)):
        count, steps, ends = len(drawn["datasets"]["ranked"]), words.count(of.steps), of.interval
        text = [f"{count} random architectures, each also trained alone for {steps} steps."]
        if lost := len(of.alone) - count:
            text.append(f"{lost} more diverged when trained alone.")
        if is_number(of.kendall_tau):
            known = is_number(ends[0]) and is_number(ends[1])
            within = f" (95 % interval {ends[0]:.2f} to {ends[1]:.2f}, bootstrap)" if known else ""
            text.append(f"Kendall’s tau is {of.kendall_tau:.2f}{within}: 1 is the same order, 0 no relation.")
        yield dict(title="How well the supernet ranks architectures", text=text, charts={"ranking": drawn})


def _even(selection: SelectionOf) -> bool:
    """Whether all options had the same weight, as in a selection by removal alone."""
    tables = selection.probabilities.values()
    rows = [row for table in tables for row in (table if isinstance(table[0], list) else [table])]
    return all(max(row) - min((x for x in row if x > 0), default=0) < 1e-4 for row in rows)


def _how(selection: SelectionOf) -> str:
    """How the found architecture came out of the supernet."""
    even = selection.decisions and _even(selection)
    kind = "A supernet with even weights" if even else "A differentiable search"
    taken = _HOW.get(selection.method, words.plain(selection.method)).format(n=len(selection.candidates))
    return f"{kind} of {words.count(selection.steps)} steps; taken: {taken}."


def _selection(run: Run, selection: SelectionOf) -> Iterator[Section]:
    """The probabilities of options, the candidates and the strengths of options, if there are any."""
    steps, even = words.count(selection.steps), bool(selection.decisions) and _even(selection)
    if selection.probabilities and not even:
        drawn, moments = charts.probabilities(run, selection)
        text = [f"In percent, after {steps} steps; the most probable option has its number."]
        text.append(
            f"The least decided choice has {words.percent(selection.confidence)} for its best option."
        )
        if len(moments) > 1:
            text.append(f"The slider goes over steps {moments[0]:,} to {moments[-1]:,}.")
        yield dict(title="How probable each option is", text=text, charts=drawn)
    if selection.candidates:
        yield _candidates(run, selection)
    if selection.decisions:
        error = findings.chance(run, selection)
        drawn, most = charts.strengths(run, selection, error)
        text = "The longer the bar, the more the supernet needs the option; "
        text += "the line is the range over positions."
        sure = "How large a difference chance makes is not known; if all are small, the choice is unsure."
        if error is not None:
            size = f"{words.count(selection.examples)} {run.search_role} {run.result.task.examples}"
            within = f"within two standard errors over {size} ({words.amount_text(run.metric, 2 * error)}"
            sure = f"What is {within}, shaded) may be chance."
            sure = f"All are {within}): the choice may well be chance." if most < 2 * error else sure
        yield dict(title="How strong each option is", text=[text, sure], charts=drawn)


def _candidates(run: Run, selection: SelectionOf) -> dict[str, Any]:
    def order(one: Candidate) -> tuple[float, float]:
        """Those that came furthest first, and the best of these."""
        last = (one.supernet, *one.trials)[-1]
        return -len(one.trials), -run.sign * last if words.is_number(last) else math.inf

    rungs = max(len(one.trials) for one in selection.candidates)
    head = ["architecture", "drawn from", "supernet"]
    head += [f"after {words.count(steps)} steps" for steps in selection.trial_steps[:rungs]]
    rows = []
    for one in sorted(selection.candidates, key=order):
        cells = [words.value_text(run.metric, value) for value in (one.supernet, *one.trials)]
        name = words.describe(one.architecture, run.result.space.choices)
        row = [name, "anywhere" if one.explored else "the probabilities", *cells]
        rows.append(row + [""] * (3 + rungs - len(row)))
    name = words.metric_name(run.metric, run.search_role, unit=True)
    text = [f"The {name} of each, inherited" + (" and after training alone." if rungs else ".")]
    if words.is_number(selection.kendall_tau):
        text.append(f"Kendall’s tau between the supernet and the first trials: {selection.kendall_tau:.2f}.")
    text += [f"The best {MOST_SHOWN} of {len(rows)}."] if len(rows) > MOST_SHOWN else []
    table = dict(head=head, rows=rows[:MOST_SHOWN], first=True)
    return dict(title="The candidates", text=text, tables=[table])


def _spaces(run: Run) -> Section:
    spaces, metric = run.result.spaces, run.metric
    text = [f"{one.name}: E-T error {words.value_text(metric, one.et_error)}." for one in spaces]
    change = words.difference_text(metric, spaces[-1].et_error - spaces[0].et_error)
    text.append(f"From {spaces[0].name} to {spaces[-1].name} it changes by {change}.")
    note = (
        "The E-T error is half the mean error of a sample and half that of its best. Options move where the "
        "slope is more than two standard errors, or beyond the threshold that was set. Under a name: what "
        "one more step adds to the error."
    )
    shown = {f"shift-{i}": spec for i, spec in enumerate(charts.shifts(run))} | {"errors": charts.errors(run)}
    return dict(title="How the search space moved", text=text, charts=shown, notes=[note])


def gain_text(run: Run) -> list[str]:
    """The gain over random search as a sentence; [] if that was not run."""
    role, nets = run.final_role, [run.result.found, run.network("random search")]
    pairs = [(net, value) for net in nets if net and (value := run.value(net, role)) is not None]
    if len(pairs) < 2:
        return []
    gain = run.sign * (pairs[0][1] - pairs[1][1])
    how = f"{words.amount_text(run.metric, gain)} {'better' if gain > 0 else 'worse'} than"
    text = f"On the {role} data the found network is {how if gain else 'as good as'} random search’s best"
    error = math.hypot(*(findings.standard_error(run, role, *pair) or 0.0 for pair in pairs))
    if error and gain:
        text += ", " if abs(gain) >= 2 * error else "; this may be chance: "
        text += f"{abs(gain) / error:.1f} times the standard error of the difference"
        text += f" ({words.amount_text(run.metric, error)})"
    return [f"{text}."]


def _searches(run: Run) -> Section:
    other, whole, notes = run.network("random search"), bool(run.result.replacements), []
    curve = None if whole else charts.best_so_far(run)
    if run.result.found.name == "found":  # of a finished run
        notes += [] if curve or whole else ["The search has no history here, so it cannot be drawn."]
        notes += [] if other else ["Without random search beside it, the gain of the search is not known."]
    title, shown = "Search against random search" if other else "How the search went", {"search": curve}
    return dict(title=title, text=gain_text(run), charts=shown if curve else {}, notes=notes)


def _measured(run: Run) -> Section:
    """All networks side by side: those with the weights of the search, and those trained alone.

    Other metrics than the first are those of the final role.
    """
    groups, metrics, rows = findings.groups(run), run.result.task.metrics, []
    nets = [one.network for one in groups]
    costs = list(dict.fromkeys(name for net in nets for name in net.costs))
    roles = dict.fromkeys(role for net in nets for role in net.metrics)
    roles = sorted(roles, key=lambda role: role == run.final_role)
    columns = [(role, m) for role in roles for m in metrics if role == run.final_role or m is metrics[0]]
    columns = [(role, m) for role, m in columns if any(m.name in net.metrics.get(role, {}) for net in nets)]
    for one in groups:
        cells = [words.cost_text(one.network.costs.get(cost)) for cost in costs]
        rows.append((one.label, *cells, *(one.text(metric, role) for role, metric in columns)))
    if linear := run.result.linear:
        cells = [words.value_text(m, linear.get(role) if m is metrics[0] else None) for role, m in columns]
        rows.append((advice.LINEAR, *["–"] * len(costs), *cells))
    shown = [words.metric_name(metric, role, unit=True) for role, metric in columns]
    table = dict(head=["network", *map(words.cost_name, costs), *shown], rows=rows, first=True)
    several = any(len(one.members) > 1 for one in groups)
    notes = ["Of several seeds: means ± one standard deviation."] if several else []
    return dict(title="The networks side by side", tables=[table], notes=notes)


def _training(run: Run) -> Iterator[Section]:
    """The curves of the training and what went wrong on the way, and the data with their roles."""
    result, task, notes = run.result, run.result.task, []
    if lost := sum("loss" in line and not is_number(line["loss"]) for line in run.metrics):
        notes.append(f"{lost} losses were not finite numbers and are not drawn.")
    notes += [f"The training was {result.interrupted}."] if result.interrupted else []
    shared = result.searches or result.selection or run.of_split("search")
    title = f"Training the {'supernet' if shared else 'network'}"
    yield {"title": title, "charts": charts.training(run), "notes": notes}
    details = [f"{words.plain(name)}: {words.show(value)}" for name, value in task.details.items()]
    rows = [(role, words.count(n), _USES.get(role, "")) for role, n in task.sizes.items()]
    table = dict(head=("role", task.examples, "use"), rows=rows, kind="words")
    yield dict(title="Data", text=[", ".join([task.name, *details])], tables=[table] if rows else [])


def _made(run: Run) -> Section:
    """How the run was made."""
    config, commands = dict(run.result.config), "\n".join(advice.commands(run))
    if drawing.places_of(run.result):  # which are drawn
        config["network"] = {name: x for name, x in config["network"].items() if name != "places"}
    versions = {**run.result.versions, **({"device": run.result.device} if run.result.device else {})}
    settings = flatten_dict(config, sep=".")
    lists: dict[str, Mapping[str, Any]] = {"Configuration": settings, "Versions": versions}
    notes = ["The same configuration on the same kind of machine gives the same result and this page again."]
    notes = notes if settings else ["The configuration was not recorded."]
    code = [("Run it again", commands)] if commands else []
    return {"title": "How this was made", "code": code, "lists": lists, "notes": notes}
