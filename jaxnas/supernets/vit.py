"""AutoFormer's supernet: a vision transformer with elastic width, depth, heads and MLP ratio.

AutoFormer: Searching Transformers for Visual Recognition (Chen et al., ICCV 2021), section 3. One set
of maximal weights; an architecture is a dict of arrays passed at call time.
"""

from __future__ import annotations

import functools
from typing import Any, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.elastic.attention import MultiHeadAttention
from jaxnas.elastic.decisions import Decisions
from jaxnas.elastic.layers import (
    Dense,
    DenseParameters,
    LayerNorm,
    LayerNormParameters,
    MlpOperation,
    PatchEmbed,
    Tokens,
    drop_path,
    prenorm,
)
from jaxnas.elastic.loop import run_layer, run_layers
from jaxnas.elastic.parameter import MACS, SPECS, Sharing
from jaxnas.elastic.switch import Sublayer
from jaxnas.elastic.width import Decision, Width, fixed, joint, width
from jaxnas.space import Space
from jaxnas.supernets.stacking import STACKED, stack_layers


class Block(nn.Module):
    """A pre-norm transformer block; nothing of it runs where `gate` is 0."""

    grid: tuple[int, int]
    head_dim: int
    max_relative_position: int
    drop_path_rate: float
    dtype: Any
    sharing: Sharing
    init_std: float = 0.02

    def __call__(
        self, x: jax.Array, embed: Width, heads: Width, hidden: Width, gate: Width, train: bool
    ) -> jax.Array:
        """Maps x [B, T, embed maximum] to the same shape."""
        sublayers = self.sublayers(embed, heads, hidden, gate)
        return run_layer(x, sublayers, self.scales(x.shape[0], train))

    @nn.compact
    def sublayers(self, embed: Width, heads: Width, hidden: Width, gate: Width) -> tuple[Sublayer, Sublayer]:
        """Attention and MLP, each behind its normalisation."""
        common = dict(dtype=self.dtype, sharing=self.sharing)
        kernel_init = nn.initializers.normal(self.init_std)
        norm = LayerNormParameters(name="attention_norm", **common)(embed, gate=gate)
        attention = MultiHeadAttention(
            self.grid,
            self.head_dim,
            self.max_relative_position,
            kernel_init=kernel_init,
            name="attention",
            **common,
        )(embed, heads, gate=gate, norm=norm)
        norm = LayerNormParameters(name="mlp_norm", **common)(embed, gate=gate)
        declare = functools.partial(DenseParameters, self.sharing, kernel_init)
        tokens = 1 + self.grid[0] * self.grid[1]
        weights = (
            *declare(name="mlp_in")(embed, hidden, gate=gate, rows=tokens),
            *declare(name="mlp_out")(hidden, embed, gate=gate, rows=tokens),
        )
        operation, *weights = prenorm(norm, MlpOperation(self.dtype), *weights)
        return attention, Sublayer(operation, (embed, hidden), tuple(weights), gate)

    def scales(
        self, batch: int, train: bool, rate: jax.Array | float | None = None
    ) -> tuple[jax.Array | None, jax.Array | None]:
        """The stochastic depth of each sublayer, factors [B]; `rate` may replace `drop_path_rate`."""
        if not train or self.drop_path_rate == 0:
            return None, None
        rate = self.drop_path_rate if rate is None else rate
        first, second = (drop_path(self.make_rng("drop_path"), rate, batch) for _ in range(2))
        return first, second


