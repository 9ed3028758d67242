"""The laboratory: five binaries and their configs."""

from jaxnas.experiments.config import Config

__all__ = ["Config"]
