"""The sources of installed packages: what is read and what is left out, what is held out, and errors."""

import base64
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from ablate.config.errors import ConfigError, DataError
from ablate.data.text.packages import Packages, open_packages
from ablate.experiment.tree import Experiment

FILES = {f"pack/module{i}.py": f"def f{i}():\n    return {i} * 'ab'\n".encode() * 20 for i in range(60)}
ODD = {
    "pack/latin.py": "# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"),
    "pack/empty.py": b"\n",
    "pack/long.py": b"x = 1\n" * 2000,
    "pack/data.txt": b"no source",
}


def install(folder, name="pack", version="1.0", files=None):
    """Write a package as pip leaves it: its files, and what it says of them."""
    files = files if files is not None else {**FILES, **ODD}
    for inner, content in files.items():
        (folder / inner).parent.mkdir(parents=True, exist_ok=True)
        (folder / inner).write_bytes(content)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    hashes = {inner: base64.urlsafe_b64encode(hashlib.sha256(c).digest()).decode() for inner, c in files.items()}
    (info / "RECORD").write_text("".join(f"{i},sha256={h},{len(files[i])}\n" for i, h in hashes.items()))
    return folder


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(install(folder)), *sys.path])
    return folder


def config(**more):
    return Packages(packages=("pack",), seq_len=16, val_fraction=0.2, max_file_bytes=5000, **more)


def read(dataset):
    """The text of all windows: the inputs of each, and its last target."""
    pairs = (dataset[i] for i in range(len(dataset)))
    return b"".join(bytes(np.asarray([*x, y[-1]], np.uint8)) for x, y in pairs)


def test_every_source_is_a_document_and_others_are_counted(site, tmp_path):
    corpus = config().load(tmp_path / "cache")
    assert "pack 1.0 (of 63 files left out: 1 over 5,000 bytes, 1 not UTF-8 and 1 empty)" in corpus.description
    assert (corpus.classes, corpus.shape, corpus.bytes_per_token) == (256, (16,), 1.0)
    text = read(corpus.train) + read(corpus.val)
    assert b"no source" not in text
    assert b"coding" not in text
    assert b"x = 1" not in text
    missing = [name for name, content in FILES.items() if content.split(b"(")[0] + b"(" not in text]
    assert len(missing) <= 2  # windows cut what is left at the ends


def test_whole_files_are_held_out_and_copies_with_them(site, tmp_path):
    twins = {"pack/copy_of_7.py": FILES["pack/module7.py"], **FILES}
    install(site, files=twins)
    corpus = config().load(tmp_path / "cache")
    sides = read(corpus.train), read(corpus.val)
    on = {name: [content[:8] in side for side in sides] for name, content in FILES.items()}
    assert all(sum(found) <= 1 for found in on.values())
    assert 4 <= sum(found[1] for found in on.values()) <= 22  # of 60, each with a probability of a fifth
    other = config(split_seed=1).load(tmp_path / "cache")
    assert read(other.val) != sides[1]
    assert other.fingerprint == corpus.fingerprint


def test_the_fingerprint_is_that_of_packages_versions_and_files(site, tmp_path, monkeypatch):
    before = open_packages(["pack"], 5000, tmp_path / "cache")
    assert open_packages(["pack", "pack"], 5000, tmp_path / "other").fingerprint == before.fingerprint
    moved = tmp_path / "moved"
    moved.mkdir()
    monkeypatch.setattr(sys, "path", [str(install(moved)), *sys.path])
    assert open_packages(["pack"], 5000, tmp_path / "cache").fingerprint == before.fingerprint
    install(moved, files={**FILES, "pack/module3.py": b"other = 1\n"})
    assert open_packages(["pack"], 5000, tmp_path / "cache").fingerprint != before.fingerprint
    newer = tmp_path / "newer"
    newer.mkdir()
    monkeypatch.setattr(sys, "path", [str(install(newer, version="1.1")), *sys.path])
    assert open_packages(["pack"], 5000, tmp_path / "cache").fingerprint != before.fingerprint


def test_a_tokenizer_and_a_limit_are_those_of_text(site, tmp_path):
    corpus = config(tokenizer="bpe-300", val_tokens=200, train_tokens=1000).load(tmp_path)
    assert corpus.classes == 300
    assert len(corpus.val) == 200 // 17
    with pytest.raises(DataError, match=r"data.val_tokens is 9,999,999, and [\d,]+ tokens are held out"):
        config(val_tokens=9_999_999).load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pakc", r"no package called pakc is installed here. Did you mean pack\?"),
        ("sklearn", r"Did you mean scikit-learn\?"),
        ("no-such-thing-9", "Install it first: pip install no-such-thing-9"),
        ("hollow", "hollow 1.0 has no .py files in its list of files"),
    ],
)
def test_a_package_that_is_not_there_is_named_with_a_way_on(site, tmp_path, name, message):
    install(site, "hollow", files={"hollow.so": b""})
    with pytest.raises(DataError, match=message):
        Packages(packages=(name,)).load(tmp_path)


def test_settings_that_make_no_sense_are_refused():
    for settings, message in (
        ({"packages": []}, ("give the name of a package")),
        ({"tokenizer": "bpe-3"}, "at least 257"),
    ):
        with pytest.raises(ConfigError, match=message):
            Experiment.from_mapping({"data": {"kind": "packages", **settings}})


def test_a_file_that_changed_is_told(site, tmp_path):
    source = open_packages(["pack"], 5000, tmp_path)
    Path(source.paths[3]).write_bytes(b"\xff")
    with pytest.raises(DataError, match="changed since this run began"):
        list(source.read())
