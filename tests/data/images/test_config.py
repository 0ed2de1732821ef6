"""Images: digits, folders, decoding, and what is said about broken ones."""

import copy
import io
import os
import re
import shutil

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from ablate.config.errors import DataError
from ablate.data import Digits, ImageFolder
from ablate.data.images import pixels, sources
from ablate.data.images.pixels import Pixels

PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}
COLOURS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


def save(path, colour=(9, 9, 9), size=(8, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


def names(dataset):
    """What messages call the images of a dataset: their paths."""
    return [dataset.source.name(row) for row in dataset.rows]


def square(path, size):
    """The grey values that a model would see, [size, size, 3]."""
    image = Pixels(image_size=size, **PLAIN).build_transform()(pixels.decode(path.read_bytes()))
    return (image * 255).round().permute(1, 2, 0).numpy().astype(int)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path):
    """Two classes of five images each."""
    for name, colour in COLOURS.items():
        for number in range(5):
            path = tmp_path / "root" / name / f"{number}.png"
            save(path, colour)
            path.write_bytes(path.read_bytes() + bytes([number]))  # no copy of another
    return tmp_path / "root"


def test_digits(cache):
    corpus = Digits().load(cache)
    images, labels = corpus.train.__getitems__(range(len(corpus.train)))
    assert (len(corpus.train), len(corpus.val)) == (1438, 359)
    assert (images.dtype, images.shape[1:], labels.dtype) == (torch.float32, (1, 8, 8), torch.int64)
    assert images.mean().item() == pytest.approx(0, abs=1e-4)
    assert images.std().item() == pytest.approx(1, abs=1e-4)
    assert sorted(labels.unique().tolist()) == list(range(10))
    assert (corpus.classes, corpus.shape, corpus.bytes_per_token) == (10, (1, 8, 8), None)
    assert corpus.train.class_names == tuple("0123456789")
    image, label = corpus.val[3]
    assert image.shape == (1, 8, 8)
    assert label.shape == ()


def test_digits_split_by_its_seed_alone(cache):
    first, again, other = (Digits(split_seed=seed).load(cache) for seed in (0, 0, 1))
    assert torch.equal(first.val.images, again.val.images)
    assert not torch.equal(first.val.images, other.val.images)
    assert first.fingerprint == other.fingerprint


def test_folder(root, cache):
    save(root / "red/deeper/9.JPG", COLOURS["red"])
    (root / "red/notes.txt").touch()
    (root / "red/._0.png").touch()
    (root / ".hidden").mkdir()
    corpus = ImageFolder(root=str(root), image_size=4, val_fraction=0.3).load(cache)
    assert corpus.train.class_names == corpus.val.class_names == ("blue", "red")
    assert (len(corpus.train), len(corpus.val), corpus.classes, corpus.shape) == (8, 3, 2, (3, 4, 4))
    assert not set(names(corpus.train)) & set(names(corpus.val))
    images, labels = corpus.train.__getitems__(range(8))
    assert (images.dtype, images.shape, images.is_contiguous()) == (torch.float32, (8, 3, 4, 4), True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    for path, image, label in zip(names(corpus.train), images, labels, strict=True):
        name = "red" if "/red/" in path else "blue"
        assert corpus.train.class_names[label] == name
        expected = (torch.tensor(COLOURS[name]) / 255 - mean) / std
        torch.testing.assert_close(image[:, 2, 2], expected, atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("train", "validation"), [("train", "val"), ("Train", "validation"), ("training", "VALID"), ("TRAIN", "dev")]
)
def test_folder_with_a_validation_set(root, tmp_path, cache, train, validation):
    (tmp_path / "both").mkdir()
    root.rename(tmp_path / "both" / train)
    for name, colour in COLOURS.items():
        save(tmp_path / "both" / validation / name / "0.webp", colour)
    corpus = ImageFolder(root=str(tmp_path / "both"), image_size=2, mean=(0, 0, 0), std=(1, 1, 1)).load(cache)
    assert (len(corpus.train), len(corpus.val)) == (10, 2)
    assert [label.item() for _, label in corpus.val] == [0, 1]
    assert all(f"/{validation}/" in path for path in names(corpus.val))
    assert corpus.description.endswith(f"2 classes; read: {train}/, {validation}/")


def test_train_without_validation_folder_is_split(root, tmp_path, cache):
    (tmp_path / "both").mkdir()
    root.rename(tmp_path / "both/train")
    corpus = ImageFolder(root=str(tmp_path / "both"), val_fraction=0.2).load(cache)
    assert (len(corpus.train), len(corpus.val)) == (8, 2)
    below = ImageFolder(root=str(tmp_path / "both/train"), val_fraction=0.2).load(cache)
    assert below.fingerprint == ImageFolder(root=str(tmp_path / "both/train")).load(tmp_path / "new").fingerprint


def test_images_that_are_enlarged_are_told(root, cache):
    width = ImageFolder(root=str(root), image_size=8).load(cache).val.source.load_image(0).width
    note = f"(enlarged: the first is {width} x {width}; set data.image_size={width})"
    assert note in ImageFolder(root=str(root), image_size=4 * width).load(cache).description
    assert "enlarged" not in ImageFolder(root=str(root), image_size=width).load(cache).description


def test_a_test_set_is_left_alone(root, tmp_path, cache):
    (tmp_path / "both").mkdir()
    root.rename(tmp_path / "both/train")
    config = ImageFolder(root=str(tmp_path / "both"), val_fraction=0.2)
    before = config.load(cache)
    assert "test/" not in before.description
    for name in COLOURS:
        save(tmp_path / "both/Testing" / name / "0.png")
    (tmp_path / "both/annotations").mkdir()
    corpus = config.load(cache)
    assert (len(corpus.train), len(corpus.val)) == (8, 2)
    assert all("/both/train/" in path for path in names(corpus.train) + names(corpus.val))
    assert corpus.description.endswith("2 classes; read: train/; not read: Testing/, annotations/")
    assert corpus.fingerprint == before.fingerprint


def test_a_class_may_be_called_train(root, cache):
    save(root / "train/1.bmp")
    assert ImageFolder(root=str(root)).load(cache).train.class_names == ("blue", "red", "train")


@pytest.mark.parametrize(
    ("folders", "told"),
    [
        (
            ("valid/cat", "test/cat"),
            "root has test/, valid/, called like a split, but no train/ with a folder for each",
        ),
        (("cat", "dog", "test"), "root has test/, called like a split, but no train/ with a folder for each class"),
        (("train_images", "test2017"), "root has test2017/, train_images/, called like a split"),
        (("train", "Test"), "root has Test/, train/, called like a split"),  # of images without classes
        (("train/cat", "train/dog", "val/cat", "Valid/cat"), "root has two splits for validation, Valid and val"),
    ],
)
def test_a_split_is_never_a_class(tmp_path, cache, folders, told):
    for folder in folders:
        save(tmp_path / "root" / folder / "1.png")
    fails(tmp_path / "root", cache, told)


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_links_to_folders_are_followed_as_by_torchvision_and_loops_are_not(root, tmp_path, cache):
    """Against torchvision, on a copy without the loops."""
    save(tmp_path / "elsewhere/more/7.png")
    save(tmp_path / "elsewhere/8.png")
    link(root / "red/linked", tmp_path / "elsewhere")
    shutil.copytree(root, tmp_path / "copy", symlinks=True)
    link(root / "red/linked_again", tmp_path / "elsewhere/more")
    link(root / "red/self", root / "red")
    link(root / "blue/up", root)
    link(tmp_path / "elsewhere/back", root)
    corpus = ImageFolder(root=str(root), image_size=2, val_fraction=0.2).load(cache)
    found = sorted(path.removeprefix(str(root)) for path in names(corpus.train) + names(corpus.val))
    (tmp_path / "elsewhere/back").unlink()
    theirs = torchvision.datasets.ImageFolder(tmp_path / "copy").samples
    assert found == sorted(path.removeprefix(str(tmp_path / "copy")) for path, _ in theirs)
    assert len(found) == 12


def test_one_file_by_several_names_is_one_image_and_of_one_class_and_set(root, tmp_path, cache):
    link(root / "red/5.png", root / "red/1.png")
    os.link(root / "red/2.png", root / "red/6.png")
    corpus = ImageFolder(root=str(root), image_size=2).load(cache)
    assert len(corpus.train) + len(corpus.val) == 10
    link(root / "red/7.png", root / "blue/1.png")
    fails(root, cache, r"root/red/7.png is by a link .*root/blue/1.png, in another class: remove one of them")
    (root / "red/7.png").unlink()
    (tmp_path / "both").mkdir()
    root.rename(tmp_path / "both/train")
    save(tmp_path / "both/val/red/1.png")
    link(tmp_path / "both/val/blue/2.png", tmp_path / "both/train/blue/2.png")
    text = "1 of the 2 validation images are links to training images, such as .*val/blue/2.png to .*train/blue/2.png"
    fails(tmp_path / "both", cache, text)


def draw_quadrants(turned):
    """An image of 12 x 8 with four colours, as it is stored with an EXIF orientation by which it is upright; and that
    EXIF. Turned by hand, not by what is tested."""
    grid = np.zeros((8, 12, 3), np.uint8)
    for place, colour in enumerate([(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)]):
        grid[place // 2 * 4 :, place % 2 * 6 :] = colour
    stored = {
        1: grid,
        2: grid[:, ::-1],
        3: grid[::-1, ::-1],
        4: grid[::-1],
        5: grid.transpose(1, 0, 2),
        6: np.rot90(grid),  # to be turned by 90 degrees to the right
        7: grid[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(grid, -1),
    }[turned]
    exif = Image.Exif()
    exif[274] = turned
    return grid, Image.fromarray(np.ascontiguousarray(stored)), exif


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "tiff"])
@pytest.mark.parametrize("turned", range(1, 9))
def test_images_are_turned_as_their_orientation_says(turned, kind):
    upright, stored, exif = draw_quadrants(turned)
    file = io.BytesIO()
    stored.save(file, kind, exif=exif, **({"quality": 100, "subsampling": 0} if kind == "jpeg" else {}))
    image = np.asarray(pixels.decode(file.getvalue())).astype(int)
    assert image.shape == upright.shape
    inside = np.abs(image - upright)[1:3, 1:5]  # whatever a lossy format makes of edges
    assert inside.max() < 40


def test_an_orientation_that_is_damaged_or_of_16_bits():
    _, stored, _ = draw_quadrants(1)
    for exif in (b"Exif\0\0nothing of the kind", b"Exif\0\0II*\0\xff\xff\xff\xff"):
        file = io.BytesIO()
        stored.save(file, "jpeg", exif=exif, quality=100)
        assert pixels.decode(file.getvalue()).size == (12, 8)
    grey, exif = np.arange(96, dtype=np.uint16).reshape(8, 12) << 8, Image.Exif()
    exif[274] = 6
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "png", exif=exif)
    assert np.array_equal(np.asarray(pixels.decode(file.getvalue()))[..., 0], np.rot90(grey >> 8, -1))


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    save(tmp_path / "a.png", (255, 255, 255), mode=mode)
    assert np.array_equal(square(tmp_path / "a.png", 5), np.full((5, 5, 3), 255))


@pytest.mark.parametrize(("size", "crop_pct"), [(32, 0.875), (9, 0.5)])
def test_evaluation_with_crop_pct_is_resize_then_centre_crop(size, crop_pct):
    """Against Pillow alone."""
    grey = np.random.default_rng(0).integers(0, 256, (50, 81, 3), np.uint8)
    image = Image.fromarray(grey)
    settings = Pixels(image_size=size, crop_pct=crop_pct)
    short = int(size / crop_pct)
    resized = image.resize((int(81 * short / 50), short), Image.Resampling.BICUBIC)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    cut = np.asarray(resized.crop((left, top, left + size, top + size)), np.float32) / 255
    expected = (cut - np.array(settings.mean, np.float32)) / np.array(settings.std, np.float32)
    assert np.abs(settings.build_transform()(image).permute(1, 2, 0).numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("size", [(128, 64), (64, 128), (64, 64), (8, 4), (32, 32)])
def test_shorter_side_then_centre(tmp_path, size):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    scale = 32 / min(size)
    width, height = round(size[0] * scale), round(size[1] * scale)
    left, top = (width - 32) // 2, (height - 32) // 2
    whole = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + 32, top + 32))
    assert np.abs(square(tmp_path / "a.png", 32) - np.asarray(whole)).max() <= 2


