"""The contents of a run's page, as a dict of texts, tables and charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The contents of a finished run's page.

    Returns:
      "title", "task", "eyebrow", "heading" as (before, figure, after), "lead", "tiles" and "sections".
      A section has a "title" and what it is made of: "text", "steps", "code", "picture", "charts" by name,
      "tables", "lists" and "notes".
    """
    steps = section("Is it any good, and what to do next", steps=[x._asdict() for x in advice.advice(run)])
    parts = [steps, *_used(run), *_found(run), *_tried(run), *_measured(run), *training(run), *_made(run)]
    return frame(run, networks.headline(run), _lead(run), parts) | {"tiles": tiles(run)}


def running(run: Run, doing: str) -> Facts:
    """The contents of a running run's page; `doing` describes its progress."""
    best, curve = bool(run.result.found.metrics), charts.best_so_far(run)
    waiting = [] if run.metrics or run.history else ["The first figures appear here."]
    parts = [section("Nothing is recorded yet", text=waiting), *(_found(run, so_far=True) if best else ())]
    parts += [section("Best so far", charts={"search": curve} if best and curve else {})]
    heading = ("Training on ", run.result.task.name, "")
    if best:
        before, value, after = networks.headline(run)
        heading = (f"Best so far: {before}", value, after)
    page = frame(run, heading, [doing], [*parts, *selection.sections(run), *training(run)])
    return page | {"tiles": tiles(run) if best else []}


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


def section(title: str, **parts: Any) -> Section:
    """A section of a page."""
    return {"title": title, **parts}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], **more: Any) -> dict[str, Any]:
    """A table; `more` has "fold", its summary if it opens on a click, and "words" if it is no numbers."""
    return {"head": list(head), "rows": [list(row) for row in rows], **more}


def _lead(run: Run) -> list[str]:
    """The work done and the uncertainty of the result."""
    result, (value, spread, group) = run.result, networks.final(run)
    name, size = words.metric_name(run.metric, run.final_role), result.task.sizes.get(run.final_role, 0)
    examples = f"{words.count(size)} {run.final_role} {result.task.examples}"
    done = [f"The space has {words.power_text(result.space.cardinality)} architectures."]
    done += [selection.how(run)] if result.selection is not None else []
    for one in result.searches:
        within = [_between(cost, *pair) for cost, pair in one.bounds.items() if pair != (None, None)]
        strategy, count = words.capital(words.strategy_name(one.name)), words.count(one.evaluations)
        done.append(f"{strategy}: {', '.join([f'{count} evaluations', *within])}.")
    if group is not None:
        figure = networks.spread_text(run.metric, (value or 0.0, spread)) + words.unit_text(run.metric)
        seeds = "one seed" if spread is None else f"{len(group.members)} seeds (mean ± standard deviation)"
        trained = "Trained from scratch" if group.weights == "from scratch" else "Fine-tuned"
        done.append(f"{trained} with {seeds}: {name} {figure}.")
    if (error := networks.error_of(run)) is not None:
        done.append(f"Standard error of the {name} over {examples}: {words.amount_text(run.metric, error)}.")
    if value == 1 and size and words.is_accuracy(run.metric):
        least = words.percent(words.least_without_errors(size), 2)
        done.append(f"No error on {examples}: with 95 % confidence its accuracy is above {least}.")
    return done


