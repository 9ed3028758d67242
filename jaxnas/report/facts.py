"""What a page of a run shows, as a dict of texts, tables and charts: what is there follows from the result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flax.traverse_util import flatten_dict

from jaxnas.report import advice, charts, kept, networks, pictures, selection, words
from jaxnas.report.commands import AGAIN, binaries, by_binaries, command
from jaxnas.report.networks import LATENCY
from jaxnas.report.read import Run
from jaxnas.report.result import Network

Facts = dict[str, Any]
Section = dict[str, Any]
EXACT = 1e-5  # Extraction must reproduce the supernet's outputs this closely (relative, in float32).
_USES = {
    "train": "trains the weights",
    "search": "held out of training; the search compares networks on it",
    "validation": "held out of training; settings are chosen on it",
    "test": "held out of training and search; measured once, at the end",
}
_NAMES = {
    "random search": "random search’s best",
    "smallest": "smallest of the space",
    "largest": "largest of the space",
}
# Of networks that cost neither least nor most; see `Run.is_extreme`.
_OF_OPTIONS = {"smallest": "lowest option of each choice", "largest": "highest option of each choice"}
_LOAD = """import jaxnas{imported}

net, variables = jaxnas.load_subnet("{subnet}"{module})  # the folder beside this page
predictions = net.apply(variables, inputs)"""
_LOAD_EXPORTED = """from jax import export  # needs jax and flatbuffers alone; runs on CPU, CUDA GPU and TPU

model = export.deserialize(open("{subnet}/model.stablehlo", "rb").read())
predictions = model.call(inputs)"""
_LOAD_CHECKPOINT = """from transformers import {loader}{more}

model = {loader}.from_pretrained("{subnet}")  # the folder beside this page{tokenizer}"""


def facts(run: Run) -> Facts:
    """What the page of a finished run shows.

    Returns:
      "title", "eyebrow", "heading" as (before, figure, after), "lead" as sentences, "tiles", and "sections".
      A section has a "title" and what it is made of: "text", "steps", "code", "picture", "charts" by name,
      "tables", "lists" and "notes".
    """
    heading = networks.headline(run)
    found = _found(run, "The found architecture")
    tried = [_budgets(run), _spaces(run), *selection.sections(run), _searches(run), _ranking(run)]
    measured = [_networks(run), _retrained(run), training(run), data(run), _exported(run), _made(run)]
    sections = [_advice(run), _latency(run), _load(run), _scatter(run), found, *tried, *measured]
    return frame(run, heading, _lead(run), sections) | {"tiles": tiles(run)}


def frame(run: Run, heading: Sequence[str], lead: Sequence[str], sections: Iterable[Section]) -> Facts:
    """A page without tiles; sections that hold nothing are left out."""
    return {
        "title": "".join(heading).replace(words.NBSP, " "),
        "task": run.result.task.name,
        "eyebrow": f"jaxnas · architecture search on {run.result.task.name}",
        "heading": tuple(heading),
        "lead": list(lead),
        "tiles": [],
        "sections": [one for one in sections if any(value for key, value in one.items() if key != "title")],
    }


def running(run: Run, doing: str) -> Facts:
    """What the page of a run shows while it goes on; `doing` says how far it has come."""
    best = bool(run.history) and run.result.found.name != "none"
    before, value, after = networks.headline(run) if best else ("", "", "")
    heading = (f"Best so far: {before}", value, after) if best else ("Training on ", run.result.task.name, "")
    curve = charts.best_so_far(run) if best else None
    parts = [_scatter(run), section("Best so far", charts={"search": curve} if curve else {})] if best else []
    parts += [_found(run, "The best architecture so far")] if best else []
    empty = [] if run.metrics or run.history else ["Nothing is recorded yet. The first figures appear here."]
    parts += [section("Waiting for the first figures", text=empty)]
    parts += [*selection.sections(run), training(run), data(run)]
    return frame(run, heading, [doing], parts) | {"tiles": tiles(run) if best else []}


