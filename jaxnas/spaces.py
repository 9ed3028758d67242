"""Ready-made search spaces for the supernets, and published networks by their options."""

import jax.numpy as jnp

from jaxnas.space import Arch, Choice, Space

# AutoFormer, arXiv 2107.00651, table 1, and the released configurations. Two entries are wider than
# the released ones, without which the published networks would not be members of the space: MLP
# ratio 3 in the tiny space (the published AutoFormer-T has it in three layers), and 8 heads in the
# base space (8 to 10 in the paper and in the networks' configuration, 9 and 10 in the supernet's).
_AUTOFORMER = {
    "tiny": ((192, 216, 240), (12, 13, 14), (3, 4), (3.0, 3.5, 4.0)),
    "small": ((320, 384, 448), (12, 13, 14), (5, 6, 7), (3.0, 3.5, 4.0)),
    "base": ((528, 576, 624), (14, 15, 16), (8, 9, 10), (3.0, 3.5, 4.0)),
}

_PUBLISHED = {
    "tiny": {
        "embed_dim": 192,
        "depth": 13,
        "num_heads": [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 3, 3],
        "mlp_ratio": [3.5, 3.5, 3.0, 3.5, 3.0, 3.0, 4.0, 4.0, 3.5, 4.0, 3.5, 4.0, 3.5],
    },
    "small": {
        "embed_dim": 384,
        "depth": 13,
        "num_heads": [6, 6, 5, 7, 5, 5, 5, 6, 6, 7, 7, 6, 7],
        "mlp_ratio": [3.0, 3.5, 3.0, 3.5, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.5, 4.0],
    },
    "base": {
        "embed_dim": 576,
        "depth": 14,
        "num_heads": [9, 9, 9, 9, 9, 10, 9, 9, 10, 9, 10, 9, 9, 10],
        "mlp_ratio": [3.5, 3.5, 4.0, 3.5, 4.0, 3.5, 3.5, 3.0, 4.0, 4.0, 3.0, 4.0, 3.0, 3.5],
    },
}


def vit(embed_dim, depth, num_heads, mlp_ratio) -> Space:
    """Returns a space for `supernets.ViT` from the options of its four decisions.

    Args:
      embed_dim: options of the width of the residual stream, one for the whole network.
      depth: options of the number of layers.
      num_heads: options of the number of attention heads, for each layer.
      mlp_ratio: options of the hidden width of the MLP over `embed_dim`, for each layer.
    """
    layers = max(depth)
    return Space(
        embed_dim=Choice(*embed_dim),
        depth=Choice(*depth),
        num_heads=Choice(*num_heads).repeat(layers, active="depth"),
        mlp_ratio=Choice(*mlp_ratio).repeat(layers, active="depth"),
    )


def mlp(width=(32, 64, 128), depth=(1, 2, 3), hidden=(32, 64, 128)) -> Space:
    """Returns a space for `supernets.TableMlp` from the options of its three decisions.

    Args:
      width: options of the width of the residual stream, one for the whole network.
      depth: options of the number of blocks.
      hidden: options of the hidden width of each block.
    """
    layers = Choice(*hidden).repeat(max(depth), active="depth")
    return Space(width=Choice(*width), depth=Choice(*depth), hidden=layers)


def convnet(width=((8, 16, 24), (32, 48, 64)), depth=((1, 2), (1, 2)), kernel=((3, 5), (3, 5))) -> Space:
    """Returns a space for `supernets.ConvNet` from the options of each stage.

    Args:
      width: options of the channels, one tuple for each stage, as ((8, 16), (16, 32)).
      depth: options of the number of blocks, likewise.
      kernel: options of the kernel size of each block, likewise.
    """
    choices = {}
    for i, (channels, blocks, sizes) in enumerate(zip(width, depth, kernel, strict=True), 1):
        choices[f"width_{i}"], choices[f"depth_{i}"] = Choice(*channels), Choice(*blocks)
        choices[f"kernel_{i}"] = Choice(*sizes).repeat(max(blocks), active=f"depth_{i}")
    return Space(**choices)


def _size(size: str | int, table: dict):
    if size not in table:
        raise ValueError(f"expected a size of {list(table)}, got {size!r}.")
    return table[size]


