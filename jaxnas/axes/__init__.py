"""Finds the axes of any JAX function that belong together, by a walk over its jaxpr."""
