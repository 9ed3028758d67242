"""Tasks: what a network is trained for, and on what; one file for each kind of data."""

from jaxnas.tasks.graphs import Graphs
from jaxnas.tasks.images import Images
from jaxnas.tasks.language import Language
from jaxnas.tasks.table import Table
from jaxnas.tasks.task import Call, Metric, Predictions, Task
from jaxnas.tasks.text import Text

__all__ = ["Call", "Graphs", "Images", "Language", "Metric", "Predictions", "Table", "Task", "Text"]