def autoformer(size: str) -> Space:
    """Returns the space of AutoFormer "tiny", "small" or "base" (arXiv 2107.00651, table 1).

    For images of 224 x 224 and patches of 16 x 16, with heads of width 64. The published networks are
    members.

    Example:
      >>> list(spaces.autoformer("tiny"))
      ['embed_dim', 'depth', 'num_heads', 'mlp_ratio']
    """
    return vit(*_size(size, _AUTOFORMER))


def published_options(size: str) -> dict[str, object]:
    """Returns the options of the network that AutoFormer's authors found, by name of choice.

    They are those of an architecture of `autoformer(size)`, from the released configurations.
    """
    return dict(_size(size, _PUBLISHED))


def digits() -> Space:
    """Returns a small space of 22,113 networks for 8 x 8 images, patches of 2 and heads of 16."""
    return vit(embed_dim=(32, 48, 64), depth=(2, 3, 4), num_heads=(2, 3, 4), mlp_ratio=(1.0, 2.0, 3.0))


def fashion_mnist() -> Space:
    """Returns a space of 2,391,120 networks for 28 x 28 images, patches of 4 and heads of 16.

    Its supernet trains on 60,000 images for 15 epochs on two CPU cores in well under an hour.
    """
    return vit(embed_dim=(48, 64, 80, 96), depth=(3, 4, 5, 6), num_heads=(2, 4, 6), mlp_ratio=(1.0, 2.0, 3.0))


def fashion_mnist_small() -> Space:
    """Returns a space of networks of different sizes for 28 x 28 images, patches of 7 and heads of 16."""
    return vit(embed_dim=(16, 32, 48, 64), depth=(1, 2, 3, 4), num_heads=(1, 2, 4), mlp_ratio=(0.5, 1.0, 2.0))


# ---- S3 (AutoFormerV2), arXiv 2111.14725.

# The networks that S3's authors released, and Swin Transformer's tiny one (arXiv 2103.14030): blocks and
# windows of each stage. All have the widths 96, 192, 384, 768, heads of 32 channels and MLPs of ratio 4. The
# windows of 14 that S3-S has in its last stage, whose maps are 7 x 7, are windows of 7 in effect.
_S3 = {
    "tiny": ((2, 2, 6, 2), (7, 7, 14, 7)),
    "small": ((2, 2, 18, 2), (14, 14, 14, 7)),
    "base": ((2, 2, 30, 2), (7, 7, 14, 7)),
    "swin_tiny": ((2, 2, 6, 2), (7, 7, 7, 7)),
}
_S3_WIDTHS = (96, 192, 384, 768)


def swin(depth, embed_dim, window, num_heads, mlp_ratio, qkv_dim) -> Space:
    """Returns a space for `supernets.Swin`, with six choices for each stage.

    For stage i, from 1 on, they are `depth_i` and `embed_dim_i`, and for each block of it `window_i`,
    `num_heads_i`, `mlp_ratio_i` and `qkv_dim_i`. Each is one dimension of one stage, so that a space can be
    changed choice by choice. The widths of the stages are free, and not each twice that of the stage before.

    Args:
      depth: for each stage options of the number of blocks.
      embed_dim: for each stage options of the width of the residual stream.
      window: for each stage options of the height and width of windows, in tokens; they divide the stage's
        maps.
      num_heads: for each stage options of the number of attention heads.
      mlp_ratio: for each stage options of the hidden width of the MLP over `embed_dim`.
      qkv_dim: for each stage options of the width of queries, keys and values, of all heads together; each
        is a multiple of each of the stage's `num_heads`.
    """
    of_block = dict(window=window, num_heads=num_heads, mlp_ratio=mlp_ratio, qkv_dim=qkv_dim)
    given = dict(depth=depth, embed_dim=embed_dim, **of_block)
    if len({len(options) for options in given.values()}) > 1:
        found = {name: len(options) for name, options in given.items()}
        raise ValueError(f"swin: options are given for another number of stages in each: {found}.")
    choices = {}
    for number, blocks in enumerate(map(max, depth)):
        stage, active = number + 1, f"depth_{number + 1}"
        choices |= {f"{name}_{stage}": Choice(*given[name][number]) for name in ("depth", "embed_dim")}
        for name, options in of_block.items():
            choices[f"{name}_{stage}"] = Choice(*options[number]).repeat(blocks, active=active)
    return Space(**choices)


