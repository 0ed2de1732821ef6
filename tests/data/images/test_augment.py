"""Augmentation against timm applied by hand, and that it depends on (seed, epoch, image) alone."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from ablate.config.errors import ConfigError
from ablate.data import ImageFolder, PermutedBatches, build_loader
from ablate.data.images.augment import Timm, augmentations
from ablate.data.images.pixels import Pixels
from ablate.experiment.tree import Experiment

CLASSES = 3
CONVNEXT = augmentations.presets["convnext"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three classes of four noisy images each, no two alike."""
    folder = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for name in "abc":
        (folder / name).mkdir()
        for number in range(4):
            coarse = Image.fromarray(noise.integers(0, 256, (6, 7, 3), np.uint8))
            coarse.resize((42, 36), Image.Resampling.NEAREST).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def plain(root, tmp_path):
    """plain(**augment): training images of 16 pixels, nine of them."""

    def build(**augment):
        augment = {"kind": "timm", **augment} if augment else "none"
        return ImageFolder(root=str(root), image_size=16, val_fraction=0.25, augment=augment).load(tmp_path).train

    return build


def seed_by_hand(seed, *stream):
    words = np.random.SeedSequence(seed, spawn_key=stream).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.manual_seed(int(words[2]))


def test_without_augmentation_nothing_depends_on_the_seed(plain):
    data = plain()
    assert data.bind_seed(3) is data
    assert not data.with_epoch


def test_images_are_those_of_timm_with_the_same_seed(plain):
    data = plain(randaugment="rand-m9-mstd0.5-inc1", random_erasing=0.5, scale=(0.3, 1.0))
    images, labels = data.bind_seed(5).__getitems__([2 * 9 + 4, 7, 4])
    transform = create_transform(
        16, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.5, re_mode="pixel", scale=(0.3, 1.0),
        interpolation="bicubic",
    )  # fmt: skip
    for (epoch, index), image, label in zip([(2, 4), (0, 7), (0, 4)], images, labels, strict=True):
        seed_by_hand(5, 2, epoch, index)
        expected = transform(Image.open(data.source.name(data.rows[index])).convert("RGB"))
        assert torch.equal(image, expected)
        assert label == data.labels[index]
    assert not torch.equal(images[0], images[2])


def test_color_jitter_and_flip_are_timms(plain):
    data = plain(color_jitter=0.4, flip=1.0)
    transform = create_transform(16, is_training=True, color_jitter=0.4, hflip=1.0, interpolation="bicubic")
    seed_by_hand(0, 2, 0, 1)
    assert torch.equal(
        data.bind_seed(0).__getitems__([1])[0][0], transform(Image.open(data.source.name(data.rows[1])).convert("RGB"))
    )


def test_the_global_generators_are_left_as_they_were(plain):
    data = plain(**CONVNEXT).bind_seed(0)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    data.__getitems__([0, 1])
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected


def test_an_image_depends_on_seed_epoch_and_index_alone(plain):
    data = plain(randaugment="rand-m9-mstd0.5-inc1")
    one = data.bind_seed(0)
    alone = one.__getitems__([13])[0][0]
    assert torch.equal(one.__getitems__([2, 40, 13])[0][2], alone)
    assert torch.equal(plain(randaugment="rand-m9-mstd0.5-inc1").bind_seed(0)[13][0], alone)
    for other in (one[13 + 9][0], one[14][0], data.bind_seed(1)[13][0]):
        assert not torch.equal(other, alone)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("ranks", "accumulate"), [(2, 1), (1, 2), (2, 3)])