def test_fingerprint(root, cache, tmp_path):
    def fingerprint(folder):
        return ImageFolder(root=str(folder), image_size=2).load(cache).fingerprint

    before = fingerprint(root)
    assert ImageFolder(root=str(root), split_seed=3).load(cache).fingerprint == before
    moved = root.rename(tmp_path / "moved")
    assert fingerprint(moved) == before
    (moved / "red/0.png").rename(moved / "red/00.png")
    renamed = fingerprint(moved)
    save(moved / "red/00.png", (254, 0, 0))
    assert len({before, renamed, fingerprint(moved)}) == 3


def test_images_are_checked_once(root, cache, monkeypatch):
    config = ImageFolder(root=str(root), image_size=2)
    before = config.load(cache).fingerprint
    calls = []
    look = sources._check_image
    monkeypatch.setattr(sources, "_check_image", lambda *given: calls.append(given) or look(*given))
    assert config.load(cache).fingerprint == before
    assert not calls
    os.utime(root / "red/0.png", ns=(1, 1))
    assert config.load(cache).fingerprint == before
    assert len(calls) == 10


def test_a_check_can_be_left_out_and_then_training_names_the_broken_image(root, cache, monkeypatch, caplog):
    whole = ImageFolder(root=str(root), image_size=2).load(cache).fingerprint
    monkeypatch.setattr("ablate.data.progress.AFTER", -1.0)
    with caplog.at_level("INFO", "ablate"):
        assert ImageFolder(root=str(root), image_size=2, check=False).load(cache).fingerprint == whole
    assert caplog.messages == ["hashing, once for all runs: 10 of 10 images"]
    (root / "red/1.png").write_bytes((root / "red/1.png").read_bytes()[:50])
    corpus = ImageFolder(root=str(root), image_size=2, check=False).load(cache)
    assert corpus.fingerprint != whole
    where = next((d, i) for d in (corpus.train, corpus.val) for i, name in enumerate(names(d)) if "red/1" in name)
    with pytest.raises(DataError, match=r"The image /.*red/1.png cannot be decoded: "):
        where[0][where[1]]
    fails(root, cache, "1 image cannot be decoded")


