"""Tokens in memory-mapped files: built once, checked at every start, rebuilt when damaged."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.data.cache import hold_lock, write_whole
from ablate.data.files import expand_path, hash_file
from ablate.data.text.sources import Source
from ablate.data.text.token_writer import Counts, tokenize
from ablate.data.text.tokenizers import Tokenizer

LAYOUT = 2
"""Incremented whenever the same text and tokenizer would give different files."""


@dataclass(frozen=True)
class Tokens:
    """A stream of tokens: concatenated documents, each ending with the tokenizer's end of text, or rows."""

    path: Path
    """A .npy file of unsigned integers [count]."""
    count: int
    documents: int
    ends_path: Path
    """A .npy file, int64 [pieces, 2]: the tokens and UTF-8 bytes up to the end of each piece, or of each row."""

    def read_ends(self) -> NDArray[np.int64]:
        """Return the content of `ends_path`, memory-mapped."""
        return _map_array(self.ends_path, self.count)

    def count_bytes(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the number of UTF-8 bytes before the tokens at `positions`, interpolated within a document; an end of
        text counts as one."""
        ends = self.read_ends()
        return np.interp(positions, np.append(0, ends[:, 0]), np.append(0, ends[:, 1]))


def choose_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest unsigned integer type for all ids, in little-endian order."""
    return np.dtype("u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4")


def load_tokens(
    cache: Path, source: Source, tokenizer: Tokenizer, row: int | None = None, limit: int | None = None
) -> Tokens:
    """Return the tokens of a source, tokenised unless `cache` contains them already. Several processes may call this at
    once: one builds, the others wait. The output of a killed process is kept, and the next process resumes from it.

    Args:
        row: the maximum tokens of a document, which is then a row; None: all tokens, documents concatenated.
        limit: number of tokens after which to stop, at the end of a document.
    """
    facts = [LAYOUT, source.identity, tokenizer.identity, row, limit]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    path = expand_path(cache) / "tokens" / f"{key}.npy"
    dtype = choose_dtype(tokenizer.vocab_size)
    tokens = _open_tokens(path, dtype)
    if tokens is not None:
        return tokens
    with hold_lock(path):
        tokens = _open_tokens(path, dtype, thorough=True)
        if tokens is None:
            _write_note(path, tokenize(path, dtype, source, tokenizer, row, limit))
            tokens = _open_tokens(path, dtype)
    if tokens is None:
        raise RuntimeError(f"{path} does not contain the data that has just been written to it")
    return tokens


def _write_note(path: Path, counts: Counts) -> None:
    """Write the note that completes the tokenised files; files without it are not used."""
    files = {
        file.suffix: {"sha256": hash_file(file), "mtime_ns": file.stat().st_mtime_ns}
        for file in (path, path.with_suffix(".ends"))
    }
    facts = {"count": counts.tokens, "documents": counts.documents, "ends": counts.ends, "files": files}
    write_whole(path.with_suffix(".json"), json.dumps(facts).encode())


def _open_tokens(path: Path, dtype: np.dtype[Any], thorough: bool = False) -> Tokens | None:
    """Return the tokens at `path`, or None for missing or damaged files.

    The content is compared only if a file was modified since the last comparison, and then only if `thorough`.
    """
    note = path.with_suffix(".json")
    try:
        facts = json.loads(note.read_bytes())
        tokens = Tokens(path, int(facts["count"]), int(facts["documents"]), path.with_suffix(".ends"))
        stream, ends = _map_array(path, tokens.count), tokens.read_ends()
        if (stream.shape, stream.dtype, ends.shape) != ((tokens.count,), dtype, (facts["ends"], 2)):
            return None
        touched = False
        for file in (path, tokens.ends_path):
            known = facts["files"][file.suffix]
            if (mtime := file.stat().st_mtime_ns) != known["mtime_ns"]:
                if not thorough or hash_file(file) != known["sha256"]:
                    return None
                known["mtime_ns"], touched = mtime, True
        if touched:
            write_whole(note, json.dumps(facts).encode())
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError):
        return None
    return tokens


def _map_array(path: Path, count: int) -> NDArray[Any]:
    return np.asarray(np.load(path, mmap_mode="r" if count else None))  # an empty file cannot be mapped
