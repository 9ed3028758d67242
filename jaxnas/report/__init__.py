"""The page of a run or of a comparison of strategies, and the result file of a run."""

from jaxnas.report import result
from jaxnas.report.findings import read_run
from jaxnas.report.page import save_png, summary_lines, write, write_running
from jaxnas.training.progress import times_line

__all__ = ["read_run", "result", "save_png", "summary_lines", "times_line", "write", "write_running"]
