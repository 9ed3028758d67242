"""The page of a run or of a comparison of strategies, and the result file of a run."""

from jaxnas.report.findings import read_run
from jaxnas.report.page import save_png, summary_lines, write

__all__ = ["read_run", "save_png", "summary_lines", "write"]
