"""How long the found network takes, as it was timed from end to end beside the largest and the smallest."""

from __future__ import annotations

from jaxnas.report.document import note, say, section, table
from jaxnas.report.read import Run
from jaxnas.report.svg import count, esc, percent

COST = "latency_ms"


def share(run: Run, other: str) -> float | None:
    """The found network's time as a part of another's; None if their quartiles overlap, or none was timed."""
    times = run.timed.get("milliseconds", {})
    if other not in times or times["found"][2] >= times[other][0]:
        return None
    return times["found"][1] / times[other][1]


def sentences(run: Run) -> list[str]:
    """What was measured, in words; [] where nothing was."""
    times = run.timed.get("milliseconds")
    if not times:
        return []
    low, middle, high = times["found"]
    text = f"A batch of {count(run.timed['rows'])} takes the found network {_ms(middle)} ms"
    said = [f"{text} on {run.timed['device']} (quartiles {_ms(low)} and {_ms(high)})."]
    part = share(run, "largest")
    if "largest" in times:
        compared = "It is no faster than the largest network within the noise."
        if part is not None:
            compared = f"That is {percent(part, 0)} of the largest network’s time."
        said.append(compared)
    if "smallest" in times and times["smallest"][0] > high:
        said.append("The smallest network is slower: time does not follow size here.")
    _, most = run.bounds.get(COST, (None, None))
    if most is not None:
        verdict = "keeps" if high <= most else "exceeds" if low > most else "is, within the noise, at"
        said.append(f"It {verdict} the budget of at most {_ms(most)} ms.")
    summed = run.result.found.costs.get(COST)
    if summed is not None:
        said.append(f"The table that the search went by has {_ms(summed)} ms for it, a sum over decisions.")
        if COST in run.bounds and not 2 / 3 < summed / middle < 3 / 2:
            said.append(
                "The two are far apart, so the search was misled: delete latency.json and search/ and search "
                "again while nothing else runs."
            )
    return said


def panel(run: Run) -> str:
    """The section of the measured latency; "" where there is none."""
    times = run.timed.get("milliseconds", {})
    rows = [
        (name, [_ms(middle), f"{_ms(low)} to {_ms(high)}"]) for name, (low, middle, high) in times.items()
    ]
    return section(
        "Latency, as measured",
        say(esc(" ".join(sentences(run)))),
        table(["network", "median (ms)", "quartiles (ms)"], rows, first=True) if rows else "",
        note("The networks were timed in turn, so that a slow moment of the machine met each.")
        if rows
        else "",
    )


def _ms(value: float) -> str:
    return f"{value:.3g}"
