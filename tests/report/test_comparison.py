"""The page of a comparison of strategies."""

import pytest
from workdirs import Page

from jaxnas import files
from jaxnas.report.page import write


def strategy(i):
    found = [0.7 + 0.01 * i, 0.8 + 0.01 * i, 0.9 + 0.01 * i]
    band = {"mean": found, "low": [v - 0.01 for v in found], "high": [v + 0.01 for v in found]}
    made = {"name": f"strategy <{i}>", "evaluations": [1, 10, 100], "found": band, "reported": band}
    made |= {"rank": [2, 2, 3 - i], "final": {"mean": found[-1], "std": 0.01}, "networks": 99.5}
    made |= {"seconds_per_search": 0.002 * (i + 1), "simulated_seconds": [60, 600, 6000]}
    made |= {"reached_best": 0.25, "median_queries_to_best": 60 if i > 1 else None}
    return made | {"mean_queries_of_successes": 50 if i else None}


RESULT = {"benchmark": "a & b", "metric": "valid_accuracy", "report_metric": "test_accuracy", "seeds": 7}
RESULT |= {"evaluations": 100, "objective": "max", "networks": 15625, "chunk": 4, "device": "cpu"}
RESULT |= {"best": {"found": 0.95, "reported": 0.95, "reported_of_found": 0.94}}
RESULT |= {"strategies": [strategy(i) for i in range(3)]}


@pytest.mark.parametrize(
    "more, axis", [({}, "in 100 evaluations"), ({"seconds": 6000.0}, "of 100 full trainings")]
)
def test_page_of_a_comparison(tmp_path, more, axis):
    files.write_json(tmp_path / "comparison.json", RESULT | more)
    page = Page(write(tmp_path).read_text(encoding="utf-8"))
    wanted = "strategy <2> finds 0.92 test accuracy", axis, "a & b, of 15,625 networks: 7 searches each"
    wanted += "How far from the best valid accuracy", "25 %", "not reached"
    assert [one for one in wanted if one not in page.text] == []
    assert list(page.charts) == ["reported", "found", "rank", "times"]
    for key in ("reported", "found"):
        rows = page.charts[key]["datasets"]["lines"]
        assert len(rows) == 3 * 3 and {row["s"] for row in rows} == {f"strategy <{i}>" for i in range(3)}
        assert [row["x"] for row in rows[:3]] == ([60, 600, 6000] if more else [1, 10, 100])
        assert [row["y"] for row in rows[:3]] == pytest.approx([0.95 - x for x in (0.7, 0.8, 0.9)])
        assert [row["high"] - row["low"] for row in rows[:6]] == pytest.approx([0.02] * 6)
    assert [row["y"] for row in page.charts["rank"]["datasets"]["lines"][-3:]] == [2, 2, 1]
