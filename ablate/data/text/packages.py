"""Text that every installation has: the Python sources of installed packages; each file is a document."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from ablate.config.base import Names
from ablate.config.bounds import MOST_ITEMS, MOST_LENGTH
from ablate.config.errors import DataError
from ablate.config.formatting import count_noun, join_words
from ablate.data.base import Corpus, DataConfig, Documents, EndOfText, data_kinds
from ablate.data.files import explain, remember
from ablate.data.text.bpe import check_bpe_name, load_or_train, parse_bpe_size
from ablate.data.text.layouts import DatasetBuilder
from ablate.data.text.sources import HashSplit, Piece, Source
from ablate.data.text.tokenizers import Tokenizer, check_end_of_text

SUFFIX = ".py"


@data_kinds.register
class Packages(Documents, EndOfText, DataConfig):
    """The Python sources of installed packages: tens of megabytes of code without a download.

    A file is a document. Whole files are held out, selected by their hash, so that no copy of a held-out file is in the
    training data. A file that is not UTF-8, empty or longer than `max_file_bytes` is left out and counted. The text
    depends on the installed versions; the description names them, and the fingerprint is computed from the files.
    """

    kind: Literal["packages"] = "packages"
    task: ClassVar[str] = "language_modeling"
    packages: Names = ("torch", "sympy")
    """Names of the packages, as shown by `pip list`."""
    tokenizer: str = "bytes"
    """As for data kind text: bytes, a tokenizer.json, a SentencePiece *.model, a repository on the hub, or bpe-N."""
    seq_len: int = Field(256, ge=1, le=MOST_LENGTH)
    """Tokens of one training example. A window has one token more, which is the target of the last token."""
    max_file_bytes: int = Field(1_000_000, ge=1, le=2**30)
    """Longer files, which are often generated, are left out."""
    train_tokens: int | None = Field(None, ge=1, le=MOST_ITEMS)
    """Number of tokens of the training files to use, up to the end of a file. None: all."""
    val_tokens: int | None = Field(None, ge=1, le=MOST_ITEMS)
    """Number of tokens of the held-out files to use. None: all."""

    @field_validator("packages")
    @classmethod
    def _check_packages(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        if not packages:
            raise ValueError("is empty; give the name of a package, such as torch")
        return packages

    @field_validator("tokenizer")
    @classmethod
    def _check_tokenizer(cls, name: str) -> str:
        check_bpe_name(name)
        return name

    def load(self, cache: Path) -> Corpus:
        whole = open_packages(self.packages, self.max_file_bytes, cache)
        train, val = (HashSplit(whole, held, self.val_fraction, self.split_seed) for held in (False, True))
        tokenizer = self.load_tokenizer(cache, train)
        check_end_of_text(tokenizer, self.end_of_text, self.tokenizer)
        builder = DatasetBuilder(tokenizer, self.seq_len, False, cache, self.mask_documents)
        val_tokens = builder.load_tokens(val, self.val_tokens)
        if val_tokens.count < (self.val_tokens or 0):
            raise DataError(
                f"data.val_tokens is {self.val_tokens:,}, and {val_tokens.count:,} tokens are held out "
                f"(val_fraction={self.val_fraction}): set a larger data.val_fraction, or more packages."
            )
        held = builder.build_all(val_tokens, "The validation set", self.val_tokens)
        train_set, amount = builder.build_train(train, self.train_tokens, self.tokenizer)
        return Corpus(
            train=train_set,
            val=held,
            fingerprint=whole.fingerprint,
            classes=tokenizer.vocab_size,
            shape=(self.seq_len,),
            bytes_per_token=builder.measure_bytes_per_token(held),
            description=f"packages: {whole.name}{whole.left_out}; {amount}, {builder.describe_sizes(train_set, held)}",
        )

    @property
    def wanted_val_samples(self) -> int | None:
        return None if self.val_tokens is None else max(1, self.val_tokens // (self.seq_len + 1))

    def load_tokenizer(self, cache: Path, train: Source | None = None) -> Tokenizer:
        """Return the tokenizer; for `bpe-N` it is trained on the training files. Raises DataError if it cannot be
        found."""
        if train is None and parse_bpe_size(self.tokenizer):
            whole = open_packages(self.packages, self.max_file_bytes, cache)
            train = HashSplit(whole, False, self.val_fraction, self.split_seed)
        return load_or_train(self.tokenizer, self.end_of_text, train, cache)


@dataclass(frozen=True)
class PackageSource(Source):
    """The sources of packages, one file after the other."""

    packages: tuple[str, ...]
    """Name and version of each."""
    paths: tuple[Path, ...]
    fingerprint: str
    left_out: str
    """The left-out files, as a clause; "" if there are none."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"the Python sources of {join_words(self.packages)}"

    @property
    def identity(self) -> str:  # type: ignore[override]
        return f"packages {self.fingerprint}"

    def read(self) -> Iterator[Piece]:
        for path in self.paths:
            content = _read(path)
            try:
                text = content.decode()
            except UnicodeDecodeError:
                raise DataError(f"{path} changed since this run began: it is no longer UTF-8.") from None
            yield Piece(text, len(content))


