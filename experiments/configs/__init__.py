"""The configs that the binaries know by name; one file for each system."""

from experiments.configs import attention, autoformer, hybrid, par, s3

CONFIGS = {
    config.name: config for system in (autoformer, s3, hybrid, par, attention) for config in system.CONFIGS
}