def test_datasets_can_be_pickled(root, cache):
    train = ImageFolder(root=str(root), image_size=2).load(cache).train
    assert torch.equal(copy.deepcopy(train)[1][0], train[1][0])


def fails(root, cache, match):
    with pytest.raises(DataError, match=match) as caught:
        ImageFolder(root=str(root)).load(cache)
    return str(caught.value)


def test_missing_root(tmp_path, cache):
    fails(tmp_path / "nowhere", cache, "no folder /.*/nowhere")
    (tmp_path / "file").touch()
    fails(tmp_path / "file", cache, "no folder /.*/file, only a file")


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_a_root_that_can_be_none(name, cache):
    fails(name, cache, f"There is no folder /.*/{name[:20]}")  # a long path is shortened


def test_a_root_at_an_address(cache):
    fails(
        "s3://bucket/images",
        cache,
        "The folder s3://bucket/images is an address, and folders are not downloaded: copy it to this machine",
    )


def test_root_without_classes(tmp_path, cache):
    save(tmp_path / "root/1.png")
    fails(tmp_path / "root", cache, r"root has no folders. Expected one for each class: .*root/CLASS/\*.jpg")


def test_one_class(tmp_path, cache):
    save(tmp_path / "root/cat/1.png")
    fails(tmp_path / "root", cache, "root has only the class 'cat'")


