"""Tasks that several systems have in common."""

from jaxnas import tasks


def augmented_cifar10() -> tasks.Images:
    """CIFAR-10 with the augmentation of AutoFormer's and DeiT's recipe, in the size of its images."""
    return tasks.Images(
        data="cifar10",
        search_fraction=0.1,
        crop_padding=4,
        flip=True,
        randaugment=9,
        erase=0.25,
        mixup=0.8,
        cutmix=1.0,
    )
