"""The top of the page: what was found and how, what it costs, and how sure that is."""

from __future__ import annotations

import math

from jaxnas.report import latency, layers, networks, selection, words
from jaxnas.report.read import Retrained, Run
from jaxnas.report.result import Network
from jaxnas.report.svg import count, esc, is_number, percent

# Extraction must reproduce the supernet's outputs this closely (relative, in float32).
EXACT = 1e-5


def final(
    run: Run, network: Network | None = None
) -> tuple[float | None, float | None, networks.Group | None]:
    """How good an architecture is, by default the found one: the metric, its spread over seeds, and of whom.

    That is the best group of retrainings of the architecture; without any, the network's own weights.
    """
    network = network or run.result.found
    for group in networks.groups_of(run, network):
        value = group.metric(run.metric.name, run.final_role)
        if value is not None:
            return *value, group
    return run.value(network, run.final_role), None, None


def lead_over_linear(run: Run) -> float | None:
    """How much better the headline's figure is than a linear model's; None where that was not measured."""
    value, linear = final(run)[0], run.result.linear.get(run.final_role)
    return None if value is None or linear is None else run.sign * (value - linear)


def retrained(run: Run) -> Retrained | None:
    """The training alone whose network subnet/ holds: of the headline's, the one that does best."""
    group = final(run)[2]
    if group is None:
        return None
    role = networks.ranking_role(run)

    def score(one: Retrained) -> float:
        value = run.value(one.network, role)
        return -math.inf if value is None else run.sign * value

    return max(group.members, key=score)


def headline(run: Run) -> tuple[str, str, str]:
    """What was found in one line: the part before its most important figure, that figure, and the rest."""
    metric, name = run.metric, words.metric_name(run.metric, run.final_role)
    before, after = f"{words.capital(name)} of ", words.unit_text(metric)
    if metric.unit == "%":
        before, after = "", f" {name}"
    elif words.says_all(metric):
        before, after = "", f"{after} on the {run.final_role} data"
    if run.cost is not None:
        cost = run.result.found.costs[run.cost]
        if run.cost == latency.COST and run.timed:
            cost = run.timed["milliseconds"]["found"][1]
        after += f" with {words.cost_amount(run.cost, cost)}"
        share = _share(run)
        after += f", {share[1]} of the {share[0]} network’s" if share else ""
    return before, words.value_text(metric, final(run)[0], 1), after


def _share(run: Run) -> tuple[str, str] | None:
    """The reference network's name, and the first cost of the found one as a part of its own."""
    if run.cost is None or run.reference is None:
        return None
    if run.cost == latency.COST and run.timed:  # claimed is only what was measured
        part = latency.share(run, run.reference.name)
        return None if part is None else (run.reference.name, percent(part, 0))
    mine, whole = run.result.found.costs[run.cost], run.reference.costs.get(run.cost)
    if run.reference.name == "largest":  # The last options of all choices; others may cost more.
        reached = [one.reachable[run.cost][1] for one in run.result.searches if run.cost in one.reachable]
        whole = max([x for x in (whole, *reached) if is_number(x)], default=None)
    if not (is_number(mine) and is_number(whole) and whole > 0):
        return None
    return run.reference.name, percent(mine / whole, 0)


def lead(run: Run) -> str:
    """What was done and how sure the result is, as HTML sentences."""
    result, sentences = run.result, []
    space = f"{words.power_text(result.space.cardinality)} different networks"
    searches = [one for one in result.searches if not one.name.startswith("random")] or result.searches
    bounds = [f"{_between(name, *pair)}" for name, pair in run.bounds.items()]
    within = f", within a budget of {esc(words.listed(bounds))}" if bounds else ""
    if result.selection is not None:
        steps = f"{count(result.selection.steps)} steps"
        learned = (
            f"A differentiable search of {steps} over {space} learned how probable each option should be"
        )
        if selection.weights_were_even(run):
            learned = f"A supernet of {space} was trained for {steps} with the same weight for every option"
        sentences.append(f"{learned}, and {selection.how(run)}{'' if searches else within}.")
    if searches:
        names = words.listed([words.strategy_name(one.name) for one in searches])
        there = "them" if sentences else space
        made = count(sum(one.evaluations for one in searches))
        sentences.append(f"{esc(words.capital(names))} made {made} evaluations among {there}{within}.")
        sentences.append("All of them share the weights of one supernet.")
    if not sentences:
        sentences.append(f"The search space holds {space}.")
    if result.found.extraction_error is not None:
        text = "The one chosen was extracted as a stand-alone network and measured on"
        sentences.append(f"{text} the {esc(run.final_role)} data.")
    return " ".join([*sentences, *_stacked(run), *_sure(run)])