def test_class_without_images(root, cache):
    (root / "green").mkdir()
    (root / "white").mkdir()
    (root / "white/a.svg").touch()
    fails(root, cache, r"No images in .*root for: green, white. Accepted: \.jpg, .*\.gif, \.tif, ")


def test_files_that_are_no_images_are_counted_and_named(root, cache, caplog):
    for name in ("logo.svg", "notes.txt", ".hidden.txt"):
        (root / "red" / name).touch()
    (root / "blue/more").mkdir()
    (root / "blue/more/mask.SVG").touch()
    with caplog.at_level("WARNING", "ablate"):
        ImageFolder(root=str(root), image_size=2).load(cache)
    (message,) = caplog.messages
    expected = "root: 3 files are left out, since their formats are not read (2 .svg, 1 .txt): "
    assert expected + "blue/more/mask.SVG, red/logo.svg, red/notes.txt. Accepted: .jpg" in message


def test_of_an_animation_the_first_frame_is_read(root, cache):
    frames = [Image.new("RGB", (8, 8), colour) for colour in COLOURS.values()]
    frames[0].save(root / "blue/a.gif", save_all=True, append_images=frames[1:])
    frames[0].save(root / "blue/a.tif", save_all=True, append_images=frames[1:])
    assert np.array_equal(square(root / "blue/a.gif", 2), square(root / "blue/a.tif", 2))
    assert square(root / "blue/a.gif", 2)[0, 0].tolist() == [0, 0, 255]
    corpus = ImageFolder(root=str(root), image_size=2).load(cache)
    assert len(corpus.train) + len(corpus.val) == 12


