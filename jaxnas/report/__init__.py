"""The page of a run, its result file, and the page of a comparison of strategies."""

from jaxnas.report import comparison, live, result
from jaxnas.report.kept import kept_svg
from jaxnas.report.page import save_png, summary_lines, write
from jaxnas.report.read import Retrained, Run, read_run
from jaxnas.training.progress import times_line

__all__ = [
    "Retrained",
    "Run",
    "comparison",
    "kept_svg",
    "live",
    "read_run",
    "result",
    "save_png",
    "summary_lines",
    "times_line",
    "write",
]
