"""`stack_layers` and `unstack_layers` where they were before the loop over layers became public."""

from jaxnas.elastic.loop import STACKED, stack_layers, unstack_layers

__all__ = ["STACKED", "stack_layers", "unstack_layers"]
