"""Word similarity of the embedding and of the head of language models: the correlation (Spearman's) of cosines of word
vectors with people's scores, and the share of nearest neighbours that two models have in common. Rules of Lee et al."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import AblateError, DataError
from ablate.config.formatting import format_number
from ablate.config.lazy import postpone_imports, torch
from ablate.data import Tokenizer
from ablate.data.files import explain, read_stamps
from ablate.diagnostics.kinds import Compared, Comparison, Table, comparisons

if TYPE_CHECKING:
    from torch import Tensor

with postpone_imports():
    from torch.nn import functional as F

    from ablate.training import trained

LAYERS = {"embedding": "embed_tokens.weight", "head": "lm_head.weight"}
"""Layer -> its matrix, one row for each token."""
BLOCK = 1024
"""Tokens whose cosines with all others are in memory at once: 200 MB for 50,000 tokens."""
_SCORES = ("SimLex999", "Human (mean)")  # the column's names in the original files


@dataclass(frozen=True)
class Pair:
    """Two words and people's score of their similarity."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class Similarity:
    """One layer of one model on one file."""

    model: str
    layer: str
    pairs: str
    """The file."""
    correlation: float | None
    """Spearman's correlation of cosines and scores; None if fewer than three pairs are used, or all values are
    equal."""
    used: int
    """Number of pairs with both words in the vocabulary as single tokens."""
    dropped: int
    """Number of the other pairs."""


@dataclass(frozen=True)
class Overlap:
    """Two models' nearest neighbours by cosine."""

    models: tuple[str, str]
    layer: str
    neighbours: int
    """Number of neighbours of each token to compare."""
    shared: float | None
    """The mean share of neighbours that both models have; None if their tokenizers differ, or the vocabulary has no
    more tokens than neighbours."""


