"""Tasks: what a network is trained for, and on what; one file for each kind of data."""

from jaxnas.tasks.graphs import Graphs
from jaxnas.tasks.images import Images
from jaxnas.tasks.language import Language
from jaxnas.tasks.table import Table
from jaxnas.tasks.task import ROLES, Call, Metric, Predictions, Task, check_fits, check_predicts
from jaxnas.tasks.text import Text

__all__ = [
    "ROLES",
    "Call",
    "Graphs",
    "Images",
    "Language",
    "Metric",
    "Predictions",
    "Table",
    "Task",
    "Text",
    "check_fits",
    "check_predicts",
]