def s3(size: str) -> Space:
    """Returns a space around the released network S3-T "tiny", S3-S "small" or S3-B "base".

    For images of 224 x 224 and patches of 4 x 4. The released network is a member, see `s3_options`. The
    options are not the authors', who show those of each stage in a figure only: they are the released sizes
    with one below and one above.
    """
    blocks = _size(size, {name: depths[2] for name, (depths, _) in _S3.items() if name != "swin_tiny"})
    widths = [(dim * 7 // 8, dim, dim * 9 // 8) for dim in _S3_WIDTHS]
    return swin(
        depth=((1, 2, 3), (1, 2, 3), (blocks - 2, blocks, blocks + 2), (1, 2, 3)),
        embed_dim=widths,
        window=((7, 14), (7, 14), (7, 14), (7,)),
        num_heads=[(dim // 48, dim // 32, dim // 24) for dim in _S3_WIDTHS],
        mlp_ratio=((3.0, 3.5, 4.0),) * 4,
        qkv_dim=widths,
    )


def s3_options(name: str) -> dict[str, int | list]:
    """Returns the options of a released network by name of choice, block by block.

    They are those of an architecture of `s3(name)`, and "swin_tiny" is Swin Transformer's, in `s3("tiny")`:

        arch = spaces.s3("tiny").from_dict(spaces.s3_options("tiny"))
    """
    options = {}
    for stage, (depth, window, dim) in enumerate(zip(*_size(name, _S3), _S3_WIDTHS, strict=True), 1):
        of_block = {"window": window, "num_heads": dim // 32, "mlp_ratio": 4.0, "qkv_dim": dim}
        options |= {f"depth_{stage}": depth, f"embed_dim_{stage}": dim}
        options |= {f"{key}_{stage}": [option] * depth for key, option in of_block.items()}
    return options


def s3_small_images(image_size: int = 28) -> Space:
    """Returns a space of three stages for small images, whose supernet trains in minutes on a CPU.

    For images of 28 x 28 with patches of 1, that is maps of 28, 14 and 7, or of 32 x 32 with patches of 2 and
    maps of 16, 8 and 4.
    """
    windows = {28: ((4, 7), (7, 14), (7,)), 32: ((4, 8), (4, 8), (2, 4))}
    return swin(
        depth=((1, 2), (1, 2, 3), (1, 2)),
        embed_dim=((16, 24), (32, 48), (64, 96)),
        window=_size(image_size, windows),
        num_heads=((1, 2), (2, 4), (4, 8)),
        mlp_ratio=((1.0, 2.0, 3.0),) * 3,
        qkv_dim=((16, 24), (32, 48), (64, 96)),
    )


# ---- PAR Transformer, arXiv 2009.04534.


def par(blocks: int = 32) -> Space:
    """Returns the space of PAR Transformer: 3^blocks stacks for `supernets.TransformerXL` (section 2).

    The published supernet has 32 blocks, as many as Transformer-XL base has in its 16 layers.
    """
    return Space(block=Choice("identity", "feed_forward", "attention").repeat(blocks))


def interleaved_blocks(blocks: int) -> list[str]:
    """Returns Transformer-XL in `par(blocks)`, blocks even: attention and feed-forward by turns."""
    if blocks % 2:
        raise ValueError(f"interleaved_blocks: blocks come in pairs; got {blocks}.")
    return ["attention", "feed_forward"] * (blocks // 2)


def par_rule_blocks(blocks: int, ratio: float = 5) -> list[str]:
    """Returns the stack of the PAR design rule in `par(blocks)`, block by block (section 4).

    One in `ratio` blocks is attention (at least one), spread evenly over the first two thirds of the
    depth, the first block being attention; all others are feed-forward.
    """
    if ratio < 1:
        raise ValueError(f"par_rule_blocks: ratio is {ratio}, expected at least 1 block per attention block.")
    count = max(round(blocks / ratio), 1)
    reach = max(-(-2 * blocks // 3), count)
    attention = {i * reach // count for i in range(count)}
    return ["attention" if i in attention else "feed_forward" for i in range(blocks)]


def without_gaps(arch: Arch) -> Arch:
    """Returns the stack of `par` with its identity blocks last.

    It stands for all stacks with the same other blocks in the same order, as networks trained alone are
    equal.
    """
    block = arch["block"]  # int32 [blocks]; identity is the option 0
    return {"block": block[jnp.argsort(block == 0, stable=True)]}


# ---- AutoAttend, ICML 2021.

AUTOATTEND_TEXT = ("zero", "identity", "convolution_1", "convolution_3", "max_pool", "gru")
# Table 3: the operations for Cora, and those for CiteSeer and PubMed.
AUTOATTEND_CORA = (
    *("zero", "identity", "gcn", "sage", "gat_1", "gat_2", "gat_4", "gat_8", "gat_16"),
    *("linear", "arma", "cheb", "sgc"),
)
AUTOATTEND_CITESEER = ("zero", "const", "gcn", "gat", "sym_gat", "cos", "linear", "gene_linear")

# The architecture for SST-5 in the authors' README: of each layer the number of its first operation, the
# source of the others, and their numbers: one of an addition, and two, of key and value, of an attention.
_PUBLISHED_SST = (
    (5, 0, 2), (1, 0, 4), (2, 0, 4, 2), (2, 1, 4, 2), (1, 1, 5), (3, 5, 2, 4), (4, 1, 3, 2), (4, 1, 4, 3),
    (2, 1, 2), (2, 1, 3, 2), (2, 2, 4, 5), (4, 6, 5, 1), (4, 2, 1), (2, 0, 1), (2, 4, 5, 1), (4, 15, 3, 2),
    (4, 10, 2), (2, 14, 3, 4), (4, 18, 2, 3), (5, 9, 1), (2, 16, 2), (1, 12, 1), (5, 3, 4, 3), (3, 0, 5),
)  # fmt: skip


def autoattend(layers: int = 24, operations=AUTOATTEND_TEXT, attention: bool = True) -> Space:
    """Returns the space of AutoAttend for a number of layers, and operations with "zero" among them.

    Section 4.1: layer l is an addition or an attention. Its first input is layer l - 1, the others come from
    one earlier layer, and only the second input of an addition may be "zero". That makes
    (b(b - 1) + (b - 1)³) l networks of layer l with b operations.

    Args:
      layers: how many.
      operations: their names, those of the network.
      attention: False leaves only additions (the baseline of table 6).
    """
    if "zero" not in operations:
        raise ValueError(f"autoattend: operations are {tuple(operations)}, expected 'zero' among them.")
    some = Choice(*(name for name in operations if name != "zero")).repeat(layers)
    below = [range(layer + 1) for layer in range(layers)]
    choices = dict(
        layer=Choice(*(("addition", "attention") if attention else ("addition",))).repeat(layers),
        source=Choice(*range(layers)).repeat(layers).at_positions(*below),
        first=some,
        second=Choice(*operations).repeat(layers).when("layer", "addition"),
    )
    if attention:
        choices |= dict(key=some.when("layer", "attention"), value=some.when("layer", "attention"))
    return Space(**choices)


def autoattend_sst_options() -> dict[str, list]:
    """Returns the options of the network that AutoAttend's authors found for SST-5, in `autoattend(24)`.

    They are by name of choice, layer by layer, with None where one does not count.
    """
    names = AUTOATTEND_TEXT
    return {
        "layer": ["attention" if len(layer) == 4 else "addition" for layer in _PUBLISHED_SST],
        "source": [layer[1] for layer in _PUBLISHED_SST],
        "first": [names[layer[0]] for layer in _PUBLISHED_SST],
        "second": [names[layer[2]] if len(layer) == 3 else None for layer in _PUBLISHED_SST],
        "key": [names[layer[2]] if len(layer) == 4 else None for layer in _PUBLISHED_SST],
        "value": [names[layer[3]] if len(layer) == 4 else None for layer in _PUBLISHED_SST],
    }


# ---- DARTFormer, arXiv 2210.00641.

# Neither the softmax of the Transformer itself nor Sinkhorn is among the paper's candidates.
DARTFORMER = (
    *("bigbird", "linear", "linformer", "local", "longformer"),
    *("performer", "reformer", "sparse_transformer", "synthesizer"),
)


def dartformer(mechanisms=DARTFORMER, heads: int | None = None) -> Space:
    """Returns the space of `supernets.DARTFormer`: a mechanism of attention (section 2).

    Args:
      mechanisms: names of `supernets.attention.MECHANISMS`.
      heads: None for one mechanism in all heads; a number for one in each of so many heads.
    """
    mechanism = Choice(*mechanisms)
    return Space(mechanism=mechanism if heads is None else mechanism.repeat(heads))


# ---- Hybrids of convolutions and Transformers.


def hybrid(stages, stem, head, resolution=(), per_block: bool = True) -> Space:
    """Returns a space for `supernets.Hybrid` from the options of its stages.

    The decisions of a kind of block are active where the block is of that kind.

    Args:
      stages: for each a dict of options by the names of its decisions: "width", "depth" and "block", the
        kinds of blocks, and some of "kernel", "expansion", "squeeze", "heads" and "mlp_ratio". With "first",
        the kinds that the first block of the stage may have, if they are others.
      stem, head: options of the width of the first convolution, and of what the classifier sees.
      resolution: options of the height and width of images, in pixels; none if it isn't chosen.
      per_block: whether each block has decisions of its own, or all blocks of a stage have the same.

    Raises:
      ValueError: a decision that none of a stage's blocks has.
    """
    convolutions = ("mbconv", "fused_mbconv")
    kinds = {"kernel": convolutions, "expansion": convolutions, "squeeze": convolutions}
    kinds |= {"heads": ("transformer",), "mlp_ratio": ("transformer", "nasvit")}
    choices = {"resolution": Choice(*resolution)} if resolution else {}
    choices |= {"width_stem": Choice(*stem), "width_head": Choice(*head)}
    for i, stage in enumerate(stages, 1):
        depth, first = max(stage["depth"]), stage.get("first", ())
        all_kinds = tuple(dict.fromkeys((*first, *stage["block"])))
        block = Choice(*all_kinds)
        if per_block or first:
            block = block.repeat(depth, active=f"depth_{i}")
        if first:
            block = block.at_positions(first, *[stage["block"]] * (depth - 1))
        choices |= {f"width_{i}": Choice(*stage["width"]), f"depth_{i}": Choice(*stage["depth"])}
        choices[f"block_{i}"] = block
        for name in (name for name in kinds if name in stage):
            choice, counts = Choice(*stage[name]), [kind for kind in all_kinds if kind in kinds[name]]
            if not counts:
                raise ValueError(f"hybrid: stage {i} has {name!r}, which its blocks {all_kinds} do not have.")
            choice = choice.repeat(depth, active=f"depth_{i}") if per_block else choice
            if len(counts) < len(all_kinds) and choice.length == block.length:
                choice = choice.when(f"block_{i}", *counts)
            choices[f"{name}_{i}"] = choice
    return Space(**choices)


_BOTH = ("mbconv", "transformer")
_EFFICIENTNETV2 = (
    {"width": (16, 24), "depth": (1, 2), "block": ("fused_mbconv",), "expansion": (1,)},
    {"width": (32, 48), "depth": (2, 3, 4), "block": ("fused_mbconv",)},
    {"width": (48, 64), "depth": (2, 3, 4), "block": ("fused_mbconv",)},
    {"width": (96, 112, 128), "depth": (3, 4, 5, 6), "block": ("mbconv", "fused_mbconv")},
    {"width": (112, 128, 144, 160), "depth": (5, 6, 7, 8, 9), "block": _BOTH},
    {"width": (192, 208, 224, 240, 256), "depth": (8, 10, 12, 15), "block": _BOTH},
)


def efficientnetv2() -> Space:
    """Returns a space around EfficientNetV2-B0 and -S, whose last two stages may have Transformer blocks.

    EfficientNetV2 (Tan and Le, ICML 2021, table 4; the sizes are those of the released networks, which are
    members). For `supernets.Hybrid` with `**supernets.hybrid.EFFICIENTNETV2`, and resolutions that are
    multiples of 32.
    """
    late = {"kernel": (3, 5), "expansion": (4, 6), "squeeze": (0, 0.25)}
    both = late | {"heads": (4, 8), "mlp_ratio": (2, 3, 4)}
    early = {"kernel": (3, 5), "expansion": (3, 4)}
    given = ({}, early, early, late, both, both)
    stages = [stage | more for stage, more in zip(_EFFICIENTNETV2, given, strict=True)]
    return hybrid(stages, stem=(24, 32), head=(1280,))


# AttentiveNAS (Wang et al., CVPR 2021, table 6), whose space and networks AlphaNet (ICML 2021) took over.
_ALPHANET = {
    "width": ((16, 24), (24, 32), (32, 40), (64, 72), (112, 120, 128), (192, 200, 208, 216), (216, 224)),
    "depth": ((1, 2), (3, 4, 5), (3, 4, 5, 6), (3, 4, 5, 6), range(3, 9), range(3, 9), (1, 2)),
    "expansion": ((1,), *((4, 5, 6),) * 4, (6,), (6,)),
    "kernel": ((3, 5),) * 7,
    "squeeze": ((0,), (0,), (0.25,), (0,), (0.25,), (0.25,), (0.25,)),
    "block": (("mbconv",),) * 7,
}


def _stages(table) -> list[dict]:
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def alphanet(resolution=(192, 224, 256, 288)) -> Space:
    """Returns the space of AttentiveNAS and AlphaNet: MBConv alone, kernel size and expansion by stage.

    For `supernets.Hybrid` with `**supernets.hybrid.ALPHANET`.
    """
    return hybrid(_stages(_ALPHANET), (16, 24), (1792, 1984), resolution, per_block=False)


def nasvit(resolution=(192, 224, 256, 288)) -> Space:
    """Returns NASViT's space (Gong et al., ICLR 2022): its own blocks in the last four stages.

    For `supernets.Hybrid` with `**supernets.hybrid.NASVIT`. The first block of every stage is an MBConv.
    """
    sizes = {
        "width": (*_ALPHANET["width"][:5], (160, 168, 176, 184), (208, 216, 224)),
        "depth": (*_ALPHANET["depth"][:4], range(3, 10), range(3, 9), (3, 4, 5, 6)),
        "kernel": ((3, 5), (3, 5), *((3,),) * 5),
        "block": (("mbconv",),) * 3 + (("nasvit",),) * 4,
    }
    stages = _stages(_ALPHANET | sizes)
    stages = [*stages[:3], *(stage | {"first": ("mbconv",), "mlp_ratio": (1,)} for stage in stages[3:])]
    return hybrid(stages, (16, 24), (1792, 1984), resolution, per_block=False)


def nasvit_small() -> Space:
    """Returns a space like NASViT's for small images: an MBConv, and NASViT's own blocks after it.

    For `supernets.Hybrid` with `**supernets.hybrid.SMALL` and `head_dim=8`.
    """
    sizes = {"width": ((16, 24), (32, 40), (48, 64)), "depth": ((1, 2), (1, 2, 3), (1, 2, 3))}
    choices = {"expansion": ((1, 2), (2, 4), (2, 4)), "block": (("mbconv",), ("nasvit",), ("nasvit",))}
    stages = _stages(sizes | choices)
    late = [stage | {"first": ("mbconv",), "mlp_ratio": (1, 2)} for stage in stages[1:]]
    return hybrid([stages[0], *late], (16,), (128,), per_block=False)


def hybrid_small(resolution=()) -> Space:
    """Returns a space for images of 28 x 28 or 32 x 32 in which every stage is of either kind.

    For `supernets.Hybrid` with `**supernets.hybrid.SMALL`. `restrict` leaves one kind of block only, in
    the same supernet, so that the kinds can be compared: with `block_1="fused_mbconv"`, `block_2="mbconv"`
    and `block_3="mbconv"` all blocks are convolutions, with "transformer" three times none is.

    Args:
      resolution: options of the resolution, multiples of 4, such as (20, 28); none if it isn't chosen.
    """
    convolution = {"kernel": (3, 5), "expansion": (2, 4), "squeeze": (0, 0.25)}
    attention = {"heads": (2, 4), "mlp_ratio": (1, 2)}
    stages = [
        {"width": (16, 24), "depth": (1,), "block": ("fused_mbconv", "transformer")},
        {"width": (32, 48), "depth": (1, 2), "block": _BOTH},
        {"width": (48, 64), "depth": (1, 2), "block": _BOTH},
    ]
    return hybrid([stage | convolution | attention for stage in stages], (16,), (128,), resolution)