def read_pairs(file: str | Path) -> list[Pair]:
    """Return the pairs of a file in one of the original formats (SimLex-999.txt, WordSim-353's combined.csv and its
    parts for similarity and relatedness), or any table of word, word, score, separated by tabs, commas or blanks.

    Raises DataError, which names file and line.
    """
    path = Path(file).expanduser()
    if os.path.exists(path) and not os.path.isdir(path):
        read_stamps([path])  # a pipe is refused
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a NUL character
        raise DataError(f"The word pairs {path} cannot be read: {explain(error)}") from None
    kept = [(i, line) for i, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not kept:
        raise DataError(f"{path} has no word pairs.")
    mark = next((mark for mark in "\t,;" if mark in kept[0][1]), None)
    rows = [(i, line.split() if mark is None else next(csv.reader([line], delimiter=mark))) for i, line in kept]
    column = 2
    if len(rows[0][1]) > 2 and not _is_number(rows[0][1][2]):  # a header
        names = [name.strip() for name in rows.pop(0)[1]]
        column = next((names.index(name) for name in _SCORES if name in names), 2)
    pairs = []
    for i, row in rows:
        if len(row) <= column or not _is_number(row[column]):
            raise DataError(f"{path}, line {i}: expected two words and a score, found {' '.join(row)!r}")
        pairs.append(Pair(row[0].strip(), row[1].strip(), float(row[column])))
    return pairs


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def find_token(word: str, tokenizer: Tokenizer) -> int | None:
    """Return the token of a word, with a leading space if there is such a token, otherwise without; None if the word
    has several tokens."""
    spaced, plain = tokenizer.encode([f" {word}", word])
    return next((int(ids[0]) for ids in (spaced, plain) if len(ids) == 1), None)


def compute_similarity(
    vectors: Tensor, pairs: Sequence[Pair], tokens: Callable[[str], int | None]
) -> tuple[float | None, int]:
    """Return (Spearman's correlation of cosines and scores, pairs used). Pairs with a word for which `tokens` returns
    None are left out.

    Args:
        vectors: [vocabulary, d].
        pairs: with their scores.
        tokens: word -> row.
    """
    from scipy import stats

    rows = [(tokens(pair.first), tokens(pair.second), pair.score) for pair in pairs]
    used = [(first, second, score) for first, second, score in rows if first is not None and second is not None]
    if not used:
        return None, 0
    left, right, scores = zip(*used, strict=True)
    cosines = F.cosine_similarity(vectors[list(left)].double(), vectors[list(right)].double(), dim=-1)
    if len(used) < 3 or len(set(scores)) == 1 or bool((cosines == cosines[0]).all()):
        return None, len(used)
    return float(stats.spearmanr(cosines.numpy(), scores).statistic), len(used)


def compute_overlap(first: Tensor, second: Tensor, neighbours: int = 100, block: int = BLOCK) -> float:
    """Return the share of the `neighbours` tokens nearest by cosine that two models have in common, averaged over
    tokens. A token is not its own neighbour. Cosines are computed for `block` tokens at a time.

    Args:
        first, second: [vocabulary, d1] and [vocabulary, d2], of the same vocabulary.
    """
    if len(first) != len(second):
        raise AblateError(f"the vocabularies differ: {len(first):,} and {len(second):,} tokens")
    if len(first) <= neighbours:
        raise AblateError(f"{neighbours} neighbours need more than {neighbours} tokens, but there are {len(first)}")
    shared = 0
    for own, other in zip(
        _find_nearest(first, neighbours, block), _find_nearest(second, neighbours, block), strict=True
    ):
        mask = torch.zeros(len(own), len(first), dtype=torch.bool)
        mask.scatter_(1, own, value=True)
        shared += int(mask.gather(1, other).sum())
    return shared / (neighbours * len(first))


def _find_nearest(vectors: Tensor, neighbours: int, block: int) -> Iterator[Tensor]:
    """Yield the rows nearest to each row, [rows of a block, neighbours], block by block."""
    units = F.normalize(vectors.float(), dim=-1)
    for start in range(0, len(units), block):
        cosines = units[start : start + block] @ units.T
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -torch.inf
        yield cosines.topk(neighbours, dim=1).indices


# ---------------------------------------------------------------------------------------------------- models


@comparisons.register
class WordSimilarity(Comparison):
    """The correlation of cosines of word vectors with people's scores, and the nearest neighbours that each two models
    share, of embedding and head."""

    name = "word_similarity"
    options = ("pairs", "neighbours")

    def compare(self, models: Mapping[str, str], options: Mapping[str, Any]) -> Compared:
        if not options["pairs"]:
            formats = "SimLex-999 and WordSim-353 in their original formats, or word, word, score"
            raise AblateError(f"--what {self.name} needs --pairs FILE ...: {formats}.")
        neighbours = options["neighbours"] or 100
        similarities, overlaps = measure_word_similarity(list(models), options["pairs"], neighbours)
        rows = [
            [models[s.model], s.layer, s.pairs, format_number(s.correlation), str(s.used), str(s.dropped)]
            for s in similarities
        ]
        columns, numbers = ["model", "layer", "pairs", "Spearman", "used", "dropped"], ["Spearman", "used", "dropped"]
        note = "dropped: pairs with a word that is not one token of the model's tokenizer"
        tables = [Table(columns, rows, numbers, note)]
        if overlaps:
            rows = [
                [*map(models.__getitem__, o.models), o.layer, "-" if o.shared is None else f"{100 * o.shared:.1f} %"]
                for o in overlaps
            ]
            unknown = any(o.shared is None for o in overlaps)
            note = (
                f"-: the tokenizers differ, or the vocabulary has no more than {neighbours} tokens" if unknown else ""
            )
            tables.append(Table(["model", "and", "layer", f"of {neighbours} neighbours shared"], rows, note=note))
        content = {"similarities": [asdict(s) for s in similarities], "overlaps": [asdict(o) for o in overlaps]}
        return Compared(content, tables)


def measure_word_similarity(
    names: Sequence[str], files: Sequence[str | Path], neighbours: int = 100
) -> tuple[list[Similarity], list[Overlap]]:
    """Return the similarities of each model on each file, and the neighbours that each two models share, both for
    embedding and head. A model is a run's id, a checkpoint or an exported folder.

    Raises AblateError if a model is not a language model, or no word of a file is a token of its tokenizer.
    """
    tables = {str(file): read_pairs(file) for file in files}
    sources = {name: trained.open_trained(name) for name in names}
    for name, source in sources.items():
        if any(weight not in source.state for weight in LAYERS.values()):
            raise AblateError(f"{name} is a {source.experiment.model.kind}: word similarity needs a language model.")
    tokenizers = {name: source.tokenizer() for name, source in sources.items()}
    similarities: list[Similarity] = []
    for name, source in sources.items():
        similarities += _measure_model(name, source, tokenizers[name], tables)
    overlaps = []
    for pair in combinations(sources, 2):
        same = len({tokenizers[name].identity for name in pair}) == 1
        for layer, weight in LAYERS.items():
            one, two = (sources[name].state[weight] for name in pair)
            comparable = same and len(one) == len(two) > neighbours
            shared = compute_overlap(one, two, neighbours) if comparable else None
            overlaps.append(Overlap(pair, layer, neighbours, shared))
    return similarities, overlaps


def _measure_model(
    name: str, source: trained.TrainedModel, tokenizer: Tokenizer, tables: dict[str, list[Pair]]
) -> list[Similarity]:
    known: dict[str, int | None] = {}

    def tokens(word: str) -> int | None:
        if word not in known:
            known[word] = find_token(word, tokenizer)
        return known[word]

    similarities = []
    for file, pairs in tables.items():
        for layer, weight in LAYERS.items():
            correlation, used = compute_similarity(source.state[weight], pairs, tokens)
            if not used:
                raise AblateError(
                    f"In no pair of {file} both words are single tokens of {name}'s tokenizer "
                    f"({getattr(source.experiment.data, 'tokenizer', 'bytes')}). Use a model with a tokenizer of words "
                    "or subwords."
                )
            similarities.append(Similarity(name, layer, Path(file).name, correlation, used, len(pairs) - used))
    return similarities
