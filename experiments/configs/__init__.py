"""The configs that the binaries know by name; one file for each system."""

from experiments.configs import autoformer, par

CONFIGS = {config.name: config for config in (*autoformer.CONFIGS, *par.CONFIGS)}
