"""Instructions: which tokens are trained on, what is cut, what is packed, and what is refused."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from ablate.config.errors import DataError
from ablate.data import IGNORED, Instructions
from ablate.data.conversations.rows import TEMPLATES

ROWS = [
    {"instruction": f"Add {n} and {n}", "input": "", "output": f"the answer is {2 * n}", "answer": n} for n in range(40)
]
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n### Response:\n"
)


@pytest.fixture
def config(tmp_path):
    """config(rows, **fields) on a JSON file of `rows`."""

    def build(rows=ROWS, **fields):
        (tmp_path / "rows.json").write_text(json.dumps(rows))
        return Instructions(files=str(tmp_path / "rows.json"), **{"seq_len": 240, "val_fraction": 0.1, **fields})

    return build


def everything(corpus):
    """All rows of a corpus as (inputs, targets) lists."""
    for data in (corpus.train, corpus.val):
        for index in range(len(data)):
            inputs, targets = data[index]
            yield inputs.tolist(), targets.tolist()


def trained(targets):
    return bytes(t for t in targets if t != IGNORED)


def test_each_position_token_by_token(config, tmp_path):
    """Commonsense170K's format, written out by hand: what is asked and the padding are no targets, the answer and its
    end are."""
    corpus = config().load(tmp_path)
    assert corpus.padded
    wanted = {}
    for row in ROWS:
        asked, answer = ALPACA.format(row["instruction"]).encode(), row["output"].encode() + b"\0"
        padding = 240 - (len(asked) + len(answer) - 1)
        inputs = [*asked, *answer[:-1], *[0] * padding]
        wanted[bytes(inputs)] = [*[IGNORED] * (len(asked) - 1), *answer, *[IGNORED] * padding]
    found = {bytes(inputs): targets for inputs, targets in everything(corpus)}
    assert found == wanted
    assert (len(corpus.train), len(corpus.val)) == (36, 4)
    assert all(len(inputs) == 240 for inputs in found)


def test_a_batch_has_the_rows_that_were_asked_for(config, tmp_path):
    data = config().load(tmp_path).train
    inputs, targets = data.__getitems__([7, 2])
    assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
    for row, number in enumerate([7, 2]):
        assert torch.equal(inputs[row], data[number][0])
        assert torch.equal(targets[row], data[number][1])


def test_an_input_has_its_own_words(config, tmp_path):
    rows = [{"instruction": "Shout", "input": f"hey {n}", "output": "HEY"} for n in range(4)]
    inputs, targets = next(everything(config(rows).load(tmp_path)))
    text = bytes(inputs).rstrip(b"\0").decode()
    assert re.fullmatch(
        r"Below is an instruction that describes a task, paired with an input that provides further context\. Write a "
        r"response that appropriately completes the request\.\n\n### Instruction:\nShout\n\n### Input:\nhey \d\n\n"
        r"### Response:\nHEY",
        text,
    )
    assert trained(targets) == b"HEY\0"


@pytest.mark.parametrize("keys", [("messages", "role", "content", "user", "assistant"),
                                  ("conversations", "from", "value", "human", "gpt")])  # fmt: skip
def test_all_answers_of_a_chat_are_trained_on_and_nothing_else(config, tmp_path, keys):
    column, role, content, user, assistant = keys
    said = [("system", "Be brief."), (user, "2+2?"), (assistant, "4"), (user, "3+3?"), (assistant, "6"), (user, "bye")]
    rows = [{column: [{role: who, content: text} for who, text in said]} for _ in range(4)]
    inputs, targets = next(everything(config(rows, template="plain").load(tmp_path)))
    text = b"Be brief.\n\n2+2?\n4\x003+3?\n6\0"
    assert bytes(inputs[: len(text) - 1]) == text[:-1]
    wanted = [IGNORED] * len(inputs)
    first, second = text.index(b"4\0"), text.index(b"6\0")
    for place in (first, first + 1, second, second + 1):
        wanted[place - 1] = text[place]  # the target of a position is the token behind it
    assert targets == wanted


def test_answers_beyond_the_context_are_counted(config, tmp_path):
    rows = [
        {"instruction": "ab", "output": "x" * 4},   # 3 + 4 + 1: fits 10 and one more
        {"instruction": "cd", "output": "y" * 50},  # cut to 11
        {"instruction": "e" * 30, "output": "z"},   # no answer is left
        {"instruction": "f" * 9, "output": "w"},    # 10 + 1 + 1: the end is cut
        {"instruction": "g" * 10, "output": "v"},   # 11 asked: none is left
    ]  # fmt: skip
    corpus = config(rows, template="plain", seq_len=10, val_fraction=0.4).load(tmp_path)
    found = sorted(trained(targets) for _, targets in everything(corpus))
    assert found == [b"w", b"xxxx\0", b"yyyyyyyy"]
    assert "2 answers cut, 2 left out because their answers begin after it" in corpus.description
    with pytest.raises(
        DataError,
        match=r"No example of .*rows.json has an answer within seq_len=2: .* the examples have up to 54 tokens",
    ):
        config(rows, template="plain", seq_len=2).load(tmp_path)


def test_packed_rows_hold_whole_examples_each_once(config, tmp_path):
    corpus = config(template="plain", layout="packed", seq_len=64).load(tmp_path)
    texts = []
    for inputs, targets in everything(corpus):
        last = max(place for place, target in enumerate(targets) if target != IGNORED)
        row = bytes([*inputs[: last + 1], targets[last]])
        assert len(row) <= 65
        assert not any(inputs[last + 1 :])
        parts = row.split(b"\0")
        assert parts.pop() == b""
        place = 0
        for part in parts:
            asked, answer = part.split(b"\n")
            begin = place + len(asked) + 1
            assert targets[begin - 1 : begin + len(answer)] == [*answer, 0]
            assert set(targets[max(0, place - 1) : begin - 1]) <= {IGNORED}
            place += len(part) + 1
            texts.append(part.decode())
    assert sorted(texts) == sorted(f"{row['instruction']}\n{row['output']}" for row in ROWS)
    assert len(corpus.train) < 36
    lengths = [len(f"{row['instruction']}\n{row['output']}\0") for row in ROWS]
    assert min(lengths) * 2 <= 65  # rows of two were possible


def test_bytes_per_token_are_those_of_answers(config, tmp_path):
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "yes": 1, "</s>": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    rows = [{"instruction": "a b c d", "output": "yes yes longer"}] * 4
    corpus = config(rows, tokenizer=str(tmp_path / "tokenizer.json"), template="plain").load(tmp_path)
    assert corpus.bytes_per_token == pytest.approx((14 + 1) / 4)  # three words and the end
    assert corpus.classes == 3
    inputs, targets = corpus.train[0]
    assert inputs[:7].tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert targets[:8].tolist() == [IGNORED] * 3 + [1, 1, 0, 2, IGNORED]


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.arrow"])
def test_every_format_gives_the_same_rows(config, tmp_path, name):
    write(tmp_path / name, ROWS)
    other = Instructions(files=str(tmp_path / name), seq_len=240, val_fraction=0.1).load(tmp_path)
    assert list(everything(other)) == list(everything(config().load(tmp_path)))


def test_a_folder_that_datasets_loads_with_a_split_of_its_own(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    write(folder / "train.jsonl", ROWS[:30])
    write(folder / "validation.jsonl", ROWS[30:])
    corpus = Instructions(dataset=str(folder), val_split="validation", seq_len=240).load(tmp_path)
    assert (len(corpus.train), len(corpus.val)) == (30, 10)
    answers = sorted(trained(corpus.val[index][1].tolist()) for index in range(10))
    assert answers == sorted(f"{row['output']}\0".encode() for row in ROWS[30:])


def test_a_second_load_reads_what_is_kept_and_a_damaged_one_is_made_again(config, tmp_path):
    first = config().load(tmp_path)
    (kept,) = (tmp_path / "instructions").glob("*.npz")
    content = kept.read_bytes()
    second = config().load(tmp_path)
    assert list(everything(first)) == list(everything(second))
    assert (first.fingerprint, first.description) == (second.fingerprint, second.description)
    kept.write_bytes(content[:-20] + b"\1" * 20)
    assert list(everything(config().load(tmp_path))) == list(everything(first))
    assert kept.read_bytes() == content


def test_columns_of_other_names(config, tmp_path):
    rows = [{"question": "2+2?", "reply": "4"}] * 4
    corpus = config(rows, columns={"instruction": "question", "output": "reply"}, template="plain").load(tmp_path)
    assert trained(next(everything(corpus))[1]) == b"4\0"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"instruction": "a", "answer": "b"}], r"entry 1: no column 'output'. Columns: 'instruction', 'answer'"),
        ([{"instruktion": "a", "output": "b"}], r"no column 'instruction'.*Did you mean instruktion\?"),
        ([{"instruction": "a", "output": 3}], r"'output' must be a string, but is a number"),
        ([{"instruction": "a", "output": None}], r"'output' must be a string, but is null"),
        ([{"instruction": "a", "output": "\ud800"}], r"entry 1: the text has a lone surrogate"),
        ([{"messages": "hello"}], r"'messages': expected a list of messages, got a string"),
        ([{"messages": [{"role": "user", "content": "a"}]}], r"no message has the role assistant"),
        ([{"messages": [{"role": "bot", "content": "a"}]}], r"message 1: unknown role 'bot'. Accepted: system, user"),
        ([{"messages": [{"role": "assistant", "content": "a"}]}], r"message 1 is an answer without a prompt"),
        ([{"messages": [{"text": "a"}]}], r'message 1: expected {"role": ..., "content": ...}'),
        ({"instruction": "a"}, r"rows.json: expected a list of objects, got an object"),
        (["a"], r"entry 1: expected an object, got a string"),
        ([], r"rows.json contains no examples"),
    ],
)
def test_what_is_wrong_in_a_file_is_told(config, tmp_path, rows, text):
    with pytest.raises(DataError, match=text):
        config(rows).load(tmp_path)


def test_json_lines_in_a_json_file(tmp_path):
    write(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "a.jsonl").rename(tmp_path / "a.json")
    with pytest.raises(DataError, match=r"a.json:2: not JSON: .* JSON lines have the suffix .jsonl"):
        Instructions(files=str(tmp_path / "a.json")).load(tmp_path)
    with pytest.raises(DataError, match=r"There is no file .*b.json"):
        Instructions(files=str(tmp_path / "b.json")).load(tmp_path)


def test_what_makes_no_sense_is_refused(config, tmp_path):
    with pytest.raises(ValidationError, match="needs either files or dataset"):
        Instructions()
    with pytest.raises(ValidationError, match=r"bpe-300 would be trained on the instructions.*ablate export"):
        config(tokenizer="bpe-300")
    with pytest.raises(ValidationError, match="val_split: only valid with `dataset`"):
        config(val_split="test")
    with pytest.raises(DataError, match="The validation data is the training data"):
        config(val_files=str(tmp_path / "rows.json")).load(tmp_path)


def test_the_templates_end_where_an_answer_begins():
    for template in TEMPLATES.values():
        assert template.format_question("one").startswith(template.preface)
        assert template.format_question("one", first=False) == template.instruction.format("one") + template.response
