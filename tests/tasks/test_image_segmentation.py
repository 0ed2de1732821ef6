"""Segmentation: masks of folders, tables and glyphs, metrics by hand, a run with its figure, bad masks told."""

import io
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from ablate import tracking
from ablate.config.errors import ConfigError, DataError
from ablate.data import IGNORED, Glyphs
from ablate.data.images.glyphs import CHARACTERS
from ablate.experiment.tree import Experiment
from ablate.tasks import tasks
from ablate.tasks.heads import SubPixelHead
from ablate.training.train import train
from ablate.training.trained import open_trained

SIZE = {"kind": "vit", "hidden": 16, "layers": 1, "heads": 2, "patch_size": 4}
SHORT = {"max_steps": 2, "val_check_interval": 2, "batch_size": 4}
TASK = tasks.parse("image_segmentation")


def draw_pair(number, size=(24, 20)):
    """An image, and a mask of classes 0 to 2 with some pixels of no class."""
    random = np.random.default_rng(number)
    image = random.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    mask = np.full((size[1], size[0]), number % 3, np.uint8)
    mask[: size[1] // 2] = 1
    mask[:2] = 255
    return Image.fromarray(image), Image.fromarray(mask)


@pytest.fixture
def folder(tmp_path):
    """root/images/a/0.jpg and root/masks/a/0.png and so on."""
    root = tmp_path / "pets"
    for name in ("images", "masks"):
        (root / name / "a").mkdir(parents=True)
    for number in range(8):
        image, mask = draw_pair(number)
        image.save(root / "images" / "a" / f"{number}.jpg")
        mask.save(root / "masks" / "a" / f"{number}.png")
    return root


def data_of(folder, **more):
    return {
        "kind": "mask_folder",
        "root": str(folder),
        "mask_classes": 3,
        "image_size": 16,
        "val_fraction": 0.5,
        **more,
    }


def test_mean_iou_and_pixel_accuracy_by_hand():
    random = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 3, (6, 5, 7), generator=random)  # the fourth class is neither there nor predicted
    targets[torch.rand(targets.shape, generator=random) < 0.2] = IGNORED
    predicted = torch.randint(0, 3, targets.shape, generator=random)
    metrics = TASK.build_metrics(SimpleNamespace(classes=4))  # as much of a corpus as they need
    for part in (slice(0, 2), slice(2, 6)):
        metrics.update(predicted[part], targets[part])
    there = targets != IGNORED
    unions = {c: (((predicted == c) | (targets == c)) & there).sum().item() for c in range(4)}
    ious = [((predicted == c) & (targets == c)).sum().item() / unions[c] for c in range(4) if unions[c]]
    expected = {"mean_iou": sum(ious) / 3, "pixel_accuracy": ((predicted == targets)[there]).float().mean().item()}
    assert TASK.compute_metrics(0.0, metrics, None) == pytest.approx(expected)


def test_the_loss_is_the_sum_over_pixels_with_a_class_and_the_count_says_how_many():
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    targets = torch.randint(0, 3, (2, 4, 4))
    targets[0, 0] = IGNORED
    loss = TASK.compute_loss(lambda images: logits, torch.zeros(2, 1, 4, 4), targets)
    count = TASK.count_targets(None, targets)
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORED)
    torch.testing.assert_close(loss * TASK.count_positions(None, targets) / count, expected)
    assert count == 28


def test_the_head_gives_each_pixel_of_a_patch_its_own_outputs():
    head = SubPixelHead(5, 3, 2, (1, 4, 6))
    patches = torch.randn(1, 6, 5)
    image = head(patches)
    assert image.shape == (1, 3, 4, 6)
    outputs = head.pixels(patches)[0].view(2, 3, 3, 2, 2)  # row and column of the patch, class, row and column in it
    assert torch.equal(image[0, :, 3, 2], outputs[1, 1, :, 1, 0])


