"""Tokenizers by name, and what is said where there is none."""

import io
import json
import re

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors
import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch

from ablate.config.errors import DataError
from ablate.data import Instructions, Preferences, Text
from ablate.data.text.tokenizers import keep_tokenizer, load_tokenizer

SENTENCES = ["the cat sat on the mat", "a dog and a cat", "the end of the text", "so it goes on and on"] * 5


def word_tokenizer(words=("the", "cat", "sat"), end="</s>"):
    vocabulary = {word: index for index, word in enumerate(["[UNK]", *words, *([end] if end else [])])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tokenizer


def test_bytes():
    tokenizer = load_tokenizer("bytes")
    assert [ids.tolist() for ids in tokenizer.encode(["aä", ""])] == [[97, 0xC3, 0xA4], []]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (256, 0)


def test_tokenizer_json(tmp_path):
    path = tmp_path / "tokenizer.json"
    word_tokenizer().save(str(path))
    tokenizer = load_tokenizer(str(path))
    assert [ids.tolist() for ids in tokenizer.encode(["the cat", "", "sat dog"])] == [[1, 2], [], [3, 0]]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (5, 4)
    assert load_tokenizer(str(tmp_path)).identity == tokenizer.identity
    word_tokenizer(["the", "sat", "cat"]).save(str(path))
    assert load_tokenizer(str(path)).identity != tokenizer.identity


def test_paths_are_relative_to_the_current_directory_or_to_home(tmp_path, monkeypatch):
    word_tokenizer().save(str(tmp_path / "words.json"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_tokenizer("words.json").vocab_size == load_tokenizer("~/words.json").vocab_size == 5


@pytest.mark.parametrize(("end", "found"), [("<|endoftext|>", 2), ("[SEP]", 2), (None, None), ("stop", None)])
def test_end_of_text(tmp_path, end, found):
    word_tokenizer(["the"], end).save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).end_of_text == found


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tokenizer_config.json", {"eos_token": "stop"}),
        ("tokenizer_config.json", {"eos_token": {"content": "stop", "lstrip": False}}),
        ("special_tokens_map.json", {"eos_token": "stop"}),
    ],
)
def test_the_end_of_text_is_read_from_the_files_beside(tmp_path, name, settings):
    word_tokenizer(["the", "</s>"], "stop").save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).end_of_text == 2  # what is guessed without them
    (tmp_path / name).write_text(json.dumps(settings))
    found = load_tokenizer(str(tmp_path))
    assert found.end_of_text == 3
    assert load_tokenizer(str(tmp_path), "the").end_of_text == 1  # a setting is above the files
    nothing = load_tokenizer(str(tmp_path), "none")
    assert nothing.end_of_text is None
    assert len({found.identity, nothing.identity, load_tokenizer(str(tmp_path), "the").identity}) == 3


def test_files_beside_that_name_no_token_or_a_missing_one(tmp_path):
    word_tokenizer(["the"], "</s>").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": null}')
    assert load_tokenizer(str(tmp_path)).end_of_text == 2
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    with pytest.raises(
        DataError, match=r"has no token '<\|im_end\|>', which is to end a document. Set data.end_of_text"
    ):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config.json beside it, which names its end of text, is damaged"):
        load_tokenizer(str(tmp_path))


def test_of_several_known_tokens_the_special_one_ends_a_text(tmp_path):
    tokenizer = word_tokenizer(["the", "</s>", "<eos>"], None)  # Gemma has tags of HTML as words
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).end_of_text is None
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).end_of_text == 3


