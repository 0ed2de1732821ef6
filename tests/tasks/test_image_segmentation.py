"""Segmentation: masks of folders, tables and glyphs, metrics by hand, a run with its figure, bad masks told."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from ablate.config.errors import ConfigError, DataError
from ablate.config.yaml import parse_overrides
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


def test_a_run_on_a_folder_reports_what_its_weights_give(store, folder):
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
        (None, r"do not belong together, one to one by their names:\n  no mask for a/3$"),
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
    with pytest.raises(ConfigError, match=r"data.mask_values: must map to null or to classes from 0 to 2 \(given: 3\)"):
        Experiment.from_mapping({"model": SIZE, "data": data_of(folder, mask_values={0: 0, 255: 3})})


def draw_masks(root, *masks, size=(8, 8), mode="L", shade=9):
    """root/images/0.png and root/masks/0.png and so on, the masks with equal shares of the pixels that are given."""
    for number, pixels in enumerate(masks):
        grid = np.resize(np.array(pixels), size[0] * size[1]).reshape(size[1], size[0])
        for name in ("images", "masks"):
            (root / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (number, 9, shade)).save(root / "images" / f"{number}.png")
        Image.fromarray(grid.astype(np.uint8)).convert(mode).save(root / "masks" / f"{number}.png")


def load_masks(root, **more):
    settings = {"val_fraction": 0.5, "image_size": 8, **more}
    data = {"kind": "mask_folder", "root": str(root), **settings}
    return Experiment.from_mapping({"model": SIZE, "data": data}).data.load(root.parent / "cache")


def read_classes(corpus):
    """The classes of all pixels, in the order of the images."""
    masks = [data.__getitems__(range(len(data)))[1] for data in (corpus.train, corpus.val)]
    order = np.argsort(np.concatenate([corpus.train.rows, corpus.val.rows]))
    return torch.cat(masks)[torch.from_numpy(order)]


@pytest.mark.parametrize(
    ("masks", "settings", "told"),
    [
        (
            [[0, 0, 0, 255]] * 4,
            {"mask_classes": 2},
            r"Class 1 is in none of the 4 masks to train on, whose pixels are 0 \(75.0%\), 255 \(25.0%, ignored\). Set "
            r"the class of each pixel: data.mask_values='{.0.: 0, .255.: 1}' \(null: no class; one that is named may "
            r"be missing\)\.$",
        ),
        ([[0, 1, 1, 255]] * 4, {"mask_classes": 4}, r"Classes 2, 3 are in none .* or if .* fewer .*mask_classes=2.$"),
        ([[0, 1, 3]] * 4, {"mask_classes": 4}, r"Class 2 is in none .*mask_values='{.0.: 0, .1.: 1, .3.: 2}' [^,]*$"),
        (
            [[0, 1]] * 4,
            {"mask_classes": 2, "ignored": 0},
            r"The 4 masks to train on have one class alone, .*0 \(50",
        ),
        ([[255]] * 4, {"mask_classes": 2}, r"Classes 0, 1 are in none .*, whose pixels are 255 \(100.0%, ignored\)"),
        (
            [[0, 0, 255]] * 3 + [[0, 128, 255]],
            {"mask_classes": 2},
            r"The mask .*masks/3.png has the class 128, and .*: data.mask_values='{.0.: 0, .128.: 1, .255.: 2}'.$",
        ),
        (
            [[0, 0, 255]] * 3 + [[0, 7]],
            {"mask_values": {0: 0, 255: 1}},
            r"The mask .*masks/3.png has the pixel 7, which data.mask_values does not name. .*: 0, 7, 255 are in",
        ),
        ([[0, 255]] * 4, {"mask_values": {0: 0, 255: 0}}, "one class alone"),
        ([[1, 2]] * 4, {"mask_classes": 3}, "Class 0 is in none"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_masks_of_other_numbers_than_is_said_are_refused_with_what_to_set(tmp_path, masks, settings, told, check):
    draw_masks(tmp_path / "pets", *masks)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(DataError, match=told):
            load_masks(tmp_path / "pets", check=check, **settings)


def test_pixels_are_mapped_to_classes(tmp_path):
    pixels = [[0, 0, 255, 128]] * 4
    draw_masks(tmp_path / "pets", *pixels)
    values = 'data.mask_values={"0": 0, "255": 1, "128": null}'
    folder = {"data": {"kind": "mask_folder", "root": str(tmp_path / "pets"), "image_size": 8, "val_fraction": 0.5}}
    run = Experiment.from_mapping({"model": SIZE, **folder}, parse_overrides([values]))
    assert run.data.mask_values == {0: 0, 255: 1, 128: None}
    corpus = run.data.load(tmp_path)
    assert (corpus.classes, corpus.padded) == (2, True)
    assert "2 classes, 25.0% of the pixels ignored" in corpus.description
    assert read_classes(corpus)[0, 0, :4].tolist() == [0, 0, 1, IGNORED]
    again = Experiment.from_mapping(json.loads(json.dumps(run.to_tree())))
    assert again == run
    assert again.data.mask_values == {0: 0, 255: 1, 128: None}
    assert len({run.data, again.data}) == 1
    assert run.flat()["data.mask_values.255"] == 1


@pytest.mark.parametrize(
    ("masks", "settings"),
    [
        ([[0, 1, 1, 1, 255]] * 3 + [[255]], {"mask_classes": 2}),  # Pascal VOC: a border, and a mask of nothing else
        ([[0, 1, 2, 3]] * 4, {"mask_classes": 4, "ignored": 0}),  # ADE20K: 1 to 150, 0 is no class
        ([[0, 1]] + [[0]] * 9, {"mask_classes": 2, "val_fraction": 0.1}),  # rare, and not in every mask
    ],
)
def test_what_is_usual_is_accepted(tmp_path, masks, settings):
    draw_masks(tmp_path / "pets", *masks)
    assert load_masks(tmp_path / "pets", **settings).classes == settings["mask_classes"]


def test_a_validation_set_may_lack_classes_and_may_not_have_more(tmp_path):
    draw_masks(tmp_path / "pets/Train", *[[0, 1, 2]] * 4)
    draw_masks(tmp_path / "pets/VALID", *[[0, 2]] * 2, shade=99)
    corpus = load_masks(tmp_path / "pets", mask_classes=3)
    assert (len(corpus.train), len(corpus.val)) == (4, 2)
    assert corpus.description.endswith("; read: Train/, VALID/")
    draw_masks(tmp_path / "pets/VALID", [0, 3], shade=99)
    with pytest.raises(DataError, match=r"VALID/masks/0.png has the class 3, and data.mask_classes is 3"):
        load_masks(tmp_path / "pets", mask_classes=3)


@pytest.mark.parametrize(
    ("val", "settings", "told"),
    [
        (
            [0, 0, 0, 255],
            {},
            r"Class 1 is in none of the 2 masks to validate on, whose pixels are 0 \(75.0%\), 255 \(25.0%, ignored\). "
            r"Say what each pixel is: data.mask_values='{.0.: 0, .1.: 1, .255.: null}', with a class in place of null",
        ),
        ([0], {}, r"The 2 masks to validate on have one class alone, .* is: data.mask_values='{.0.: 0, .1.: 1}'\.$"),
        ([0, 255], {"mask_values": {0: 0, 1: 1, 255: None}}, None),
        ([0], {"mask_values": {0: 0, 1: 1}}, None),
    ],
)
def test_the_masks_of_a_validation_set_are_checked_too(tmp_path, val, settings, told):
    draw_masks(tmp_path / "pets/train", *[[0, 1]] * 4)
    draw_masks(tmp_path / "pets/val", *[val] * 2, shade=99)
    if told:
        with pytest.raises(DataError, match=told):
            load_masks(tmp_path / "pets", mask_classes=2)
    assert load_masks(tmp_path / "pets", **{"mask_values": {0: 0, 1: 1, 255: 1}, **settings}).classes == 2


def test_what_is_ignored_of_a_validation_set_is_told(tmp_path):
    draw_masks(tmp_path / "pets/train", *[[0, 1]] * 4)
    draw_masks(tmp_path / "pets/val", *[[0, 1, 255, 0]] * 2, shade=99)
    described = load_masks(tmp_path / "pets", mask_classes=2).description
    assert "2 classes, 25.0% of those to validate on ignored; read" in described
    draw_masks(tmp_path / "pets/train", *[[0, 1, 1, 1, 255]] * 4, size=(10, 10))
    described = load_masks(tmp_path / "pets", mask_classes=2).description
    assert "20.0% of the pixels and 25.0% of those to validate on ignored; read" in described


def test_a_class_that_is_named_may_be_missing(tmp_path):
    draw_masks(tmp_path / "pets", *[[0, 1, 3]] * 4)
    with pytest.raises(DataError, match="Class 2 is in none"):
        load_masks(tmp_path / "pets", mask_classes=5, mask_values={0: 0, 1: 1, 3: 3, 4: 4})
    assert load_masks(tmp_path / "pets", mask_values={0: 0, 1: 1, 2: 2, 3: 3}).classes == 4


def test_images_and_masks_at_the_root_come_first(tmp_path):
    draw_masks(tmp_path / "pets", *[[0, 1]] * 4)
    for beside in ("dev", "test/images"):
        (tmp_path / "pets" / beside).mkdir(parents=True)
    corpus = load_masks(tmp_path / "pets", mask_classes=2)
    assert (len(corpus.train), len(corpus.val)) == (2, 2)
    assert corpus.description.endswith("2 classes; not read beside images/ and masks/: dev/, test/")


def test_splits_may_be_inside_images_and_masks(tmp_path):
    for name, count in {"training": 4, "validation": 2, "test": 1}.items():
        draw_masks(tmp_path / name, *[[0, 1]] * count, shade=count)
        for part in ("images", "masks"):
            (tmp_path / "ade" / part).mkdir(parents=True, exist_ok=True)
            (tmp_path / name / part).rename(tmp_path / "ade" / part / name)
    corpus = load_masks(tmp_path / "ade", mask_classes=2)
    assert (len(corpus.train), len(corpus.val)) == (4, 2)
    assert corpus.description.endswith("; read: training/, validation/; not read: test/")


@pytest.mark.parametrize("mode", ["L", "P", "1"])
def test_masks_of_every_mode_with_a_number_for_each_pixel(tmp_path, mode):
    draw_masks(tmp_path / "pets", *[[0, 0, 255, 255]] * 4, mode=mode)
    values = {"1": {}, "L": {"mask_values": {0: 0, 255: 1}}, "P": {"mask_values": {0: 0, 255: 1}}}[mode]
    corpus = load_masks(tmp_path / "pets", mask_classes=2, **values)
    assert read_classes(corpus)[:, 0, :4].tolist() == [[0, 0, 1, 1]] * 4


def test_images_and_masks_that_do_not_belong_together_are_named(tmp_path):
    root = tmp_path / "pets"
    draw_masks(root, *[[0, 1]] * 5)
    for part, number in (("masks", 0), ("images", 1)):
        (root / part / f"{number}.bmp").write_bytes((root / part / f"{number}.png").read_bytes())
    (root / "images/2.png").unlink()
    (root / "masks/3.png").unlink()
    with pytest.raises(DataError) as error:
        load_masks(root, mask_classes=2)
    assert str(error.value).splitlines()[1:] == [
        "  no mask for 3",
        "  several masks for 0 (0.bmp, 0.png)",
        "  several images for 1 (1.bmp, 1.png)",
        "  no image for 2",
    ]


def test_an_image_by_two_names_is_one_and_images_may_share_a_mask(tmp_path):
    root = tmp_path / "pets"
    draw_masks(root, *[[0, 1]] * 3)
    (root / "images/3.png").symlink_to(root / "images/0.png")
    (root / "masks/3.png").symlink_to(root / "masks/0.png")
    (root / "masks/2.png").unlink()
    (root / "masks/2.png").symlink_to(root / "masks/1.png")
    corpus = load_masks(root, mask_classes=2)
    assert len(corpus.train) + len(corpus.val) == 3
    (root / "masks/3.png").unlink()
    (root / "masks/3.png").symlink_to(root / "masks/1.png")
    with pytest.raises(DataError, match=r"several masks for .*0.png and .*3.png are one file \(.*0.png, .*3.png\)"):
        load_masks(root, mask_classes=2)


UPRIGHT = np.arange(96).reshape(8, 12) * 2 % 191 // 2  # a class of its own for each pixel


@pytest.mark.parametrize(
    ("orientation", "stored"),
    [(6, np.rot90(UPRIGHT)), (8, np.rot90(UPRIGHT, -1)), (3, UPRIGHT[::-1, ::-1]), (2, UPRIGHT[:, ::-1])],
)
@pytest.mark.parametrize("of_mask", ["none", "same", "upright"])
def test_masks_are_turned_with_their_images(tmp_path, caplog, orientation, stored, of_mask):
    """A mask without an orientation is one of the stored image, unless only the upright one has its size."""
    root = tmp_path / "pets"
    exif = Image.Exif()
    exif[274] = orientation
    for number in range(2):
        for name, pixels in (("images", np.repeat(stored[..., None], 3, 2)), ("masks", stored)):
            (root / name).mkdir(parents=True, exist_ok=True)
            own = {} if name == "masks" and of_mask != "same" else {"exif": exif}
            shown = UPRIGHT if name == "masks" and of_mask == "upright" else pixels
            Image.fromarray(np.ascontiguousarray(shown).astype(np.uint8)).save(root / name / f"{number}.png", **own)
    corpus = load_masks(root, mask_classes=96)
    image, mask = corpus.train.source.load(0)
    fits = of_mask != "upright" or orientation in (6, 8)
    assert np.array_equal(np.asarray(image)[..., 0], UPRIGHT)
    assert np.array_equal(mask, UPRIGHT) == fits
    told = "2 masks have no EXIF orientation of their own and are turned with their images"
    assert (told in caplog.text) == (of_mask == "none" or not fits)
