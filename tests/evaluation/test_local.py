"""Which files are taken for a task's, and what is said where there are none."""

import json

import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import csv, parquet

from ablate.config.errors import DataError
from ablate.evaluation.local import KNOWN, Local, TaskFolder

ARC = {
    "question": "Which is warm?",
    "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
    "answerKey": "B",
}
EASY = Local("allenai/ai2_arc", ("ai2_arc", "ARC-Easy"), ("question", "choices", "answerKey"))
SUBJECT = Local("cais/mmlu", ("mmlu", "anatomy"), ("question", "choices", "answer"), lists=("choices",))
PIQA = Local("baber/piqa", ("piqa",), ("goal", "sol1", "sol2", "label"))
SPLITS = ("test", "validation", "train")


def write(file, *questions):
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(questions)), file)
    elif file.suffix == ".csv":
        csv.write_csv(pa.Table.from_pylist(list(questions)), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(list(questions)))
    else:
        file.write_text("".join(json.dumps(question) + "\n" for question in questions))


def find(folder, local=EASY, splits=SPLITS):
    return TaskFolder(folder).find_questions("a task", local, splits)


@pytest.mark.parametrize(
    "place",
    [
        "ai2_arc/ARC-Easy/validation/data.jsonl",
        "deep/er/AI2_ARC/arc-easy/validation.json",
        "ai2_arc/ARC-Easy/validation-00000-of-00001.parquet",
        "ai2_arc_ARC-Easy_x/ARC-Easy/dev.jsonl",
        "allenai___ai2_arc/ARC-Easy/0.0.0/ai2_arc-validation.jsonl",
        "datasets--allenai--ai2_arc/snapshots/0/ARC-Easy/valid.jsonl",
        "test/ai2_arc/ARC-Easy/val.jsonl",
    ],
)
def test_a_file_is_found_by_its_path(place, tmp_path):
    write(tmp_path / place, ARC, ARC)
    write(tmp_path / "ai2_arc/ARC-Challenge/validation.jsonl", ARC)
    (found,) = find(tmp_path).splits.items()
    assert found[0] == "validation"
    assert len(found[1]) == 2
    assert found[1][0]["choices"]["text"] == ["ice", "fire"]


def test_what_datasets_has_saved_is_found(tmp_path):
    Dataset.from_list([ARC] * 3).save_to_disk(tmp_path / "ai2_arc" / "ARC-Easy" / "test")
    write(tmp_path / "ai2_arc" / "ARC-Easy" / "train" / "one.jsonl", ARC)
    write(tmp_path / "ai2_arc" / "ARC-Easy" / "train" / "two.jsonl", ARC, ARC)
    found = find(tmp_path).splits
    assert {split: len(questions) for split, questions in found.items()} == {"test": 3, "train": 3}


def test_the_splits_are_those_of_the_task(tmp_path):
    """dev is another name of validation, unless the task has a split dev; a split may be any name."""
    question = {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 1}
    for number, name in enumerate(("test", "validation", "dev", "test_r2"), 1):
        write(tmp_path / "mmlu" / "anatomy" / f"{name}-00000-of-00001.parquet", *[question] * number)
    found = find(tmp_path, SUBJECT, ("test", "dev", "test_r2")).splits
    assert {split: len(questions) for split, questions in found.items()} == {
        "test": 1,
        "validation": 2,
        "dev": 3,
        "test_r2": 4,
    }


def test_a_folder_of_the_very_name_goes_before_longer_names(tmp_path):
    pair = {"goal": "a", "sol1": "b", "sol2": "c", "label": 0}
    write(tmp_path / "piqa_ca" / "validation.csv", pair, pair)
    assert len(find(tmp_path, PIQA).splits["validation"]) == 2
    write(tmp_path / "piqa" / "validation.csv", pair)
    assert len(find(tmp_path, PIQA).splits["validation"]) == 1


def test_boolq_is_told_from_its_fine_tuning_data_and_gets_labels(tmp_path):
    yes = {"question": "is it", "passage": "It is.", "answer": True}
    write(tmp_path / "boolq" / "none" / "validation" / "a.jsonl", yes, {**yes, "answer": False})
    write(tmp_path / "adapters" / "boolq" / "test.json", {"instruction": "is it", "output": "true", "answer": "true"})
    found = find(tmp_path, KNOWN["boolq"]).splits
    assert list(found) == ["validation"]
    assert found["validation"]["label"] == [1, 0]


@pytest.mark.parametrize(
    ("file", "local", "question", "text"),
    [
        ("piqa/validation.jsonl", PIQA, {"goal": "x", "label": 0}, "has no sol1, sol2"),
        (
            "piqa/validation.jsonl",
            PIQA,
            {"goal": "x", "sol1": "a", "sol2": None, "label": None},
            "has questions without sol2, label",
        ),
        (
            "mmlu/anatomy/test.csv",
            SUBJECT,
            {"question": "Which?", "choices": "['a' 'b']", "answer": 1},
            "has no lists in choices: JSON lines",
        ),
    ],
)
def test_a_file_with_other_columns_is_left_out_and_told(tmp_path, file, local, question, text):
    write(tmp_path / file, question)
    found = find(tmp_path, local)
    assert not found.splits
    assert len(found.remarks) == 1
    assert found.remarks[0].startswith(f"{tmp_path / file} {text}")


def test_what_cannot_be_read_is_told(tmp_path):
    with pytest.raises(DataError, match="There is no folder"):
        TaskFolder(tmp_path / "none")
    for name, content, text in (
        ("validation.arrow", "nothing", "cannot be read"),
        ("validation.jsonl", "[1]", "cannot be read: question 1 is not an object"),
        ("validation.json", "{", "cannot be read: Expecting"),
    ):
        folder = tmp_path / name / "piqa"
        folder.mkdir(parents=True)
        (folder / name).write_text(content)
        with pytest.raises(DataError, match=text):
            find(folder.parent, PIQA)


def test_two_copies_are_not_added_up(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name / "ai2_arc" / "ARC-Easy" / "validation.jsonl", ARC)
    with pytest.raises(DataError, match="Two folders contain the validation questions of a task"):
        find(tmp_path)