def section(title: str, **parts: Any) -> Section:
    """A section of a page."""
    return {"title": title, **parts}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], **more: Any) -> dict[str, Any]:
    """A table; `more` has "fold" as its summary if it is shown on a click, and "words" if it is no numbers."""
    return {"head": list(head), "rows": [list(row) for row in rows], **more}


# ---- The top.


def _lead(run: Run) -> list[str]:
    """What was done and how sure the result is."""
    result, space = run.result, words.power_text(run.result.space.cardinality)
    bounds = [_between(name, *pair) for name, pair in run.bounds.items()]
    within = f", {words.listed(bounds)}" if bounds else ""
    done = [f"The space has {space} architectures."]
    if result.selection is not None:
        done.append(selection.how(run))
    for one in result.searches:
        name = words.capital(words.strategy_name(one.name))
        done.append(f"{name}: {words.count(one.evaluations)} evaluations{within}.")
    return [*done, *_stacked(run), *_sure(run)]


def _between(cost: str, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        least = "at most" if low is None else "at least"
        return f"{least} {words.cost_amount(cost, high if low is None else low)}"
    return f"{words.cost_text(low)} to {words.cost_amount(cost, high)}"


def _stacked(run: Run) -> list[str]:
    """How often each option occurs in stacks of named blocks."""
    sentences = []
    for name, choice in run.result.space.choices.items():
        values = run.result.found.architecture.get(name)
        if not (words.is_stack(choice) and isinstance(values, list)) or name in (
            "first",
            "second",
            "key",
            "value",
        ):
            continue
        values = [value for value in values if value is not None]
        counts = {option: values.count(option) for option in words.options_of(choice)}
        parts = [f"{words.count(n)} {words.plain(one)}" for one, n in counts.items() if n]
        sentences += [f"{words.capital(words.plain(name))}: {words.listed(parts)}."] if parts else []
    return sentences


def _sure(run: Run) -> list[str]:
    """How far the main figure can be trusted."""
    (value, spread, group), sentences = networks.final(run), []
    name, size = words.metric_name(run.metric, run.final_role), run.result.task.sizes.get(run.final_role, 0)
    examples = f"{words.count(size)} {run.final_role} {run.result.task.examples}"
    if group is not None:
        figure = networks.spread_text(run.metric, (value or 0.0, spread)) + words.unit_text(run.metric)
        seeds = "one seed" if spread is None else f"{len(group.members)} seeds (mean ± standard deviation)"
        text = "Trained from scratch" if group.weights == "from scratch" else "Fine-tuned"
        sentences.append(f"{text} with {seeds}: {name} {figure}.")
    if (error := networks.error_of(run)) is not None:
        figure = words.amount_text(run.metric, error)
        sentences.append(f"Standard error of the {name} over {examples}: {figure}.")
    if value == 1 and size and words.is_accuracy(run.metric):
        least = words.percent(words.least_without_errors(size), 2)
        sentences.append(f"No error on {examples}: with 95 % confidence its accuracy is above {least}.")
    return sentences


def tiles(run: Run) -> list[dict[str, str]]:
    """The figures that most people look for: "name", "value", "sub" and perhaps "kind"."""
    result, metric, found, role = run.result, run.metric, run.result.found, run.final_role
    (value, spread, group), shown = networks.final(run), []

    def tile(name: str, value: str, sub: str = "", kind: str = "") -> None:
        shown.append({"name": name, "value": value, "sub": sub, "kind": kind})

    sub = f"{found.weights} weights" if found.weights == "inherited" else found.weights
    if group is not None:
        sub = f"{len(group.members)} seed{'s' if len(group.members) > 1 else ''}, {group.weights}"
        if spread is not None:
            sub = f"±{networks.spread_text(metric, (value or 0.0, spread)).partition('±')[2]} over {sub}"
    elif (error := networks.error_of(run)) is not None:
        size = words.count(result.task.sizes.get(role, 0))
        figure = f"{100 * error:.2f}" if metric.unit == "%" else f"{error:.2g}"
        sub = f"± {figure} (s.e., {size} {result.task.examples})"
    tile(words.metric_name(metric, role, unit=True), words.value_text(metric, value), sub)
    for other in result.task.metrics[1:3]:
        known = group.metric(other.name, role) if group is not None else None
        one = known[0] if known else found.metrics.get(role, {}).get(other.name)
        if one is not None:
            tile(words.metric_name(other, role, unit=True), words.value_text(other, one))
    seen, linear = run.value(found, run.search_role), result.linear.get(role)
    if run.search_role != role and seen is not None:
        name = words.metric_name(metric, run.search_role, unit=True)
        tile(name, words.value_text(metric, seen), "what the search saw")
    if linear is not None:
        lead, sub = networks.lead_over_linear(run), "as good as this network"
        if value is not None and lead:
            sub = f"this network: {words.difference_text(metric, value - linear)}"
        name = f"a linear model’s {words.metric_name(metric, role, unit=True)}"
        tile(name, words.value_text(metric, linear), sub, "good" if lead and lead > 0 else "bad")
    for name, cost in found.costs.items():
        if name == LATENCY and run.timed:
            low, cost, high = run.timed["milliseconds"]["found"]
            tile(
                words.cost_name(name), words.cost_text(cost), f"measured; quartiles {low:.3g} and {high:.3g}"
            )
            continue
        whole = (
            words.is_number(cost) and float(cost).is_integer() and words.cost_text(cost) != words.count(cost)
        )
        tile(words.cost_name(name), words.cost_text(cost), words.count(cost) if whole else "")
    if (part := networks.share(run)) and run.reference is not None:
        gap = f"of its {words.cost_name(run.cost or '')}"
        theirs, _, other = networks.final(run, run.reference)
        same = (group.weights if group else found.weights) == (
            other.weights if other else run.reference.weights
        )
        # Where others cost more than the reference, the share is not of its cost.
        same &= run.reference.name != "largest" or run.is_extreme("largest")
        if same and value is not None and theirs is not None:
            what = f"on {role}" if words.says_all(metric) else words.metric_name(metric, role)
            gap += f"; {words.difference_text(metric, value - theirs)} {what}"
        tile(f"against the {part[0]} network", words.percent(part[1], 0), gap)
    error = found.extraction_error
    if words.is_number(error):
        good = error <= EXACT
        verdict = f"{'✓ within' if good else '✗ above'} {EXACT:g}, relative"
        tile("extraction error", f"{error:.1e}", verdict, "good" if good else "bad")
    return shown


# ---- The sections, from top to bottom.


def _advice(run: Run) -> Section:
    return section("Is it any good, and what to do next", steps=[one._asdict() for one in advice.advice(run)])


def latency_text(run: Run) -> list[str]:
    """What was measured of the latency; [] where nothing was."""
    times = run.timed.get("milliseconds")
    if not times:
        return []
    low, middle, high = times["found"]
    batch = f"A batch of {words.count(run.timed['rows'])} takes {middle:.3g} ms on {run.timed['device']}"
    done = [f"{batch} (quartiles {low:.3g} and {high:.3g})."]
    part = networks.latency_share(run, "largest")
    if "largest" in times:
        share = f"That is {words.percent(part or 0, 0)} of the largest network’s time."
        done.append(share if part else "It is no faster than the largest network within the noise.")
    if "smallest" in times and times["smallest"][0] > high:
        done.append("The smallest network is slower: time does not follow size here.")
    most, summed = run.bounds.get(LATENCY, (None, None))[1], run.result.found.costs.get(LATENCY)
    if most is not None:
        verdict = "keeps" if high <= most else "exceeds" if low > most else "is, within the noise, at"
        done.append(f"It {verdict} the budget of at most {most:.3g} ms.")
    if summed is not None:
        done.append(f"The search’s table has {summed:.3g} ms for it, a sum over decisions.")
        if LATENCY in run.bounds and not 2 / 3 < summed / middle < 3 / 2:
            done.append(
                "The two are far apart, so the search was misled: delete latency.json and search/ and search "
                "again while nothing else runs."
            )
    return done


def _latency(run: Run) -> Section:
    drawn = charts.latency(run)
    note = ["The networks were timed in turn, so that a slow moment of the machine met each."]
    return section(
        "Latency, as measured",
        text=latency_text(run),
        charts={"latency": drawn} if drawn else {},
        notes=note if drawn else [],
    )


def _load(run: Run) -> Section:
    result, subnet = run.result, run.result.subnet or "subnet"
    chosen = networks.retrained(run)
    net = result.found if chosen is None else chosen.network
    weights = (
        f"seed {net.seed}, {words.count(net.steps or 0)} steps"
        if net.weights != "inherited"
        else "of the supernet"
    )
    notes = [f"Weights: {net.weights}, {weights}."]
    if result.loader:
        language = result.loader == "AutoModelForCausalLM"
        tokenizer = f'\ntokenizer = AutoTokenizer.from_pretrained("{subnet}")' if language else ""
        more = ", AutoTokenizer" if language else ""
        code = _LOAD_CHECKPOINT.format(loader=result.loader, subnet=subnet, more=more, tokenizer=tokenizer)
        notes.append(f'With jaxnas: module, variables, config = jaxnas.hf.load("{subnet}").')
        return section("Load the network", code=[("", code)], notes=notes)
    module = result.module
    imported = f"\nfrom my_network import {module}  # from where your class is" if module else ""
    code = _LOAD.format(subnet=subnet, imported=imported, module=f", module={module}" if module else "")
    inputs = [f"It takes inputs: {result.task.inputs}."] if result.task.inputs else []
    notes.append(f"Preprocessing of inputs and meaning of outputs: {subnet}/preprocessing.json.")
    return section("Load the network", code=[("", code)], notes=[*inputs, *notes])


def _scatter(run: Run) -> Section:
    drawn = charts.scatter(run)
    if drawn is None:
        return section("")
    better = "More" if run.sign > 0 else "Less"
    text = f"One mark per evaluated architecture. {better} is better. {drawn['usermeta']['front']} are on the Pareto front."
    notes = ["Ctrl + wheel zooms, dragging moves, a double click resets; click the legend to filter."]
    if outside := drawn["usermeta"]["outside"]:
        notes.insert(0, f"{outside} evaluations are beyond the axis.")
    name = words.metric_name(run.metric, run.search_role)
    title = words.capital(f"{name} against {words.cost_name(run.cost or 'params')}")
    return section(title, text=[text], charts={"scatter": drawn}, notes=notes)


def _found(run: Run, title: str) -> Section:
    result, architecture, choices = run.result, run.result.found.architecture, run.result.space.choices
    rows = pictures.decisions(architecture, choices)
    every = table(("decision", "value", "options"), rows, words=True, fold="all decisions and their options")
    if places := kept.places_of(result):
        text = ["The share of each size that is kept, by block."]
        rest = kept.beside(places, architecture)
        text += [f"Chosen beside the sizes: {words.listed(rest)}."] if rest else []
        return section(title, text=text, charts={"kept": kept.chart(places, architecture)}, tables=[every])
    others: dict[str, Any] = {}
    for net in (*result.networks, *(one.network for one in run.retrained)):
        others.setdefault("found before" if net.name == "found" else net.name, net.architecture)
    drawn = pictures.picture(architecture, choices, others)
    if not drawn:
        every["fold"] = ""
    return section(title, picture=drawn, tables=[every] if rows else [])


def _budgets(run: Run) -> Section:
    record, drawn = run.result.replacements, charts.budgets(run)
    if record is None:
        return section("")
    metric = "Kullback–Leibler divergence of predictions" if record.metric == "kl" else record.metric
    text = (
        f"{words.count(record.evaluations)} networks that replace one place of the largest one were compared with "
        f"it by the {metric} ({record.unit}). The best sum within a budget is exact; the sum estimates the whole, "
        "which was then measured. All with inherited weights."
    )
    cost = words.cost_name(record.budget)
    rows = [
        (
            "this run" if one.share is None else f"{words.percent(one.share, 0)} of {cost}",
            *(words.cost_text(one.cost), f"{one.estimated:.3g}", f"{one.measured:.3g}"),
        )
        for one in sorted((record.found, *record.others), key=lambda one: -one.cost)
    ]
    head = ("budget", cost, "sum of replacements", f"measured ({record.unit})")
    shown = {"budgets": drawn} if drawn else {}
    return section("What other budgets would cost", text=[text], charts=shown, tables=[table(head, rows)])


def _spaces(run: Run) -> Section:
    spaces, metric, role = run.result.spaces, run.metric, run.search_role
    if not spaces:
        return section("")
    ends = [
        f"{one.name}: E-T error {words.value_text(metric, one.et_error)}, {len(one.errors):,} architectures"
        for one in spaces
    ]
    text = [
        f"{'; '.join(ends)}.",
        "The E-T error is half the mean error of a sample and half that of its best.",
    ]
    if len(spaces) > 1:
        change = words.difference_text(metric, spaces[-1].et_error - spaces[0].et_error)
        text.append(f"From {spaces[0].name} to {spaces[-1].name} it changes by {change}.")
    axis = charts.metric_axis(metric, role)
    error = axis if metric.direction == "min" else axis._replace(title=f"{role} error")
    drawn = {f"shift-{i}": spec for i, spec in enumerate(charts.shifts(spaces).values())}
    curve = charts.errors(spaces, error)
    rows = []
    for one in spaces:
        for x in one.shifts:
            rise = words.difference_text(metric, x.slope * x.step).split()[0].lstrip("±")
            spread = words.amount_text(metric, x.standard_error * x.step).split()[0]
            where = (
                "stays"
                if not x.steps
                else f"{'up' if x.steps > 0 else 'down'} by {words.show(abs(x.steps) * x.step)}"
            )
            row = (words.plain(x.name), one.name, words.show(x.old), words.show(x.new), where)
            rows.append((*row, f"{rise} ± {spread}", words.show(x.step), f"{x.r_squared:.2f}"))
    slope = f"rise of the error over one step{words.difference_unit(metric)}"
    head = ("choice", "space", "options", "in the next space", "moves", slope, "step", "R²")
    moved = [table(head, rows)] if rows else []
    shown = {**drawn, **({"errors": curve} if curve else {})}
    note = [
        "Options move down the slope where it exceeds twice its standard error, or the threshold that was set."
    ]
    return section(
        "How the search space moved", text=text, charts=shown, tables=moved, notes=note if rows else []
    )


def _searches(run: Run) -> Section:
    if not (run.history or run.result.searches):
        return section("")
    other, metric, text, notes = run.network("random search"), run.metric, [], []
    for role in dict.fromkeys((run.search_role, run.final_role)) if other else ():
        mine, theirs = run.value(run.result.found, role), run.value(other, role) if other else None
        if mine is None or theirs is None or other is None:
            continue
        gain = run.sign * (mine - theirs)
        how = (
            f"{words.amount_text(metric, gain)} {'better' if gain > 0 else 'worse'} than"
            if gain
            else "exactly as good as"
        )
        done = f"On the {role} data the found network is {how} random search’s best"
        pairs = ((run.result.found, mine), (other, theirs))
        errors = [words.standard_error(run.result.task, metric, role, *pair) for pair in pairs]
        error = math.hypot(*(one for one in errors if one is not None))
        if role == run.final_role and error and gain:
            figure = words.amount_text(metric, error)
            chance = f"{abs(gain) / error:.1f} times the standard error of the difference ({figure})"
            done += f", {chance}" if abs(gain) >= 2 * error else f"; this may be chance: {chance}"
        text.append(f"{done}.")
    curve = None if run.result.replacements else charts.best_so_far(run)
    if curve is None and run.result.replacements is None:
        notes.append("The search has no history here, so it cannot be drawn.")
    if other is None:
        notes.append("Random search was not run beside it, so the gain of the search is not known.")
    title = "Search against random search" if other else "How the search went"
    return section(title, text=text, charts={"search": curve} if curve else {}, notes=notes)


def _ranking(run: Run) -> Section:
    ranking, drawn = run.result.ranking, charts.ranking(run)
    if ranking is None or drawn is None:
        return section("")
    count = len(drawn["datasets"]["ranked"])
    text = [f"{count} random architectures, each also trained alone for {words.count(ranking.steps)} steps."]
    tau, (low, high) = ranking.kendall_tau, ranking.interval
    verdict = "Kendall’s tau is not defined, since all values of one kind are equal."
    if words.is_number(tau):
        within = (
            f" (95 % bootstrap interval {low:.2f} to {high:.2f})"
            if words.is_number(low) and words.is_number(high)
            else ""
        )
        verdict = f"Kendall’s tau is {tau:.2f}{within}: 1 is the same order, 0 no relation, −1 the reverse."
    lost = len(ranking.alone) - count
    notes = [f"{lost} more diverged when trained alone, and are left out."] if lost else []
    return section(
        "How well the supernet ranks architectures",
        text=[*text, verdict],
        charts={"ranking": drawn},
        notes=notes,
    )


def _networks(run: Run) -> Section:
    nets, linear = [run.result.found, *run.result.networks], run.result.linear
    costs, columns = networks.columns(run, nets)
    main = [(role, metric) for role, metric in columns if role == run.final_role or metric is run.metric]

    def name_of(net: Network) -> str:
        extreme = net.name in _OF_OPTIONS and not run.is_extreme(net.name)
        return networks.label((_OF_OPTIONS if extreme else _NAMES).get(net.name, net.name), [net])

    def compared(columns: Sequence[networks.Column], **more: Any) -> dict[str, Any]:
        rows = []
        for net in nets:
            cells = [words.value_text(m, net.metrics.get(role, {}).get(m.name)) for role, m in columns]
            rows.append((name_of(net), *(words.cost_text(net.costs.get(cost)) for cost in costs), *cells))
        if linear:
            cells = [
                words.value_text(m, linear.get(role) if m is run.metric else None) for role, m in columns
            ]
            rows.append((words.LINEAR, *("–" for _ in costs), *cells))
        return table(_head(costs, columns), rows, first=True, **more)

    every = [compared(columns, fold="all metrics")] if len(main) < len(columns) else []
    return section("The networks side by side", tables=[compared(main), *every])


def _head(costs: Sequence[str], columns: Sequence[networks.Column]) -> list[str]:
    named = [words.metric_name(metric, role, unit=True) for role, metric in columns]
    return ["network", *map(words.cost_name, costs), *named]


def _retrained(run: Run) -> Section:
    made = networks.groups(run)
    if not made:
        return section("")
    costs, columns = networks.columns(run, [one.network for one in run.retrained])
    columns = [(role, metric) for role, metric in columns if role == run.final_role or metric is run.metric]
    times = [
        key for key in networks.TIMES if any(words.is_number(one.times.get(key)) for one in run.retrained)
    ]
    rows = []
    for group in made:
        nets = [one.network for one in group.members]
        cells = [words.cost_text(nets[0].costs.get(cost)) for cost in costs]
        cells += [networks.spread_text(metric, group.metric(metric.name, role)) for role, metric in columns]
        for key in times:
            known = [t for one in group.members if words.is_number(t := one.times.get(key))]
            cells.append(words.short(statistics.fmean(known)) if known else "–")
        rows.append((networks.label(group.name, nets), *cells))
    text = f"The best {words.metric_name(run.metric, networks.ranking_role(run))} is first."
    several = any(len(group.members) > 1 for group in made)
    text += " Figures are means over the seeds ± one standard deviation." if several else ""
    notes = ["Times are medians on the device below; they differ from run to run."] if times else []
    head = [*_head(costs, columns), *(networks.TIMES[key] for key in times)]
    return section("Trained alone", text=[text], tables=[table(head, rows)], notes=notes)


def training(run: Run) -> Section:
    """The section of the training curves, and of what went wrong on the way."""
    result, notes = run.result, []
    if lost := sum("loss" in line and not words.is_number(line["loss"]) for line in run.metrics):
        notes.append(f"{lost} losses were not finite numbers and are not drawn.")
    for record in run.mends:
        pairs = record["changes"].items()
        changes = words.listed([f"{name}={pair['now']} instead of {pair['before']}" for name, pair in pairs])
        step = "A step" if record["diverged"] is None else f"Step {record['diverged']}"
        notes.append(f"{step} diverged, and the training went on from step {record['step']} with {changes}.")
    notes += [f"The training was {result.interrupted}."] if result.interrupted else []
    shared = result.searches or result.selection or run.of_split("search")
    title = "Training the supernet" if shared else "Training the network"
    return section(title, charts=charts.training(run), notes=notes)


def data(run: Run) -> Section:
    """The section of the data: what they are, and which role was used for what."""
    task = run.result.task

    def several(name: str, value: object) -> str:
        sign = " × " if name.endswith("shape") else ", "
        return sign.join(map(words.show, value)) if isinstance(value, (list, tuple)) else str(value)

    details = [f"{words.plain(name)}: {several(name, value)}" for name, value in task.details.items()]
    rows = [
        (role, words.count(n), _USES.get(role, "as the task defines it")) for role, n in task.sizes.items()
    ]
    shares = [(role, size) for role, size in task.sizes.items() if size > 0 and role in _USES]
    tables = [table(("role", task.examples, "use"), rows, words=True)] if rows else []
    return section("Data", text=[", ".join([task.name, *details])], splits=shares, tables=tables)


def _exported(run: Run) -> Section:
    if run.result.loader:
        return section("")
    size = run.result.exported_batch
    text = "The same network as StableHLO" + ("." if size is None else f", for batches of {size} alone.")
    code = _LOAD_EXPORTED.format(subnet=run.result.subnet or "subnet")
    return section("Load the network without jaxnas", text=[text], code=[("", code)])


def _made(run: Run) -> Section:
    config = dict(run.result.config)
    calls = config.pop(AGAIN, "")
    if kept.places_of(run.result):  # which are drawn
        config["network"] = {name: x for name, x in config["network"].items() if name != "places"}
    if by_binaries(run):
        calls = "\n".join(command(run, binary) for binary in binaries(run))
    shared = config.get("retraining") or config.get("alone") or config.get("training") or {}
    for one in run.retrained:
        own = {name: value for name, value in one.settings.items() if shared.get(name) != value}
        config[f"retrained/{one.folder}"] = own
    versions = dict(run.result.versions) | ({"device": run.result.device} if run.result.device else {})
    lists: dict[str, Mapping[str, Any]] = {
        "Configuration": flatten_dict(config, sep="."),
        "Versions": versions,
    }
    code = [("Run it again", calls)] if isinstance(calls, str) and calls else []
    same = ["The same configuration on the same kind of machine gives the same result and this page again."]
    notes = (same if code else []) + (
        [] if lists["Configuration"] else ["The configuration was not recorded."]
    )
    return section("How this was made", code=code, lists={k: v for k, v in lists.items() if v}, notes=notes)
