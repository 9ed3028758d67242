"""AutoAttend: graphs of additions and attentions, for texts and for nodes (Guan et al., ICML 2021)."""

from jaxnas.supernets.autoattend import graph_operations
from jaxnas.supernets.autoattend.nodes import AutoAttendNodes
from jaxnas.supernets.autoattend.text import AutoAttendText

__all__ = ["AutoAttendNodes", "AutoAttendText", "graph_operations"]