def test_the_end_of_text_of_bytes_and_of_sentencepiece(sentencepiece_model, tmp_path):
    assert load_tokenizer("bytes", "none").end_of_text is None
    with pytest.raises(DataError, match=r"data.end_of_text is 'stop', and bytes end a document with a zero byte"):
        load_tokenizer("bytes", "stop")
    library = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    piece = library.id_to_piece(9)
    assert load_tokenizer(str(sentencepiece_model), piece).end_of_text == 9
    assert load_tokenizer(str(sentencepiece_model), "none").end_of_text is None
    with pytest.raises(DataError, match=r"no token 'nowhere', .* \(its special tokens: <s>, </s>\)"):
        load_tokenizer(str(sentencepiece_model), "nowhere")
    (tmp_path / "small.model").write_bytes(sentencepiece_model.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": piece}))
    assert load_tokenizer(str(tmp_path / "small.model")).end_of_text == 9


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        ({"type": "WordLevel", "vocab": {"the": 0, "cat": 1, "</s>": 2, "[UNK]": 3}, "unk_token": "[UNK]"}, "[UNK]"),
        (
            {"type": "WordPiece", "vocab": {"the": 0, "cat": 1, "</s>": 2, "[UNK]": 3}, "unk_token": "[UNK]",
             "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
            "[UNK]",
        ),
        ({"type": "Unigram", "vocab": [["the", -1], ["cat", -1], ["</s>", 0], ["<unk>", 0]], "unk_id": 3}, "<unk>"),
        (
            {"type": "BPE", "vocab": {"the": 0, "cat": 1, "</s>": 2, "<unk>": 3}, "merges": [], "unk_token": "<unk>"},
            "<unk>",
        ),
    ],
    ids=["WordLevel", "WordPiece", "Unigram", "BPE"],
)  # fmt: skip
def test_an_unknown_token_with_the_last_id_is_kept(tmp_path, model, unknown):
    added = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for number, token in ((2, "</s>"), (3, unknown), (4, "<pad>"))
    ]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (4, 2)
    assert set(np.concatenate(tokenizer.encode(["é"])).tolist()) == {3}


def test_a_special_token_that_merges_make_is_kept(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2, "ab": 3}, "merges": ["a b"]}
    added = [{"id": 3, "content": "ab", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True}]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert [ids.tolist() for ids in tokenizer.encode(["ab"])] == [[3]]


@pytest.mark.parametrize("settings", [{}, {"layout": "documents"}])
def test_documents_without_a_known_end_ask_for_a_choice(tmp_path, settings):
    words = ["the", "cat", "sat"]
    word_tokenizer(words, "stop").save(str(tmp_path / "tokenizer.json"))
    rows = "".join(json.dumps({"text": " ".join(words * (n + 1))}) + "\n" for n in range(60))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "one.txt").write_text("the cat sat " * 99)

    def load(file="rows.jsonl", **more):
        fields = {"tokenizer": str(tmp_path), "seq_len": 8, "val_fraction": 0.2, **settings, **more}
        return Text(files=str(tmp_path / file), **fields).load(tmp_path / "cache")

    with pytest.raises(DataError, match=r"unknown which token .*tokenizer_config.json.* Set data.end_of_text .* none"):
        load()
    with pytest.raises(DataError, match="unknown which token"):
        load("one.txt", val_sets={"more": {"files": str(tmp_path / "rows.jsonl")}})
    load(end_of_text="none")
    batch = next(iter(load(end_of_text="stop").train.batches(400, 0)))
    assert 4 in torch.cat([part.flatten() for part in batch])
    if settings.get("layout") != "documents":
        load("one.txt")  # a single one needs no end


@pytest.mark.parametrize("kind", [Instructions, Preferences])
def test_answers_without_a_known_end_ask_for_a_choice(tmp_path, kind):
    word_tokenizer(["the", "cat"], "stop").save(str(tmp_path / "tokenizer.json"))
    row = {"instruction": "the", "output": "cat", "prompt": "the", "chosen": "cat", "rejected": "the"}
    (tmp_path / "rows.json").write_text(json.dumps([row, {**row, "instruction": "cat", "prompt": "cat"}]))
    fields = {"files": str(tmp_path / "rows.json"), "tokenizer": str(tmp_path), "template": "plain"}
    with pytest.raises(DataError, match="unknown which token"):
        kind(**fields).load(tmp_path / "cache")
    corpus = kind(**fields, end_of_text="stop").load(tmp_path / "cache")
    assert 3 in corpus.train.examples.tokens