def test_masks_of_glyphs_are_the_ink_of_the_same_draws(tmp_path):
    plain, masked = (Glyphs(draws=1, val_draws=1, targets=targets).load(tmp_path) for targets in ("class", "mask"))
    images, labels = plain.val.__getitems__(range(len(plain.val)))
    same, masks = masked.val.__getitems__(range(len(masked.val)))
    assert torch.equal(images, same)
    assert masked.classes == 4
    kinds = {"0": 1, "Q": 2, "q": 3}
    for character, kind in kinds.items():
        mask = masks[labels == CHARACTERS.index(character)]
        assert set(mask.unique().tolist()) == {0, kind}
    inked = masks > 0
    assert 0.03 < inked.float().mean() < 0.4
    shown = images[:, 0]
    darker = torch.stack([image[ink].mean() > image[~ink].mean() for image, ink in zip(shown, inked, strict=True)])
    assert darker.float().mean() > 0.95  # ink is of a higher value than paper, but for the noise


def test_a_run_on_a_folder_reports_what_its_weights_give_and_logs_a_figure(store, folder):
    run = Experiment.from_mapping({"model": SIZE, "data": data_of(folder), "trainer": SHORT})
    assert run.task == TASK
    result = train(run)
    corpus = run.data.load(store)
    assert (corpus.classes, corpus.padded) == (3, True)
    images, masks = corpus.val.__getitems__(range(4))
    assert set(masks.unique().tolist()) <= {IGNORED, 0, 1, 2}
    assert (masks == IGNORED).any()
    source = open_trained(result.run_id)
    assert source.inputs == (3, (3, 16, 16))
    expected = F.cross_entropy(source.model()(images), masks, ignore_index=IGNORED).item()
    assert result.metrics["val/loss"] == pytest.approx(expected, rel=1e-5)
    assert set(result.metrics) == {"val/loss", "val/mean_iou", "val/pixel_accuracy"}
    files = [file.path for file in tracking.client().list_artifacts(result.run_id)]
    assert "predictions.png" in files


def test_a_column_of_masks_is_the_same_as_a_folder(folder, tmp_path):
    def encode(picture):
        file = io.BytesIO()
        picture.save(file, "png")
        return {"bytes": file.getvalue(), "path": None}

    pairs = [draw_pair(number) for number in range(8)]
    table = pa.table({"image": [encode(image) for image, _ in pairs], "mask": [encode(mask) for _, mask in pairs]})
    pq.write_table(table, tmp_path / "pets.parquet")
    settings = {"targets": "mask", "mask_classes": 3, "image_size": 16, "val_fraction": 0.5}
    data = {"kind": "image_files", "files": str(tmp_path / "pets.parquet"), **settings}
    run = Experiment.from_mapping({"model": SIZE, "data": data})
    assert run.task == TASK
    _, masks = run.data.load(tmp_path).val.__getitems__(range(4))
    corpus = Experiment.from_mapping({"model": SIZE, "data": data_of(folder)}).data.load(tmp_path)
    _, of_folder = corpus.val.__getitems__(range(4))
    assert torch.equal(masks, of_folder)


def colour(mask):
    return mask.convert("RGB")


def shrink(mask):
    return mask.resize((10, 10))


def raise_class(mask):
    return Image.fromarray(np.where(np.asarray(mask) == 1, 7, np.asarray(mask)).astype(np.uint8))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (shrink, r"The mask .*3.png has 10 x 10 pixels, and its image .*3.jpg 24 x 20"),
        (raise_class, r"The mask .*3.png has the class 7, and data.mask_classes is 3: 0 to 2. Raise data.mask_classes"),
        (colour, r"The mask .*3.png cannot be read: it is in colour \(RGB\)"),
        (None, r"has no mask for a/3: it is called as the image"),
    ],
)
def test_bad_masks_are_told_before_training(folder, tmp_path, change, text):
    file = folder / "masks" / "a" / "3.png"
    mask = Image.open(file)
    mask.load()
    file.unlink()
    if change:
        change(mask).save(file)
    with pytest.raises(DataError, match=text):
        Experiment.from_mapping({"model": SIZE, "data": data_of(folder)}).data.load(tmp_path)


def test_what_would_change_images_alone_and_missing_classes_are_told_at_once(folder):
    wrong = {"augment": {"kind": "timm"}, "crop_pct": 0.9, "mask_classes": None}
    with pytest.raises(ConfigError) as error:
        Experiment.from_mapping({"model": SIZE, "data": data_of(folder, **wrong)})
    texts = ("data.augment.kind: changes images and not their masks", "data.crop_pct", "data.mask_classes: is required")
    for text in texts:
        assert text in str(error.value)