class ViT(nn.Module):
    """The AutoFormer supernet over a space with `embed_dim`, `depth`, `num_heads` and `mlp_ratio`.

    With a space of a single architecture it is that plain network: every size is static and nothing is
    chosen, sliced or masked at run time. That is what `jaxnas.extract` returns.

    Attributes:
      space: the search space.
      image_size: height and width of the images, in pixels.
      patch_size: of a square patch; divides `image_size`.
      num_classes: logits.
      head_dim: channels of an attention head (64 in AutoFormer).
      max_relative_position: clip of 2-D relative positions; 0 leaves them out.
      absolute_positions: whether learned positions are added to the tokens.
      drop_path_rate: stochastic depth of the last stored layer, rising linearly from 0 at the first.
      sharing: "entangled" or "classic" weight sharing.
      dtype: of the computation, float32 or bfloat16; parameters and softmax are float32.
      init_std: standard deviation of the kernels in the blocks at the start; AutoFormer's 0.02 suits
        widths of some hundreds, narrow networks learn faster from more.
      scan_layers: trace and compile one layer and run it in a loop: compile time does not grow with
        depth. The parameters are the same either way; `stack_layers` saves stacking them in every call.
        Layers whose options differ run one after the other all the same.

    Raises:
      ValueError: image size not a multiple of the patch, a space without the four decisions or with
        options that are no sizes, or an attribute that is none of its values.
    """

    space: Space
    image_size: int
    patch_size: int
    num_classes: int
    head_dim: int = 64
    max_relative_position: int = 14
    absolute_positions: bool = True
    drop_path_rate: float = 0.0
    sharing: Sharing = "entangled"
    dtype: Any = jnp.float32
    init_std: float = 0.02
    scan_layers: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image_size", "patch_size", "num_classes", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"ViT: {name} is {getattr(self, name)}, expected at least 1.")
        if self.max_relative_position < 0 or not 0 <= self.drop_path_rate < 1:
            raise ValueError(
                f"ViT: max_relative_position {self.max_relative_position} and drop_path_rate "
                f"{self.drop_path_rate}; expected at least 0, and 0 to less than 1."
            )
        if self.sharing not in get_args(Sharing):
            raise ValueError(f"sharing is {self.sharing!r}, expected one of {', '.join(get_args(Sharing))}.")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}; "
                f"nearest sizes that are: {self.image_size // self.patch_size * self.patch_size} "
                f"and {-(-self.image_size // self.patch_size) * self.patch_size}."
            )
        needed = {"embed_dim", "depth", "num_heads", "mlp_ratio"}
        if missing := needed - set(self.space.choices):
            raise ValueError(f"A ViT space needs the decisions {sorted(needed)}; missing: {sorted(missing)}.")
        for name in sorted(needed):
            _check_sizes(name, self.space.choices[name].options, whole=name != "mlp_ratio")
        layers = max(self.space.choices["depth"].options)
        for name in ("num_heads", "mlp_ratio"):
            if (length := self.space.choices[name].length) is None or length < layers:
                raise ValueError(
                    f"A ViT space needs '{name}' once for each of {layers} layers, as Choice(...).repeat("
                    f"{layers}, active='depth'); got {'one for all' if length is None else length}."
                )
        narrowest, least = (min(self.space.choices[name].options) for name in ("embed_dim", "mlp_ratio"))
        if narrowest * least < 1:
            raise ValueError(
                f"An MLP of ratio {least} has no hidden channel in a network of width {narrowest}; raise "
                "'mlp_ratio' or 'embed_dim'."
            )

    @nn.compact
    def __call__(
        self, images: jax.Array, arch: dict[str, jax.Array] | None = None, *, train: bool = False
    ) -> jax.Array:
        """Classifies images with the sub-network `arch`.

        Args:
          images: float [B, image_size, image_size, channels].
          arch: architecture of the space, hard or soft (weights that sum to 1); not needed if the space has
            only one.
          train: whether drop path is on (needs the "drop_path" random stream).

        Returns:
          float32 logits [B, num_classes].

        Raises:
          ValueError: images of another size; an architecture that doesn't fit the space.
        """
        if images.ndim != 4 or images.shape[1:3] != (self.image_size, self.image_size):
            raise ValueError(
                f"Expected images [B, {self.image_size}, {self.image_size}, channels], got shape "
                f"{images.shape}."
            )
        if STACKED in self.variables.get("params", {}) and not self._scans():
            raise ValueError(
                "These parameters are stacked by layer. That is read by a ViT with scan_layers=True, more "
                "than one architecture and equal options in all layers, when nothing else is recorded; use "
                "supernets.unstack_layers(params)."
            )
        decisions = Decisions(self.space, arch, initializing=self.is_initializing())
        embed = width(lambda dim: dim, decisions["embed_dim"], axis="embed")
        common = dict(dtype=self.dtype, sharing=self.sharing)

        patches = PatchEmbed(self.patch_size, name="patch_embed", **common)(images, embed)
        patches = patches.reshape(images.shape[0], -1, embed.maximum)  # [B, T - 1, E]
        x = Tokens(positions=self.absolute_positions, name="tokens", **common)(patches, embed)
        x = self._layers(x, embed, decisions, train)  # [B, T, E]
        batch, tokens, maximum = x.shape
        x = LayerNorm(name="norm", **common)(x.reshape(-1, maximum), embed, masked=True)
        x = x.reshape(batch, tokens, maximum)[:, 1:].mean(axis=1)  # [B, E]
        classes = fixed(self.num_classes, "classes")
        head = Dense(name="head", **common)(x, embed, classes, masked=True)
        return head.astype(jnp.float32)

    def _layers(self, x: jax.Array, embed: Width, decisions: Decisions, train: bool) -> jax.Array:
        depths = self.space.choices["depth"].options
        count = max(depths)
        grid = (self.image_size // self.patch_size,) * 2
        rates = [self.drop_path_rate * layer / max(count - 1, 1) for layer in range(count)]
        common = dict(
            grid=grid,
            head_dim=self.head_dim,
            max_relative_position=self.max_relative_position,
            dtype=self.dtype,
            sharing=self.sharing,
            init_std=self.init_std,
        )

        def widths(heads: Decision, ratio: Decision) -> tuple[Width, Width]:
            hidden = width(lambda dim, ratio: int(dim * ratio), decisions["embed_dim"], ratio, axis="mlp")
            return width(lambda h: h, heads, axis="heads"), hidden

        if not self._scans():
            for layer in range(count):
                sizes = widths(decisions["num_heads", layer], decisions["mlp_ratio", layer])
                gate = width(functools.partial(_runs, layer), decisions["depth"])
                block = Block(drop_path_rate=rates[layer], name=f"block_{layer}", **common)
                x = block(x, embed, *sizes, gate, train)
            return x

        params = stack_layers(nn.meta.unbox(self.variables["params"]))[STACKED]
        layers = jnp.arange(count, dtype=jnp.int32)
        depth = width(lambda depth: depth, decisions["depth"])
        per_layer = {
            "params": params,
            "heads": decisions.stacked("num_heads", count),
            "ratio": decisions.stacked("mlp_ratio", count),
            "gate": _gates(depth, layers),
            "rate": jnp.asarray(rates, jnp.float32),
        }
        if train and self.drop_path_rate > 0:
            per_layer["key"] = jax.random.split(self.make_rng("drop_path"), count)

        def prepare(layer: dict[str, Any]) -> Any:
            heads, ratio = (
                Decision((name, None), self.space.choices[name].options_at(0), layer[key])
                for name, key in (("num_heads", "heads"), ("mlp_ratio", "ratio"))
            )
            gate = width(lambda on: on, Decision(("gate", None), (0, 1), layer["gate"]))
            block = Block(drop_path_rate=self.drop_path_rate, parent=None, **common)
            sizes, variables = (embed, *widths(heads, ratio), gate), {"params": layer["params"]}
            sublayers = block.apply(variables, *sizes, method="sublayers")
            rngs = {"drop_path": layer["key"]} if "key" in layer else {}
            arguments = (x.shape[0], train, layer["rate"])
            return sublayers, block.apply({}, *arguments, method="scales", rngs=rngs)

        return run_layers(x, *jax.vmap(prepare)(per_layer))

    def _scans(self) -> bool:
        # A layer is traced once by scan, so annotations (which name the layer) are made unrolled.
        recording = self.is_mutable_collection(SPECS) or self.is_mutable_collection(MACS)
        uniform = all(
            len({self.space.choices[name].options_at(i) for i in range(length)}) == 1
            for name in ("num_heads", "mlp_ratio")
            for length in [max(self.space.choices["depth"].options)]
        )
        # A plain network (one architecture) is unrolled too: a loop would choose what to skip.
        unrolled = recording or self.is_initializing() or self.space.cardinality == 1
        return self.scan_layers and uniform and not unrolled


def _runs(layer: int, depth: int) -> int:
    return int(layer < depth)


def _gates(depth: Width, layers: jax.Array) -> jax.Array:
    """For each layer whether it runs: int32 [L], or float [L, 2] weights of (skip, run) if soft."""
    choice = joint(depth)
    if not choice.is_soft:
        sizes = np.array([row[0] for row in choice.rows], np.int32)
        return (layers < jnp.asarray(sizes)[choice.index()]).astype(jnp.int32)
    runs = np.array([[layer < row[0] for row in choice.rows] for layer in range(len(layers))])
    run = jnp.asarray(runs, jnp.float32) @ choice.weights()
    return jnp.stack([1 - run, run], axis=1)


def _check_sizes(name: str, options: tuple[Any, ...], *, whole: bool) -> None:
    """Refuses options that are no sizes; heads have a width of their own, so any number fits any width."""
    kind = int if whole else (int, float)
    wrong = [x for x in options if isinstance(x, bool) or not isinstance(x, kind) or x <= 0]
    if wrong:
        expected = "whole numbers of at least 1" if whole else "numbers above 0"
        raise ValueError(
            f"A ViT space: '{name}' has the options {options}; expected {expected}, not {wrong}."
        )