def test_limits_and_special_tokens_of_the_file_are_left_out(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 4)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (ids,) = load_tokenizer(str(tmp_path / "tokenizer.json")).encode(["the cat sat the"])
    assert ids.tolist() == [1, 2, 3, 1]


def test_vocabulary_with_holes(tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "cat": 700}, unk_token="the"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).vocab_size == 701


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=24, minloglevel=2, num_threads=1
    )
    path = tmp_path_factory.mktemp("sentencepiece") / "small.model"
    path.write_bytes(model.getvalue())
    return path


def test_sentencepiece(sentencepiece_model, tmp_path):
    tokenizer = load_tokenizer(str(sentencepiece_model))
    library = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (24, library.eos_id())
    got = tokenizer.encode([SENTENCES[0], ""])
    assert np.array_equal(got[0], library.encode(SENTENCES[0]))
    assert len(got[1]) == 0
    versioned = tmp_path / "tokenizer.model.v1"
    versioned.write_bytes(sentencepiece_model.read_bytes())
    assert load_tokenizer(str(versioned)).identity == tokenizer.identity


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_damaged(tmp_path, name):
    path = tmp_path / name
    path.write_text("{}")
    with pytest.raises(DataError, match=f"{name} cannot be read: "):
        load_tokenizer(str(path))


WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "[UNK]"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], 'expected {"model": {"type"'),
        (None, "expected "),
        ({"model": {}}, "expected "),
        ({"model": {**WORDS, "vocab": "abc"}}, "expected "),
        ({"model": WORDS, "added_tokens": [{"id": 3}]}, "expected "),
        ({"model": {"type": "Unigram", "vocab": [1, 2]}}, "expected "),
        ({"model": {**WORDS, "vocab": {}}}, "its vocabulary is empty"),
        (
            {"model": {**WORDS, "vocab": {"a": 0, "b": 4_000_000_000}}},
            "the token 'b' has the id 4000000000. Accepted: whole numbers from 0 to 9,999,999",
        ),
        ({"model": {**WORDS, "vocab": {"a": -1}}}, "the token 'a' has the id -1"),
        ({"model": {**WORDS, "vocab": {"a": "x"}}}, "the token 'a' has the id 'x'"),
        ({"model": WORDS, "added_tokens": [{"id": 4_000_000_000, "content": "x", "special": False}]}, "the token 'x'"),
    ],
)
def test_misshapen(tmp_path, content, text):
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"The tokenizer /.*/tokenizer.json cannot be read: {re.escape(text)}"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    "model",
    [
        WORDS,
        {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]], "unk_id": None},
        {**WORDS, "type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    ],
    ids=lambda model: model["type"],
)
def test_a_word_without_a_token_and_without_the_unknown_one(tmp_path, model):
    content = {"version": "1.0", "added_tokens": [], "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(str(tmp_path))
    assert [ids.tolist() for ids in tokenizer.encode(["a", "b"])] == [[0], [1]]
    with pytest.raises(
        DataError, match=r"The tokenizer /.*tokenizer.json cannot encode the text: .*unknown token must"
    ):
        tokenizer.encode(["c"])


def test_an_empty_sentencepiece_model(tmp_path):
    (tmp_path / "spiece.model").touch()
    with pytest.raises(DataError, match=r"The SentencePiece model /.*/spiece.model cannot be read: it is empty"):
        load_tokenizer(str(tmp_path / "spiece.model"))


def test_missing(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(DataError, match=r"no tokenizer /.*/tokeniser.json. Did you mean tokenizer.json\?.*Accepted"):
        load_tokenizer(str(tmp_path / "tokeniser.json"))
    with pytest.raises(DataError, match=r"The folder .*/nowhere does not exist either"):
        load_tokenizer(str(tmp_path / "nowhere/spiece.model"))


@pytest.mark.parametrize("name", ["./" + "a" * 300 + ".json", "./a\0b.json", "s3://bucket/tokenizer.json", "a" * 300])
def test_a_name_that_can_be_none(name):
    with pytest.raises(DataError, match=r"There is no .*Accepted: \"bytes\""):
        load_tokenizer(name)


def test_something_else(tmp_path):
    (tmp_path / "vocab.txt").touch()
    with pytest.raises(DataError, match=r"vocab.txt is not a readable tokenizer. Accepted"):
        load_tokenizer(str(tmp_path / "vocab.txt"))
    with pytest.raises(DataError, match=r"has no tokenizer.json"):
        load_tokenizer(str(tmp_path))


def test_hub_without_network(monkeypatch, tmp_path):
    # The library reads the variable when it is imported, and by then that has happened.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no local file 'nobody/nothing'.*could not be reached.*local tokenizer.json"):
        load_tokenizer("nobody/nothing")


def test_missing_library(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    (tmp_path / "a.model").touch()
    with pytest.raises(DataError, match="pip install sentencepiece"):
        load_tokenizer(str(tmp_path / "a.model"))


def unigram_with_sentinels():
    """As the tokenizer.json of t5-base: the sentinels are added tokens and stand in the vocabulary too."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁the", -3.0), ("▁cat", -4.0)]
    pieces += [(letter, -9.0) for letter in "<>_adetrix0123catsh"]
    sentinels = [f"<extra_id_{number}>" for number in (2, 1, 0)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([*pieces, *((s, 0.0) for s in sentinels)], unk_id=2))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *sentinels])
    return tokenizer, len(pieces)


def test_sentinels_are_not_counted_and_never_come_out(tmp_path):
    tokenizer, size = unigram_with_sentinels()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("the <extra_id_1> cat").ids[1:-1] != []
    assert max(tokenizer.encode("the <extra_id_1> cat").ids) >= size
    loaded = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert (loaded.vocab_size, loaded.end_of_text) == (size, 1)
    plain, odd = loaded.encode(["the cat", "the <extra_id_1> cat"])
    assert plain.tolist() == [4, 5]
    assert len(odd) > 8
    assert odd.max() < size


def test_a_special_token_that_is_written_out_is_text(tmp_path):
    tokenizer = word_tokenizer(["the", "cat", "<", "/", "s", ">"])
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(str(tmp_path / "tokenizer.json"))
    (ids,) = loaded.encode(["the </s> cat"])
    assert loaded.end_of_text not in ids
    assert loaded.vocab_size == loaded.end_of_text + 1


def test_what_the_hub_gave_once_is_not_asked_for_again(tmp_path, monkeypatch):
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    asked = []

    def download(name, file, local_files_only=False):
        asked.append(local_files_only)
        if local_files_only and len(asked) < 3:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        return str(tmp_path / "tokenizer.json")

    monkeypatch.chdir(tmp_path / "..")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, timeout: asked.append(timeout))
    assert load_tokenizer("some/name").vocab_size == 5
    assert asked == [True, 10.0, False, False, False]  # the tokenizer, and two files that may name its end of text
    assert load_tokenizer("some/name").vocab_size == 5
    assert asked == [True, 10.0, False, False, False, True]


def test_gated(tmp_path, monkeypatch):
    import types

    def refuse(self, name, timeout):
        response = types.SimpleNamespace(headers={}, request=None, status_code=403)
        raise huggingface_hub.errors.GatedRepoError("no", response=response)

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(DataError, match=r"'some/model' is gated.*https://huggingface.co/some/model"):
        load_tokenizer("some/model")


def test_a_tokenizer_without_a_place_is_kept_once(tmp_path):
    text = word_tokenizer().to_str()
    first, second = (keep_tokenizer(text, tmp_path) for _ in range(2))
    assert first == second
    assert load_tokenizer(str(first)).vocab_size == 5
    assert keep_tokenizer(text.replace("cat", "dog"), tmp_path) != first
