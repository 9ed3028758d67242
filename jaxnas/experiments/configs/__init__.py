"""The configs that the binaries know by name; one file for each system."""

from jaxnas.experiments.config import by_name
from jaxnas.experiments.configs import attention, autoformer, hybrid, par, s3, shrink

_SYSTEMS = (autoformer, s3, hybrid, par, attention, shrink)
CONFIGS = by_name([config for system in _SYSTEMS for config in system.CONFIGS], "jaxnas.experiments.configs")
