"""The configs that the binaries know by name; one file for each system."""

from experiments.configs import attention, autoformer, par

CONFIGS = {config.name: config for config in (*autoformer.CONFIGS, *par.CONFIGS, *attention.CONFIGS)}
