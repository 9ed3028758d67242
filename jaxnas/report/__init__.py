"""Figures and the HTML pages of runs."""

from jaxnas.report import figures
from jaxnas.report.language import write_language
from jaxnas.report.page import render, summary_lines, write
from jaxnas.report.read import Run, read_run

__all__ = ["Run", "figures", "read_run", "render", "summary_lines", "write", "write_language"]
