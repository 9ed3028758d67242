"""The counter of the official AutoFormer code, for comparison with published figures."""

from __future__ import annotations

from collections.abc import Callable

from jaxnas.space import Arch
from jaxnas.supernets.vit import ViT


def autoformer_flops(net: ViT) -> Callable[[Arch], float]:
    """The FLOPs function of the official AutoFormer code, quirks included, for comparison with papers.

    It counts multiply-accumulates with one token too many inside blocks, the head on every token and an
    approximate relative-position term; biases and activations partly. `jaxnas.cost` counts true products.

    Args:
      net: on RGB images.

    Returns:
      A function from a concrete architecture to a float (the official formula has halves).
    """

    def flops(arch: Arch) -> float:
        values = net.space.to_dict(arch)
        dim, depth = values["embed_dim"], values["depth"]
        patches = (net.image_size // net.patch_size) ** 2
        patch = 3 * net.patch_size**2
        tokens = patches + 2
        total = dim + patches * patch * dim + (patches + 1) * dim / 2
        for heads, ratio in list(zip(values["num_heads"], values["mlp_ratio"], strict=True))[:depth]:
            inner, hidden = heads * net.head_dim, int(dim * ratio)
            total += tokens * dim + tokens * 3 * inner * dim + 2 * tokens**2 * inner
            total += tokens * inner * dim
            if net.max_relative_position:
                total += net.max_relative_position * tokens**2 + tokens**2 / 2
                total += net.max_relative_position * tokens**2 + tokens * inner / 2
            total += tokens * dim + 2 * tokens * dim * hidden
        return total + (patches + 1) * net.num_classes * dim

    return flops