def _between(cost: str, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        least = "at most" if low is None else "at least"
        return f"{least} {words.cost_amount(cost, high if low is None else low)}"
    return f"{words.cost_text(low)} to {words.cost_amount(cost, high)}"


def tiles(run: Run) -> list[dict[str, str]]:
    """The figures that most people look for: "name", "value", "sub" and perhaps "kind"."""
    result, metric, found, role = run.result, run.metric, run.result.found, run.final_role
    (value, spread, group), shown = networks.final(run), []

    def tile(name: str, value: str, sub: str = "", kind: str = "") -> None:
        shown.append({"name": name, "value": value, "sub": sub, "kind": kind})

    sub = "inherited weights" if found.weights == "inherited" else found.weights
    if group is not None:
        sub = f"{len(group.members)} seed{'s' if len(group.members) > 1 else ''}, {group.weights}"
        if spread is not None:
            sub = f"±{networks.spread_text(metric, (value or 0.0, spread)).partition('±')[2]} over {sub}"
    elif (error := networks.error_of(run)) is not None:
        size = words.count(result.task.sizes.get(role, 0))
        sub = f"± {100 * error:.2f}" if metric.unit == "%" else f"± {error:.2g}"
        sub += f" (s.e., {size} {result.task.examples})"
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
        text, sub = words.cost_text(cost), words.count(cost)
        if name == LATENCY and run.timed:
            low, cost, high = run.timed["milliseconds"]["found"]
            text, sub = words.cost_text(cost), f"measured; quartiles {low:.3g} and {high:.3g}"
        elif text == sub or not (words.is_number(cost) and float(cost).is_integer()):
            sub = ""
        tile(words.cost_name(name), text, sub)
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
    if words.is_number(error := found.extraction_error):
        kind, sign = ("good", "✓ within") if error <= EXACT else ("bad", "✗ above")
        tile("extraction error", f"{error:.1e}", f"{sign} {EXACT:g}, relative", kind)
    return shown


def latency_text(run: Run) -> list[str]:
    """The measured latency as sentences; [] if there is none."""
    times = run.timed.get("milliseconds")
    if not times:
        return []
    low, middle, high = times["found"]
    batch = f"A batch of {words.count(run.timed['rows'])} takes {middle:.3g} ms on {run.timed['device']}"
    done, part = [f"{batch} (quartiles {low:.3g} and {high:.3g})."], networks.latency_share(run, "largest")
    if "largest" in times:
        share = f"That is {words.percent(part, 0)} of the largest network’s time."
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
            again = "delete latency.json and search/ and search again while nothing else runs."
            done.append(f"The two are far apart, so the search was misled: {again}")
    return done


def _used(run: Run) -> Iterator[Section]:
    """How long the found network takes, and how to load it."""
    if drawn := charts.latency(run):
        yield section("Latency, as measured", text=latency_text(run), charts={"latency": drawn})
    result, subnet, module = run.result, run.result.subnet or "subnet", run.result.module
    chosen = networks.retrained(run)
    net = result.found if chosen is None else chosen.network
    trained = f", seed {net.seed}, {words.count(net.steps)} steps" if net.seed is not None else ""
    notes = [f"Weights: {net.weights}{trained}."]
    if result.loader:
        language = result.loader == "AutoModelForCausalLM"
        tokenizer = f'\ntokenizer = AutoTokenizer.from_pretrained("{subnet}")' if language else ""
        more = ", AutoTokenizer" if language else ""
        code = _LOAD_CHECKPOINT.format(loader=result.loader, subnet=subnet, more=more, tokenizer=tokenizer)
        notes.append(f'With jaxnas: module, variables, config = jaxnas.hf.load("{subnet}").')
    else:
        imported = f"\nfrom my_network import {module}  # from where your class is" if module else ""
        code = _LOAD.format(subnet=subnet, imported=imported, module=f", module={module}" if module else "")
        notes.insert(0, f"Inputs: {result.task.inputs}." if result.task.inputs else "")
        notes.append(f"Preprocessing of inputs and meaning of outputs: {subnet}/preprocessing.json.")
    yield section("Load the network", code=[("", code)], notes=notes)


def _found(run: Run, so_far: bool = False) -> Iterator[Section]:
    """All that was evaluated, and the best of it."""
    if drawn := charts.scatter(run):
        better, meta = "More" if run.sign > 0 else "Less", drawn["usermeta"]
        text = f"Every evaluated architecture; {meta['front']} are on the Pareto front. {better} is better."
        notes = [f"{meta['outside']} evaluations are beyond the axis."] if meta["outside"] else []
        notes.append("Ctrl + wheel zooms, dragging moves, a double click resets; click the legend to filter.")
        name = f"{words.metric_name(run.metric, run.search_role)} against {words.cost_name(run.cost or '')}"
        yield section(words.capital(name), text=[text], charts={"scatter": drawn}, notes=notes)
    title, result = "The best architecture so far" if so_far else "The found architecture", run.result
    architecture, choices = result.found.architecture, result.space.choices
    rows = [
        (words.plain(k), words.show(v), ", ".join(words.options_of(choices.get(k, {}))) or "–")
        for k, v in architecture.items()
    ]
    every = table(("decision", "value", "options"), rows, words=True, fold="all decisions and their options")
    if places := kept.places_of(result):
        rest = words.listed(kept.beside(places, architecture))
        text = f"The share of each size that is kept, by block. {rest and f'Beside the sizes: {rest}.'}"
        yield section(title, text=[text], charts={"kept": kept.chart(places, architecture)}, tables=[every])
        return
    others: dict[str, Any] = {}
    for net in (*result.networks, *(one.network for one in run.retrained)):
        others.setdefault("found before" if net.name == "found" else net.name, net.architecture)
    drawn = pictures.picture(architecture, choices, others)
    yield section(title, picture=drawn, tables=[every if drawn else every | {"fold": ""}] if rows else [])


def _tried(run: Run) -> Iterator[Section]:
    """The course of the search, by method."""
    if record := run.result.replacements:
        metric = "Kullback–Leibler divergence of predictions" if record.metric == "kl" else record.metric
        text = (
            f"{words.count(record.evaluations)} networks that replace one place of the largest were compared "
            f"with it by the {metric} ({record.unit}). The best sum within a budget is exact; the whole was "
            "then measured. All with inherited weights."
        )
        cost, drawn = words.cost_name(record.budget), charts.budgets(run)
        rows = []
        for one in sorted((record.found, *record.others), key=lambda one: -one.cost):
            name = "this run" if one.share is None else f"{words.percent(one.share, 0)} of {cost}"
            rows.append((name, words.cost_text(one.cost), f"{one.estimated:.3g}", f"{one.measured:.3g}"))
        measured = table(("budget", cost, "sum of replacements", f"measured ({record.unit})"), rows)
        shown = {"budgets": drawn} if drawn else {}
        yield section("What other budgets would cost", text=[text], charts=shown, tables=[measured])
    if run.result.spaces:
        yield _spaces(run)
    yield from selection.sections(run)
    if run.history or run.result.searches:
        yield _searches(run)
    if (ranking := run.result.ranking) and (drawn := charts.ranking(run)):
        count, tau, ends = len(drawn["datasets"]["ranked"]), ranking.kendall_tau, ranking.interval
        text = (
            f"{count} random architectures, each also trained alone for {words.count(ranking.steps)} steps."
        )
        verdict = "Kendall’s tau is not defined, since all values of one kind are equal."
        if words.is_number(tau):
            within = (
                " (95 % bootstrap interval {:.2f} to {:.2f})".format(*ends)
                if all(map(words.is_number, ends))
                else ""
            )
            verdict = (
                f"Kendall’s tau is {tau:.2f}{within}: 1 is the same order, 0 no relation, −1 the reverse."
            )
        lost = len(ranking.alone) - count
        notes = [f"{lost} more diverged when trained alone, and are left out."] if lost else []
        title = "How well the supernet ranks architectures"
        yield section(title, text=[text, verdict], charts={"ranking": drawn}, notes=notes)


def _spaces(run: Run) -> Section:
    spaces, metric, role = run.result.spaces, run.metric, run.search_role
    text = [
        f"{one.name}: E-T error {words.value_text(metric, one.et_error)}, {len(one.errors):,} architectures."
        for one in spaces
    ]
    change = words.difference_text(metric, spaces[-1].et_error - spaces[0].et_error)
    text.append(f"From {spaces[0].name} to {spaces[-1].name} it changes by {change}.")
    axis = charts.metric_axis(metric, role)
    error = axis if metric.direction == "min" else axis._replace(title=f"{role} error")
    shown = {f"shift-{i}": spec for i, spec in enumerate(charts.shifts(spaces).values())}
    shown["errors"] = charts.errors(spaces, error)
    rows = []
    for one, x in [(space, shift) for space in spaces for shift in space.shifts]:
        rise = words.difference_text(metric, x.slope * x.step).split()[0].lstrip("±")
        spread = words.amount_text(metric, x.standard_error * x.step).split()[0]
        by = (
            f"{'up' if x.steps > 0 else 'down'} by {words.show(abs(x.steps) * x.step)}"
            if x.steps
            else "stays"
        )
        row = (words.plain(x.name), one.name, words.show(x.old), words.show(x.new), by)
        rows.append((*row, f"{rise} ± {spread}", words.show(x.step), f"{x.r_squared:.2f}"))
    slope = f"rise of the error over one step{words.difference_unit(metric)}"
    head = ("choice", "space", "options", "in the next space", "moves", slope, "step", "R²")
    notes = [
        "The E-T error is half the mean error of a sample and half that of its best. Options move where the "
        "slope is more than two standard errors, or beyond the threshold that was set."
    ]
    return section(
        "How the search space moved", text=text, charts=shown, tables=[table(head, rows)], notes=notes
    )


def gain_text(run: Run) -> list[str]:
    """The gain over random search as sentences; [] if that was not run."""
    other, metric, text = run.network("random search"), run.metric, []
    for role in dict.fromkeys((run.search_role, run.final_role)) if other else ():
        mine, theirs = run.value(run.result.found, role), run.value(other, role) if other else None
        if mine is None or theirs is None or other is None:
            continue
        gain, how = run.sign * (mine - theirs), "exactly as good as"
        if gain:
            how = f"{words.amount_text(metric, gain)} {'better' if gain > 0 else 'worse'} than"
        done = f"On the {role} data the found network is {how} random search’s best"
        pairs = ((run.result.found, mine), (other, theirs))
        errors = [words.standard_error(run.result.task, metric, role, *pair) for pair in pairs]
        error = math.hypot(*(one for one in errors if one is not None))
        if role == run.final_role and error and gain:
            times = f"{abs(gain) / error:.1f} times the standard error of the difference"
            done += ", " if abs(gain) >= 2 * error else "; this may be chance: "
            done += f"{times} ({words.amount_text(metric, error)})"
        text.append(f"{done}.")
    return text


def _searches(run: Run) -> Section:
    other = run.network("random search")
    curve = None if run.result.replacements else charts.best_so_far(run)
    notes = (
        [] if curve or run.result.replacements else ["The search has no history here, so it cannot be drawn."]
    )
    notes += [] if other else ["Random search was not run beside it, so the gain of the search is not known."]
    title = "Search against random search" if other else "How the search went"
    return section(title, text=gain_text(run), charts={"search": curve} if curve else {}, notes=notes)


def _measured(run: Run) -> Iterator[Section]:
    """The networks side by side, and those that were trained alone."""
    nets, linear = [run.result.found, *run.result.networks], run.result.linear
    costs, columns = networks.columns(run, nets)
    main = [(role, metric) for role, metric in columns if role == run.final_role or metric is run.metric]

    def named(net: Network) -> str:
        extreme = net.name in _OF_OPTIONS and not run.is_extreme(net.name)
        return networks.label((_OF_OPTIONS if extreme else _NAMES).get(net.name, net.name), [net])

    def head(costs: Sequence[str], columns: Sequence[networks.Column]) -> list[str]:
        shown = [words.metric_name(metric, role, unit=True) for role, metric in columns]
        return ["network", *map(words.cost_name, costs), *shown]

    def compared(columns: Sequence[networks.Column], **more: Any) -> dict[str, Any]:
        rows = []
        for net in nets:
            cells = [words.value_text(m, net.metrics.get(role, {}).get(m.name)) for role, m in columns]
            rows.append((named(net), *(words.cost_text(net.costs.get(cost)) for cost in costs), *cells))
        if linear:
            cells = [
                words.value_text(m, linear.get(role) if m is run.metric else None) for role, m in columns
            ]
            rows.append((words.LINEAR, *("–" for _ in costs), *cells))
        return table(head(costs, columns), rows, first=True, **more)

    every = [compared(columns, fold="all metrics")] if len(main) < len(columns) else []
    yield section("The networks side by side", tables=[compared(main), *every])
    if not (made := networks.groups(run)):
        return
    costs, columns = networks.columns(run, [one.network for one in run.retrained])
    columns = [(role, metric) for role, metric in columns if role == run.final_role or metric is run.metric]
    times = [
        key for key in networks.TIMES if any(words.is_number(one.times.get(key)) for one in run.retrained)
    ]
    rows = []
    for group in made:
        alone = [one.network for one in group.members]
        cells = [words.cost_text(alone[0].costs.get(cost)) for cost in costs]
        cells += [networks.spread_text(metric, group.metric(metric.name, role)) for role, metric in columns]
        for key in times:
            known = [t for one in group.members if words.is_number(t := one.times.get(key))]
            cells.append(words.short(statistics.fmean(known)) if known else "–")
        rows.append((networks.label(group.name, alone), *cells))
    text = [f"The best {words.metric_name(run.metric, networks.ranking_role(run))} is first."]
    if any(len(group.members) > 1 for group in made):
        text.append("Figures are means over the seeds ± one standard deviation.")
    notes = ["Times are medians on the device below; they differ from run to run."] if times else []
    columns_of = [*head(costs, columns), *(networks.TIMES[key] for key in times)]
    yield section("Trained alone", text=text, tables=[table(columns_of, rows)], notes=notes)


def training(run: Run) -> Iterator[Section]:
    """The curves of the training and what went wrong on the way, and the data with their roles."""
    result, task, notes = run.result, run.result.task, []
    if lost := sum("loss" in line and not words.is_number(line["loss"]) for line in run.metrics):
        notes.append(f"{lost} losses were not finite numbers and are not drawn.")
    notes += [f"The training was {result.interrupted}."] if result.interrupted else []
    shared = result.searches or result.selection or run.of_split("search")
    yield section(
        f"Training the {'supernet' if shared else 'network'}", charts=charts.training(run), notes=notes
    )

    def several(name: str, value: object) -> str:
        sign = " × " if name.endswith("shape") else ", "
        return sign.join(map(words.show, value)) if isinstance(value, (list, tuple)) else str(value)

    details = [f"{words.plain(name)}: {several(name, value)}" for name, value in task.details.items()]
    rows = [
        (role, words.count(n), _USES.get(role, "as the task defines it")) for role, n in task.sizes.items()
    ]
    shares = [(role, size) for role, size in task.sizes.items() if size > 0 and role in _USES]
    tables = [table(("role", task.examples, "use"), rows, words=True)] if rows else []
    yield section("Data", text=[", ".join([task.name, *details])], splits=shares, tables=tables)


def _made(run: Run) -> Iterator[Section]:
    """How to load the network without jaxnas, and how the run was made."""
    config, size = dict(run.result.config), run.result.exported_batch
    if not run.result.loader:
        text = "The same network as StableHLO" + ("." if size is None else f", for batches of {size} alone.")
        code = _LOAD_EXPORTED.format(subnet=run.result.subnet or "subnet")
        yield section("Load the network without jaxnas", text=[text], code=[("", code)])
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
    notes = (
        ["The same configuration on the same kind of machine gives the same result and this page again."]
        if code
        else []
    )
    notes += [] if lists["Configuration"] else ["The configuration was not recorded."]
    yield section("How this was made", code=code, lists={k: v for k, v in lists.items() if v}, notes=notes)
