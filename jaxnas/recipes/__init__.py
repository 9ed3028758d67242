"""Recipes: which architectures a training step trains, what they learn from, and how gradients are joined.

A recipe is a frozen dataclass of pure functions; it knows no data, files or devices. `training.fit` runs it.
"""

from jaxnas.recipes.distillation import Distillation, Teacher
from jaxnas.recipes.hard import Fair, Fixed, Progressive, Sandwich, Uniform
from jaxnas.recipes.recipe import Gradients, Recipe
from jaxnas.recipes.relaxed import Relaxed
from jaxnas.recipes.samplers import Attentive, Random, Stratified

__all__ = [
    "Attentive",
    "Distillation",
    "Fair",
    "Fixed",
    "Gradients",
    "Progressive",
    "Random",
    "Recipe",
    "Relaxed",
    "Sandwich",
    "Stratified",
    "Teacher",
    "Uniform",
]
