"""Random changes of training images: timm's transforms and mixing, as functions of (seed, epoch, image) alone.

timm draws from the global generators of Python, numpy and PyTorch. They are seeded for each image and restored
afterwards, so that the result depends neither on the worker or rank that reads the image nor on where a run was
resumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator

from ablate.config.base import Kind
from ablate.config.errors import Problem
from ablate.config.lazy import torch
from ablate.config.registry import Registry

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ablate.data.images.pixels import Pixels, Transform

Share = Annotated[float, Field(ge=0, le=1)]
Mix: TypeAlias = "Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]"


class Augmentation(Kind):
    """The data augmentation of training images."""

    kind: str

    def build_transform(self, pixels: Pixels) -> Transform | None:
        """Return the transform of a decoded image to float32 [3, size, size], which draws from the global generators;
        None if nothing is random and training images are treated like validation images."""
        raise NotImplementedError

    def build_mix(self, classes: int) -> Mix | None:
        """Return the function that mixes a pair: (images [2, 3, size, size], classes [2]) -> (images of the same shape,
        class probabilities [2, classes]); None if images are not mixed."""
        return None

    def soften(self, labels: Tensor, classes: int) -> Tensor:
        """Return the targets of images that are not mixed: classes [n], or class probabilities [n, classes]."""
        return labels

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        """Return the problems with `batch` images in a batch of one device."""
        return []


augmentations: Registry[Augmentation] = Registry("augmentation", Augmentation, default="none", keeps=False)


@augmentations.register
class NoAugmentation(Augmentation):
    """Training images are treated like validation images."""

    kind: Literal["none"] = "none"

    def build_transform(self, pixels: Pixels) -> Transform | None:
        return None


@augmentations.register
class Timm(Augmentation):
    """timm's transforms, mixing and label smoothing. The default is a random crop and a horizontal flip."""

    kind: Literal["timm"] = "timm"
    scale: tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]] = (0.08, 1.0)
    """Smallest and largest share of the image's area in the random crop, which is resized to image_size."""
    ratio: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (3 / 4, 4 / 3)
    """Smallest and largest ratio of the crop's width to its height."""
    flip: Share = 0.5
    """Probability of a horizontal flip."""
    color_jitter: float = Field(0.0, ge=0)
    """Strength of random changes of brightness, contrast and saturation. Not together with `randaugment`, as in
    timm."""
    randaugment: str | None = None
    """RandAugment in timm's notation, such as rand-m9-mstd0.5-inc1: magnitude, its standard deviation, effects that
    increase with magnitude."""
    random_erasing: Share = 0.0
    """Probability that a random rectangle is replaced by noise."""
    mixup: float = Field(0.0, ge=0)
    """Mixup blends two images with a weight from Beta(mixup, mixup). 0: no mixup."""
    cutmix: float = Field(0.0, ge=0)
    """CutMix exchanges a rectangle between two images, with an area from Beta(cutmix, cutmix). 0: no CutMix."""
    mix_probability: Share = 1.0
    """Probability that a pair is mixed. Each pair draws its own weight, and pairs are neighbours in the permuted order,
    so that batch size and ranks do not matter."""
    cutmix_probability: Share = 0.5
    """Probability of CutMix instead of mixup for a mixed pair, if both are on."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """The share of each training target that is spread evenly over all classes. Validation targets are not smoothed."""

    FORM: ClassVar[str] = r"rand(-(m\d+|n\d+|mmax\d+|inc[01]|mstd\d+(\.\d+)?|p(1|0?\.\d+)))*"

    @field_validator("randaugment")
    @classmethod
    def _known_policy(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(cls.FORM, name):
            raise ValueError("must be RandAugment in timm's notation, such as rand-m9-mstd0.5-inc1")
        return name

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0

    def validate(self, batch: int) -> list[Problem]:  # type: ignore[override]
        problems: list[Problem] = []
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if low > high:
                problems.append(Problem(name, "the first number must not be above the second", [low, high]))
        if self.color_jitter and self.randaugment:
            text = "is not applied together with randaugment: set one of the two"
            problems.append(Problem("color_jitter", text, self.color_jitter))
        if self.mixes and batch % 2:
            name = "mixup" if self.mixup else "cutmix"
            text = (
                f"mixes images in pairs, and a batch of one device has {batch}: make trainer.batch_size a multiple of "
                "2 * trainer.accumulate * the number of ranks, or set data.augment.mixup and data.augment.cutmix to 0"
            )
            problems.append(Problem(name, text, getattr(self, name)))
        return problems

    def build_transform(self, pixels: Pixels) -> Transform | None:
        from timm.data import create_transform

        transform = create_transform(
            pixels.image_size,
            is_training=True,
            scale=self.scale,
            ratio=self.ratio,
            hflip=self.flip,
            color_jitter=self.color_jitter or None,
            auto_augment=self.randaugment,
            interpolation="bicubic",
            mean=pixels.mean,
            std=pixels.std,
            re_prob=self.random_erasing,
            re_mode="pixel",
        )
        return _allow_no_bits(transform)

    def build_mix(self, classes: int) -> Mix | None:
        if not self.mixes:
            return None
        from timm.data import Mixup

        mix: Mix = Mixup(
            self.mixup,
            self.cutmix,
            prob=self.mix_probability,
            switch_prob=self.cutmix_probability,
            label_smoothing=self.label_smoothing,
            num_classes=classes,
        )
        return mix

    def soften(self, labels: Tensor, classes: int) -> Tensor:
        if not self.label_smoothing:
            return labels
        rest = self.label_smoothing / classes
        targets = torch.full((len(labels), classes), rest)
        return targets.scatter_(1, labels[:, None], 1 - self.label_smoothing + rest)


def _allow_no_bits(transform: Any) -> Transform:
    """Return `transform` with a posterize operation that accepts all of timm's magnitudes. The strongest keeps 0 bits
    of each pixel, which makes the image black; Pillow 13 rejects that."""
    from timm.data.auto_augment import RandAugment, posterize

    for policy in (step for step in transform.transforms if isinstance(step, RandAugment)):
        for operation in policy.ops:
            if operation.aug_fn is posterize:
                operation.aug_fn = _posterize
    whole: Transform = transform
    return whole


def _posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    from timm.data.auto_augment import posterize

    coarse: Image.Image = posterize(image, bits) if bits else image.point(lambda value: 0)
    return coarse


# That of ConvNeXt (Liu et al. 2022, arXiv 2201.03545, table 5), which Mix-LN trains its ViTs with.
augmentations.preset(
    "convnext",
    "timm",
    randaugment="rand-m9-mstd0.5-inc1",
    random_erasing=0.25,
    mixup=0.8,
    cutmix=1.0,
    label_smoothing=0.1,
)
