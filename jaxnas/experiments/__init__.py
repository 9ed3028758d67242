"""The laboratory: five binaries and their configs."""

from jaxnas.experiments.config import Config, ConfigError

__all__ = ["Config", "ConfigError"]