@pytest.mark.parametrize("suffix", sources.SUFFIXES)
def test_every_accepted_suffix_is_one_that_pillow_reads(suffix):
    Image.init()
    assert Image.registered_extensions()[suffix] in Image.OPEN


def test_broken_images(root, cache):
    content = (root / "red/1.png").read_bytes()
    (root / "red/1.png").write_bytes(content[:50])
    message = fails(root, cache, r"1 image cannot be decoded:\n  /.*/red/1.png: .+")
    assert message == fails(root, cache, "1 image")
    (root / "red/2.png").write_bytes(b"GIF89a?")
    (root / "blue/3.png").write_bytes(b"")
    message = fails(root, cache, "3 images")
    assert re.search("blue/3.png: empty\n.*red/1.png: .*\n.*red/2.png: ", message)
    for path in root.glob("*/*.png"):
        path.write_text("no image")
    message = fails(root, cache, "10 images cannot be decoded")
    assert message.count(": not an image") == 5
    assert message.endswith("  ...")


def test_image_that_breaks_after_the_check(root, cache):
    train = ImageFolder(root=str(root)).load(cache).train
    for path in names(train):
        os.unlink(path)
    with pytest.raises(DataError, match=r"The image /.*\.png cannot be decoded: No such file"):
        train[0]


def test_different_classes(root, tmp_path, cache):
    (tmp_path / "both").mkdir()
    root.rename(tmp_path / "both/train")
    for name in ("blue", "redd"):
        save(tmp_path / "both/val" / name / "0.png")
    message = fails(
        tmp_path / "both", cache, "different classes. .*/val lacks red. .*/train lacks redd. Did you mean red"
    )
    assert "blue" not in message


def test_too_few_images_for_a_split_is_said_before_decoding(tmp_path, cache):
    save(tmp_path / "root/a/1.png")
    save(tmp_path / "root/b/1.png")
    corpus = ImageFolder(root=str(tmp_path / "root")).load(cache)
    assert (len(corpus.train), len(corpus.val)) == (1, 1)


RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)


def encode_as(image, kind):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "PPM"])
def test_a_ramp_of_16_bits_keeps_256_greys(kind):
    decoded = np.asarray(pixels.decode(encode_as(Image.fromarray(RAMP), kind)))
    assert (decoded == (RAMP >> 8)[..., None]).all()


@pytest.mark.parametrize("values", [RAMP, RAMP.astype(np.int32), RAMP.astype(np.float32)])
def test_values_of_an_unknown_range_are_refused(values):
    with pytest.raises(DataError, match=r"its values are of mode .*, whose range is unknown. Convert it to 8 bits"):
        pixels.decode(encode_as(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_inks_become_light(kind):
    image = Image.new("CMYK", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    greys = np.asarray(pixels.decode(encode_as(image, kind))).astype(int)
    assert np.abs(greys - [[[255], [0]]]).max() <= 4  # JPEG is not exact
