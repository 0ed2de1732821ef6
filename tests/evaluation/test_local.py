"""Which files are taken for a task's, and what is said where there are none."""

import json

import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import parquet

from ablate.config.errors import DataError
from ablate.evaluation.local import find_questions

ARC = {
    "question": "Which is warm?",
    "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
    "answerKey": "B",
}


def write(file, *questions):
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(questions)), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(list(questions)))
    else:
        file.write_text("".join(json.dumps(question) + "\n" for question in questions))


@pytest.mark.parametrize(
    "place",
    [
        "ai2_arc/ARC-Easy/validation/data.jsonl",
        "deep/er/AI2_ARC/arc-easy/validation.json",
        "ai2_arc/ARC-Easy/validation-00000-of-00001.parquet",
        "ai2_arc_ARC-Easy_x/ARC-Easy/dev.jsonl",
    ],
)
def test_a_file_is_found_by_its_path(place, tmp_path):
    write(tmp_path / place, ARC, ARC)
    write(tmp_path / "ai2_arc/ARC-Challenge/validation.jsonl", ARC)
    found = find_questions("arc_easy", tmp_path)
    assert list(found) == ["validation"]
    assert len(found["validation"]) == 2
    assert found["validation"][0]["choices"]["text"] == ["ice", "fire"]


def test_what_datasets_has_saved_is_found(tmp_path):
    Dataset.from_list([ARC] * 3).save_to_disk(tmp_path / "ai2_arc" / "ARC-Easy" / "test")
    write(tmp_path / "ai2_arc" / "ARC-Easy" / "train" / "one.jsonl", ARC)
    write(tmp_path / "ai2_arc" / "ARC-Easy" / "train" / "two.jsonl", ARC, ARC)
    found = find_questions("arc_easy", tmp_path)
    assert {split: len(questions) for split, questions in found.items()} == {"test": 3, "train": 3}


def test_boolq_is_told_from_its_fine_tuning_data_and_gets_labels(tmp_path):
    yes = {"question": "is it", "passage": "It is.", "answer": True}
    write(tmp_path / "boolq" / "none" / "validation" / "a.jsonl", yes, {**yes, "answer": False})
    write(tmp_path / "adapters" / "boolq" / "test.json", {"instruction": "is it", "output": "true", "answer": "true"})
    found = find_questions("boolq", tmp_path)
    assert list(found) == ["validation"]
    assert found["validation"]["label"] == [1, 0]


def test_what_is_missing_is_told(tmp_path):
    with pytest.raises(DataError, match=r"no piqa/validation/\*.arrow .* with goal, sol1, sol2, label.*baber/piqa"):
        find_questions("piqa", tmp_path)
    write(tmp_path / "piqa" / "validation.jsonl", {"goal": "x", "label": 0})
    with pytest.raises(DataError, match=r"validation.jsonl has no sol1, sol2"):
        find_questions("piqa", tmp_path)
    with pytest.raises(DataError, match="There is no folder"):
        find_questions("piqa", tmp_path / "none")
    with pytest.raises(DataError, match=r"Local files of gsm8k cannot be read\. Accepted tasks: arc_easy"):
        find_questions("gsm8k", tmp_path)
    (tmp_path / "sciq").mkdir()
    (tmp_path / "sciq" / "validation.arrow").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"validation\.arrow cannot be read"):
        find_questions("sciq", tmp_path)


def test_two_copies_are_not_added_up(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name / "ai2_arc" / "ARC-Easy" / "validation.jsonl", ARC)
    with pytest.raises(DataError, match="Two folders contain the validation questions of arc_easy"):
        find_questions("arc_easy", tmp_path)
