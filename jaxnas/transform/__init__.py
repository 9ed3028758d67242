"""Makes a supernet of a network that knows nothing of jaxnas, whatever library it is written in."""

from jaxnas.axes.groups import Fixed, Group, Groups, analyze
from jaxnas.transform.order import order, rank_modules
from jaxnas.transform.places import Depth, Size, Skip
from jaxnas.transform.supernet import Supernet, supernet

__all__ = [
    "Depth",
    "Fixed",
    "Group",
    "Groups",
    "Size",
    "Skip",
    "Supernet",
    "analyze",
    "order",
    "rank_modules",
    "supernet",
]
