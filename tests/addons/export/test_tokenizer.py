"""The tokenizer that goes along with an exported model cuts text as the run's own does."""

import io

import pytest

from ablate.addons.export import tokenizer
from ablate.addons.export.tokenizer import PROBES
from ablate.data.text.tokenizers import load_tokenizer
from ablate.experiment.tree import Experiment

transformers = pytest.importorskip("transformers")

TEXTS = [*PROBES, "Āryabhaṭa (476\u2013550)", "x" * 300, "\x01\x7f\x80\xa0\xad end"]
PROSE = "The first text of all is short. Another one, with a comma; and 42 numbers! What follows? Nothing.\n"


def experiment(name):
    return Experiment.from_mapping({"data": {"kind": "text", "files": "*.txt", "tokenizer": name, "seq_len": 32}})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def check(name, folder):
    """What AutoTokenizer finds there."""
    said = tokenizer.write_tokenizer(experiment(name), folder)
    assert said == f"with the tokenizer {name}"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(name)
    assert [theirs.encode(text) for text in TEXTS] == [ids.tolist() for ids in ours.encode(TEXTS)]
    assert theirs.eos_token_id == ours.end_of_text
    assert theirs.pad_token_id == ours.end_of_text
    assert len(theirs) == ours.vocab_size
    assert theirs.model_max_length == 32
    return theirs


def test_bytes_are_tokens(folder):
    theirs = check("bytes", folder)
    assert theirs.encode("é") == [0xC3, 0xA9]
    assert theirs.decode(list("Größe, 東京".encode())) == "Größe, 東京"
    assert theirs.eos_token == "<|endoftext|>"


def test_a_tokenizer_json_adds_no_token_of_its_own(folder, tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [PROSE], trainers.BpeTrainer(vocab_size=280, special_tokens=["</s>"], initial_alphabet=alphabet)
    )
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    made.save(str(tmp_path / "mine.json"))
    check(str(tmp_path / "mine.json"), folder)


LIKE = {
    "T5's": {"model_type": "unigram", "vocab_size": 60, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "LLaMA's": {
        "model_type": "bpe",
        "vocab_size": 340,
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
    },
}


@pytest.mark.parametrize("options", LIKE.values(), ids=LIKE)
def test_sentencepiece_becomes_a_fast_tokenizer(options, folder, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([PROSE] * 50), model_writer=made, hard_vocab_limit=False, minloglevel=2, **options
    )
    (tmp_path / "mine.model").write_bytes(made.getvalue())
    check(str(tmp_path / "mine.model"), folder)


def test_a_tokenizer_that_is_gone_is_told(folder, tmp_path):
    name = str(tmp_path / "gone.json")
    assert "could not be written (There is no tokenizer" in tokenizer.write_tokenizer(experiment(name), folder)
    assert tokenizer.find_end_of_text(experiment(name)) is None


def test_without_a_name_none_is_written(folder):
    tokens = Experiment.from_mapping({"data": {"kind": "tokens", "files": "*.bin"}})
    assert tokenizer.write_tokenizer(tokens, folder).startswith("without the tokenizer")
    assert not [*folder.iterdir()]