def open_packages(names: Sequence[str], most: int, cache: Path) -> PackageSource:
    """Return the sources of the packages `names`, without files of more than `most` bytes. Raises DataError for a
    package that is not installed or has no sources."""
    packages, files = [], []
    for name in dict.fromkeys(names):
        package = _find_package(name)
        own = _list_files(package)
        if not own:
            raise DataError(
                f"data.packages: {name} {package.version} has no {SUFFIX} files in its list of files: it is compiled, "
                "or installed in place (pip install --editable). Choose another package, or use data=text with its "
                "files."
            )
        packages.append(f"{package.metadata['Name']} {package.version}")
        files += [(f"{packages[-1]} {inner}", path) for inner, path in own]

    def examine() -> list[str]:
        digest, kept, odd, long, empty = hashlib.sha256(), [], 0, 0, 0
        for number, (inner, path) in enumerate(files):
            content = _read(path)
            if not content.strip():
                empty += 1
            elif len(content) > most:
                long += 1
            else:
                try:
                    content.decode()
                except UnicodeDecodeError:
                    odd += 1
                    continue
                kept.append(number)
                digest.update(json.dumps([inner, hashlib.sha256(content).hexdigest()]).encode())
        return [digest.hexdigest(), json.dumps([kept, odd, long, empty])]

    what = f"packages {most} {json.dumps([inner for inner, _ in files])}"
    fingerprint, noted = remember(what, [path for _, path in files], cache, examine)
    kept, odd, long, empty = json.loads(noted)
    reasons = {f"over {most:,} bytes": long, "not UTF-8": odd, "empty": empty}
    told = join_words(f"{count} {why}" for why, count in reasons.items() if count)
    left_out = f" (of {count_noun(len(files), 'file')} left out: {told})" if told else ""
    if not kept:
        raise DataError(f"data.packages: no file of {join_words(packages)} remains{left_out}.")
    return PackageSource(tuple(packages), tuple(files[i][1] for i in kept), fingerprint, left_out)


def _find_package(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        pass
    providers = metadata.packages_distributions().get(name, [])
    known = sorted({str(other.metadata["Name"]) for other in metadata.distributions() if other.metadata["Name"]})
    close = list(dict.fromkeys(providers)) or difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {join_words(close)}?" if close else f" Install it first: pip install {name}"
    raise DataError(f"data.packages: no package called {name} is installed here.{hint}")


def _list_files(package: metadata.Distribution) -> list[tuple[str, Path]]:
    """Return (name within the package, path) of each existing source file, sorted by name."""
    files = [file for file in package.files or () if file.suffix == SUFFIX and ".." not in file.parts]
    located = ((file.as_posix(), Path(str(file.locate()))) for file in sorted(files, key=lambda file: file.as_posix()))
    return [(inner, path) for inner, path in located if path.is_file()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error
