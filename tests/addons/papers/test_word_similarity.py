"""Word similarity and neighbours, against figures made by hand and by the plainest code."""

import json
import re
from itertools import combinations

import numpy as np
import pytest
import torch

from ablate.addons.papers.word_similarity import compute_overlap, compute_similarity, find_token, read_pairs
from ablate.cli import main
from ablate.config.errors import AblateError, DataError, shorten_value
from ablate.experiment.tree import Experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

SIMLEX = "word1\tword2\tPOS\tSimLex999\tconc(w1)\nold\tnew\tA\t1.58\t2.72\nsmart\tintelligent\tA\t9.2\t1.75\n"
COMBINED = "Word 1,Word 2,Human (mean)\nlove,sex,6.77\ntiger,tiger,10\n"
PART = "# comment\ncomputer\tkeyboard\t7.62\nJerusalem\tIsrael\t8.46\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SIMLEX, [("old", "new", 1.58), ("smart", "intelligent", 9.2)]),
        (COMBINED, [("love", "sex", 6.77), ("tiger", "tiger", 10.0)]),
        (PART, [("computer", "keyboard", 7.62), ("Jerusalem", "Israel", 8.46)]),
        ("a b 1\n\nc  d  2.5\n", [("a", "b", 1.0), ("c", "d", 2.5)]),
    ],
)
def test_the_original_formats_are_read(tmp_path, text, expected):
    (tmp_path / "pairs.txt").write_text(text)
    assert [(p.first, p.second, p.score) for p in read_pairs(tmp_path / "pairs.txt")] == expected


@pytest.mark.parametrize(("text", "said"), [("a\tb\t1\nc\td\n", "line 2"), ("a\tb\t1\nc\td\thigh\n", "line 2"),
                                            ("\n# x\n", "no word pairs")])  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_line(tmp_path, text, said):
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(DataError, match=said):
        read_pairs(tmp_path / "pairs.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_pairs(tmp_path / "nowhere.txt")


class Words:
    """A tokenizer of whole words, some of them with a space before them; letters are tokens of their own."""

    known = {" cat": 7, "cat": 8, "dog": 9}
    vocab_size, identity, end_of_text = 10, "words", None

    def encode(self, texts):
        return [np.array([self.known[t]] if t in self.known else [0] * len(t)) for t in texts]


@pytest.mark.parametrize(
    ("name", "said"), [("/", "Is a directory"), ("a" * 300, "File name too long"), ("a\0b", "embedded null byte")]
)
def test_a_path_that_is_no_file_is_told(name, said):
    with pytest.raises(DataError, match=f"^The word pairs {re.escape(shorten_value(name))} cannot be read: {said}$"):
        read_pairs(name)


def test_the_token_with_a_leading_space_is_preferred_and_a_word_of_several_has_none():
    tokens = [find_token(word, Words()) for word in ("cat", "dog", "horse")]
    assert tokens == [7, 9, None]


def test_spearmans_correlation_of_hand_made_ranks(tmp_path):
    """Cosines with the first vector are ordered 1, 2, 4, 3 by their angles, scores 1, 2, 3, 4: rho = 1 - 6 * 2 / 60."""
    angles = torch.tensor([0.0, 10.0, 20.0, 40.0, 30.0]).deg2rad()
    vectors = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1.0], [5.0], [0.1], [2.0], [3.0]])
    (tmp_path / "p").write_text("a b 9\na c 8\na d 7\na e 6\na unknown 1\n")
    pairs = read_pairs(tmp_path / "p")
    rho, used = compute_similarity(vectors, pairs, {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}.get)
    assert used == 4
    assert rho == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert compute_similarity(vectors, pairs, {}.get) == (None, 0)
    assert compute_similarity(vectors, pairs, {"a": 0, "b": 1}.get) == (None, 1)


def test_shared_neighbours_are_those_of_the_plainest_code_whatever_the_block():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(57, 8, generator=generator)
    second = first + 0.5 * torch.randn(57, 8, generator=generator)

    def nearest(x, i):
        cosine = [float(x[i] @ x[j] / x[i].norm() / x[j].norm()) for j in range(57)]
        return set(sorted((j for j in range(57) if j != i), key=lambda j: -cosine[j])[:5])

    expected = sum(len(nearest(first, i) & nearest(second, i)) for i in range(57)) / (5 * 57)
    assert 0.1 < expected < 0.9
    for block in (1, 10, 57, 100):
        assert compute_overlap(first, second, 5, block) == pytest.approx(expected)
    assert compute_overlap(first, 3 * first, 5) == 1
    with pytest.raises(AblateError, match="vocabularies differ"):
        compute_overlap(first, second[:50], 5)


def test_the_command_compares_each_two_models_with_a_tokenizer_of_their_own(store, tmp_path, capsys):
    text = "the cat sat on the mat and the dog saw a cat with the dog in the old house near the new house " * 40
    for name in ("text.txt", "val.txt"):
        (tmp_path / name).write_text(text + name)
    (tmp_path / "pairs.txt").write_text("cat\tdog\t7\nthe\tcat\t3\nthe\tdog\t2\nthe\tquark\t1\n")
    tree = {
        "model": {"hidden": 16, "layers": 1, "heads": 2, "mlp": 32},
        "data": {
            "kind": "text",
            "files": str(tmp_path / "text.txt"),
            "val_files": str(tmp_path / "val.txt"),
            "max_overlap": 1,
            "tokenizer": "bpe-290",
            "seq_len": 16,
        },
        "trainer": {"max_steps": 2, "batch_size": 2},
    }
    runs = [train(Experiment.from_mapping(tree, {"seed": seed})).run_id for seed in (0, 1, 2)]
    other = train(Experiment.from_mapping(tree, {"data.tokenizer": "bpe-280"})).run_id
    words = [
        "diagnose",
        *runs,
        other,
        "--what",
        "word_similarity",
        "--pairs",
        str(tmp_path / "pairs.txt"),
        "--neighbours",
        "20",
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(s["model"], s["layer"], s["used"], s["dropped"]) for s in found["similarities"]} == {
        (run, layer, 3, 1) for run in (*runs, other) for layer in ("embedding", "head")
    }
    shared = {(*o["models"], o["layer"]): o["shared"] for o in found["overlaps"]}
    assert {*shared} == {(*pair, layer) for pair in combinations([*runs, other], 2) for layer in ("embedding", "head")}
    head = {run: open_trained(run).state["lm_head.weight"] for run in runs}
    for pair in combinations(runs, 2):
        assert shared[(*pair, "head")] == pytest.approx(compute_overlap(*map(head.get, pair), 20, block=7))
    assert [value for key, value in shared.items() if other in key] == [None] * 6  # its tokens are others
    assert main(words) == 0
    table = capsys.readouterr().out
    assert "Spearman" in table
    assert table.count(" %") == 6
    assert "-: the tokenizers differ" in table


@pytest.mark.parametrize(
    ("name", "told"), [("llama", "In no pair of"), ("vit", "word similarity needs a language model")]
)
def test_bytes_and_images_have_no_words(trained, tmp_path, capsys, name, told):
    (tmp_path / "pairs.txt").write_text("cat\tdog\t7\n")
    words = ["diagnose", trained(name).run_id, "--what", "word_similarity", "--pairs", str(tmp_path / "pairs.txt")]
    assert main(words) == 2
    assert told in capsys.readouterr().err