def _between(cost: str, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        most = low is None
        return f"at {'most' if most else 'least'} {words.cost_amount(cost, high if most else low)}"
    return f"{words.cost_text(low)} to {words.cost_amount(cost, high)}"


def _stacked(run: Run) -> list[str]:
    """How often each option occurs in stacks of named blocks."""
    sentences, choices = [], run.result.space.choices
    if graph := layers.layers_of(run.result.found.architecture, choices):
        kinds = [one.kind for one in graph]
        numbers = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        parts = [f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in numbers.items()]
        return [f"Its layers are {words.listed(parts)}."]
    for name, choice in choices.items():
        values = run.result.found.architecture.get(name)
        if not (words.is_stack(choice) and isinstance(values, (list, tuple))):
            continue
        values = [value for value in values if value is not None]
        counts = {option: list(values).count(option) for option in words.options_of(choice)}
        parts = [f"{n} {'is' if n == 1 else 'are'} {words.plain(one)}" for one, n in counts.items() if n]
        text = f"Of its {len(values)} positions of {words.plain(name)}, {words.listed(parts)}."
        if len(parts) == 1:
            text = f"Its {words.plain(name)} is {words.plain(values[0])} throughout."
        sentences += [esc(text)] if parts else []
    return sentences


def _sure(run: Run) -> list[str]:
    """How far the main figure can be trusted."""
    value, spread, group = final(run)
    name, sentences = words.metric_name(run.metric, run.final_role), []
    if group is not None:
        text = f"Trained {group.weights}" if group.weights == "from scratch" else "Fine-tuned"
        figure = networks.spread_text(run.metric, (value or 0.0, spread)) + words.unit_text(run.metric)
        few, end = ("one seed", "; another seed would differ a little")
        if spread is not None:
            few, end = f"{len(group.members)} seeds", " on average, where ± is one standard deviation"
        sentences.append(f"{text} with {few}, it has a {name} of {figure}{end}.")
    error, size = _error(run, value, group), run.result.task.sizes.get(run.final_role, 0)
    examples = f"{count(size)} {run.final_role} {run.result.task.examples}"
    if error is not None:
        figure = words.difference_text(run.metric, error)[1:]
        sentences.append(f"With {examples} the standard error of the {name} is {figure}.")
    if value == 1 and size and words.is_accuracy(run.metric):
        least = percent(words.least_without_errors(size), 2)
        sentences.append(
            f"It made no error on {examples}; with 95 % confidence its accuracy is above {least}."
        )
    return [esc(sentence) for sentence in sentences]


def _error(run: Run, value: float | None, group: networks.Group | None) -> float | None:
    """The standard error of the main figure over the examples that it was measured on."""
    network = run.result.found if group is None else group.members[0].network
    return words.standard_error(run.result.task, run.metric, run.final_role, network, value)


def tiles(run: Run) -> str:
    """The figures that most people look for, as HTML."""
    result, metric, found, role = run.result, run.metric, run.result.found, run.final_role
    value, spread, group = final(run)
    error, size = _error(run, value, group), count(result.task.sizes.get(role, 0))
    sub = "with inherited weights" if found.weights == "inherited" else found.weights
    if group is not None:
        number = len(group.members)
        sub = f"{number} seed{'s' if number > 1 else ''}, {group.weights}"
        if spread is not None:
            figure = networks.spread_text(metric, (value or 0.0, spread))
            sub = f"±{figure.partition('±')[2]} over {sub}"
    elif error is not None:
        figure = f"{100 * error:.2f}" if metric.unit == "%" else f"{error:.2g}"
        sub = f"± {figure} (s.e., {size} {result.task.examples})"
    shown = [(words.metric_name(metric, role, unit=True), words.value_text(metric, value), sub, "")]
    for other in result.task.metrics[1:3]:
        known = group.metric(other.name, role) if group is not None else None
        one = known[0] if known else found.metrics.get(role, {}).get(other.name)
        if one is not None:
            shown.append((words.metric_name(other, role, unit=True), words.value_text(other, one), "", ""))
    seen = run.value(found, run.search_role)
    if run.search_role != role and seen is not None:
        label = words.metric_name(metric, run.search_role, unit=True)
        shown.append((label, words.value_text(metric, seen), "what the search saw", ""))
    linear = result.linear.get(role)
    if linear is not None:
        lead, sub = lead_over_linear(run), "as good as this network"
        if value is not None and lead:
            sub = f"this network: {words.difference_text(metric, value - linear)}"
        shown.append(
            (
                "a linear model’s " + words.metric_name(metric, role, unit=True),
                words.value_text(metric, linear),
                sub,
                "good" if lead and lead > 0 else "bad",
            )
        )
    for name, cost in found.costs.items():
        if name == latency.COST and run.timed:
            low, cost, high = run.timed["milliseconds"]["found"]
            spread = f"measured; quartiles {low:.3g} and {high:.3g}"
            shown.append((words.cost_name(name), words.cost_text(cost), spread, ""))
            continue
        full = count(cost) if words.cost_text(cost) != count(cost) and float(cost).is_integer() else ""
        shown.append((words.cost_name(name), words.cost_text(cost), full, ""))
    share = _share(run)
    if share is not None and run.reference is not None:
        gap = f"of its {words.cost_name(run.cost or '')}"
        theirs, _, other = final(run, run.reference)
        weights = group.weights if group else found.weights
        same = weights == (other.weights if other else run.reference.weights)
        # Where others cost more than the reference, the share is not of its cost.
        same &= run.reference.name != "largest" or run.is_extreme("largest")
        if same and value is not None and theirs is not None:
            what = f"on {role}" if words.says_all(metric) else words.metric_name(metric, role)
            gap += f"; {words.difference_text(metric, value - theirs)} {what}"
        shown.append((f"against the {share[0]} network", share[1], gap, ""))
    error = found.extraction_error
    if is_number(error):
        good = error <= EXACT
        verdict = f"{'✓ within' if good else '✗ above'} {EXACT:g}, relative"
        shown.append(("extraction error", f"{error:.1e}", verdict, "good" if good else "bad"))
    columns = len(shown) if len(shown) <= 6 else -(-len(shown) // 2)
    body = "".join(
        f'<div><dt>{esc(name)}</dt><dd><div class="big">{esc(figure)}</div>'
        f'<div class="sub {kind}">{esc(sub)}</div></dd></div>'
        for name, figure, sub, kind in shown
    )
    return f'<dl class="tiles" style="--columns:{columns}">{body}</dl>'