def test_ranks_and_accumulation_and_workers_give_the_same_mixed_images(plain, workers, ranks, accumulate):
    """Of 24 images, through three epochs of nine: the batches of one process, and those of a group put together."""
    data = plain(**CONVNEXT).bind_seed(4)
    whole = [torch.cat(part) for part in zip(*take(data, 12, 2), strict=True)]
    parts = [take(data, 12 // accumulate, 2 * accumulate, workers, rank, ranks) for rank in range(ranks)]
    joined = [batch for together in zip(*parts, strict=True) for batch in together]
    assert all(torch.equal(torch.cat(a), b) for a, b in zip(zip(*joined, strict=True), whole, strict=True))


def take(data, size, count, workers=0, rank=0, ranks=1):
    batches = PermutedBatches(len(data), size, 4, rank=rank, world_size=ranks, with_epoch=True)
    found = iter(build_loader(data, batches, workers))
    return [next(found) for _ in range(count)]


def test_mixup_by_hand(plain):
    data = plain(mixup=0.8, flip=0.0, scale=(1.0, 1.0), ratio=(1.0, 1.0), label_smoothing=0.1)
    still = plain(flip=0.0, scale=(1.0, 1.0), ratio=(1.0, 1.0)).bind_seed(1)
    numbers = [9 + 1, 8, 3, 5]
    images, targets = data.bind_seed(1).__getitems__(numbers)
    clean, labels = still.__getitems__(numbers)
    shares = []
    for first, key in ((0, (1, 1)), (2, (0, 3))):
        seed_by_hand(1, 3, *key)
        np.random.rand()  # timm asks first whether to mix
        share = np.random.beta(0.8, 0.8)
        shares.append(share)
        for this, other in ((first, first + 1), (first + 1, first)):
            torch.testing.assert_close(images[this], share * clean[this] + (1 - share) * clean[other])
            wanted = torch.full((CLASSES,), 0.1 / CLASSES)
            wanted[labels[this]] += 0.9 * share
            wanted[labels[other]] += 0.9 * (1 - share)
            torch.testing.assert_close(targets[this], wanted)
    assert shares[0] != shares[1]


def test_cutmix_exchanges_a_rectangle_and_weighs_classes_by_its_area(plain):
    settings = {"flip": 0.0, "scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    cut, still = plain(cutmix=1.0, **settings).bind_seed(2), plain(**settings).bind_seed(2)
    areas = set()
    for a, b in [(0, 8), (1, 7), (2, 6), (3, 5)]:
        images, targets = cut.__getitems__([a, b])
        clean, labels = still.__getitems__([a, b])
        other = (images[0] == clean[1]).all(0) & (clean[0] != clean[1]).any(0)
        rows, columns = other.any(1).nonzero(), other.any(0).nonzero()
        assert other.sum() == (other.any(1).sum() * other.any(0).sum())
        assert torch.equal(images[0][:, ~other], clean[0][:, ~other])
        assert torch.equal(images[1][:, other], clean[0][:, other])
        share = 1 - other.sum().item() / 256
        areas.add(share)
        wanted = torch.zeros(CLASSES).index_add_(0, labels, torch.tensor([share, 1 - share]))
        torch.testing.assert_close(targets[0], wanted)
        assert len(rows) + len(columns) < 32
    assert len(areas) > 1


def test_mixing_needs_pairs(plain):
    data = plain(mixup=1.0).bind_seed(0)
    with pytest.raises(ValueError, match="mixed in pairs, and 3 were requested"):
        data.__getitems__([0, 1, 2])


def test_posterize_takes_what_timm_gives_it():
    """The strongest magnitude keeps no bits, which Pillow refuses from version 13 on."""
    transform = Timm(randaugment="rand-m10-n15-inc1").build_transform(Pixels(image_size=8))
    policy = next(step for step in transform.transforms if hasattr(step, "ops"))
    posterize = next(operation for operation in policy.ops if operation.name == "PosterizeIncreasing")
    posterize.prob = 1.0
    image = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    assert not np.asarray(posterize(image)).any()
    posterize.magnitude = 5
    assert np.array_equal(np.asarray(posterize(image)), np.asarray(image) & 0b11000000)


def problems(**augment):
    settings = {"model": "vit-tiny", "data.kind": "image_folder", "data.root": "x", "data.augment.kind": "timm"}
    trainer = {key: augment.pop(key) for key in list(augment) if key.startswith("trainer")}
    with pytest.raises(ConfigError) as caught:
        Experiment.from_mapping({**settings, **trainer, **{f"data.augment.{k}": v for k, v in augment.items()}})
    return {problem.path: problem.message for problem in caught.value.problems}


def test_what_is_refused():
    found = problems(mixup=0.8, **{"trainer.batch_size": 15})
    assert "a batch of one device has 15: make trainer.batch_size a multiple of 2" in found["data.augment.mixup"]
    found = problems(cutmix=0.8, **{"trainer.batch_size": 6, "trainer.accumulate": 2})
    assert "a batch of one device has 3" in found["data.augment.cutmix"]
    found = problems(cutmix=0.8, **{"trainer.batch_size": 1})
    assert "has 1" in found["data.augment.cutmix"]
    assert problems(scale=[1.0, 0.5]) == {"data.augment.scale": "the first number must not be above the second"}
    assert "set one of the two" in problems(color_jitter=0.4, randaugment="rand-m9")["data.augment.color_jitter"]
    for wrong in ("m9", "rand-x3", "rand-m9-", "augmix"):
        assert "such as rand-m9-mstd0.5-inc1" in problems(randaugment=wrong)["data.augment.randaugment"]
    assert "Did you mean data.augment.mixup?" in problems(mixupp=0.8)["data.augment.mixupp"]


def test_the_recipe_is_a_preset_that_can_be_changed():
    settings = {"model": "vit-tiny", "data": "imagenet", "data.augment": "convnext", "data.augment.mixup": 0}
    data = Experiment.from_mapping(settings).data
    assert data.augment == Timm(**{**CONVNEXT, "mixup": 0})
    assert (data.dataset, data.image_size, data.crop_pct) == ("ILSVRC/imagenet-1k", 224, 0.875)
    again = Experiment.from_mapping(Experiment.from_mapping(settings).to_tree()).data
    assert again == data
