"""How long and how to train, and what to record."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.traverse_util
import optax
from jax.sharding import Mesh

from jaxnas.checks import check_counts, check_numbers
from jaxnas.recipes.recipe import standard
from jaxnas.training.mesh import make_mesh

SETTINGS = "training.json"  # of a complete training, for the page of its search
# Settings that do not affect the weights.
FREE = ("devices", "model_devices", "log_every", "evaluate_every", "checkpoint_every", "steps_per_call")
FREE += ("evaluate_limit", "prefetch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how to train, and what to record.

    Attributes:
      steps: of the whole training.
      batch_size: rows of a batch, over all devices; None for 128, or as many as there are.
      learning_rate: at its peak, after the warm-up; a cosine leads down from there.
      warmup_steps: of the learning rate; None for a twentieth of all steps.
      weight_decay: of kernels, decoupled from the gradient (AdamW).
      l2: how much of each parameter is added to its gradient, before the moments of Adam, as by PyTorch's
        Adam(weight_decay=...) and in papers on graphs.
      clip: largest norm of the gradient; None for no limit.
      skip_not_finite: how many steps in a row may have a gradient that is not finite. Such a step changes no
        weight, and is counted; one more ends the training. With 0 the first one does.
      freeze_inactive: leave parameters untouched, bit for bit, that no trained architecture uses.
      average: decay of an average of the parameters that evaluations use, as 0.999; 0 for none.
      log_every: steps between two records of the training metrics.
      evaluate_every: steps between two evaluations; None for a tenth of all steps.
      evaluate_limit: batches of such an evaluation, a fixed random part of its role; None for all.
      checkpoint_every: steps between two checkpoints; None for a tenth of all steps.
      steps_per_call: steps in one compiled call; fewer where something is recorded first.
      prefetch: how many batches are made and brought to the devices ahead of their step, in a thread; 0
        for none.
      devices: how many to use; None for all.
      model_devices: how many of them share each parameter; 1 where each device has room for all.

    Raises:
      ValueError: a number out of range, named.

    Example:
      >>> training.Training(steps=2000, learning_rate=3e-3, steps_per_call=10).warmup_steps is None
      True
    """

    steps: int
    batch_size: int | None = None
    learning_rate: float = 2e-3
    warmup_steps: int | None = None
    weight_decay: float = 0.05
    l2: float = 0.0
    clip: float | None = None
    skip_not_finite: int = 0
    freeze_inactive: bool = True
    average: float = 0.0
    log_every: int = 50
    evaluate_every: int | None = None
    evaluate_limit: int | None = None
    checkpoint_every: int | None = None
    steps_per_call: int = 1
    prefetch: int = 2
    devices: int | None = None
    model_devices: int = 1

    def __post_init__(self) -> None:
        group = "training"
        check_counts(self, "steps", "log_every", "steps_per_call", "model_devices", group=group)
        whole = ("batch_size", "evaluate_every", "evaluate_limit", "checkpoint_every", "devices")
        check_counts(self, *whole, none=True, group=group)
        check_counts(self, "skip_not_finite", "prefetch", least=0, group=group)
        check_counts(self, "warmup_steps", least=0, none=True, group=group)
        check_numbers(self, "learning_rate", "weight_decay", "l2", least=0, group=group)
        check_numbers(self, "clip", above=0, none=True, group=group)
        check_numbers(self, "average", least=0, below=1, group=group)
        if self.warmup_steps is not None and self.warmup_steps >= self.steps:
            raise ValueError(
                f"training.warmup_steps is {self.warmup_steps}, expected fewer than the {self.steps} steps."
            )

    def shortened(self, steps: int | None) -> Training:
        """The same settings for another number of steps, with a warm-up of at most a tenth of them."""
        if steps is None or steps == self.steps:
            return self
        warmup = None if self.warmup_steps is None else min(self.warmup_steps, steps // 10)
        return dataclasses.replace(self, steps=steps, warmup_steps=warmup)

    def deciding(self) -> dict[str, Any]:
        """The settings that affect the weights; a training may be resumed with other values of the rest."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in FREE}

    def mesh(self) -> Mesh:
        """The devices that are asked for; see `make_mesh`."""
        return make_mesh(self.devices, self.model_devices)

    def every(self, what: str) -> int:
        """Steps from one record ("log"), evaluation ("evaluate") or checkpoint ("checkpoint") to the next."""
        asked = getattr(self, f"{what}_every")
        return max(self.steps // 10, 1) if asked is None else asked

    def optimizer(self) -> tuple[optax.GradientTransformation, optax.Schedule]:
        """AdamW, with clipped gradients and an L2 term if asked for, and its learning rate by step.

        The rate rises linearly, and falls as a cosine to 1e-5 (AutoFormer, section 4.1).
        """
        warmup = self.steps // 20 if self.warmup_steps is None else self.warmup_steps
        rate = self.learning_rate
        schedule = optax.warmup_cosine_decay_schedule(
            min(1e-6, rate), rate, warmup, self.steps, end_value=min(1e-5, rate)
        )
        adamw = optax.adamw(schedule, weight_decay=self.weight_decay, mask=is_kernel)
        # The state has one structure, so that a diverged training can be resumed with a limit.
        clip = optax.identity() if self.clip is None else optax.clip_by_global_norm(self.clip)
        l2 = optax.add_decayed_weights(self.l2) if self.l2 else optax.identity()
        chain = optax.chain(clip, l2, adamw)
        if self.skip_not_finite:
            chain = optax.apply_if_finite(chain, self.skip_not_finite)
        return chain, standard(schedule)


def is_kernel(params: dict[str, Any]) -> dict[str, Any]:
    """Which parameters decay: kernels, and not biases, norms, tokens, positions or their tables."""
    flat = flax.traverse_util.flatten_dict(params)
    kernels = {path: path[-1].endswith("kernel") for path in flat}
    return flax.traverse_util.unflatten_dict(kernels)


def described(training: Training, recipe: Any, seed: int) -> dict[str, Any]:
    """The arguments of a training as plain values, without defaults and objects of the recipe."""
    kept = {
        field.name: getattr(recipe, field.name)
        for field in (dataclasses.fields(recipe) if dataclasses.is_dataclass(recipe) else ())
        if isinstance(getattr(recipe, field.name), int | float | str)
        and getattr(recipe, field.name) != field.default
    }
    own = {"type": type(recipe).__name__, **kept}
    return {"training": dataclasses.asdict(training), "recipe": own, "seed": seed}
