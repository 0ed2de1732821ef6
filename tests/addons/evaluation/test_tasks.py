"""Tasks on local files in the form of the hub: requests and scores are those of the harness's own loader on the same
files; averages of groups; what is told of files that are missing or wrong; tasks by name."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
import torch
import yaml
from pyarrow import csv, parquet

from ablate.cli import main
from ablate.config.errors import AblateError, DataError
from ablate.data.text.tokenizers import load_tokenizer
from ablate.experiment.tree import Experiment

pytest.importorskip("lm_eval")
import datasets
import lm_eval.tasks as harness
from lm_eval import simple_evaluate

from ablate.addons.evaluation.harness import OwnModel
from ablate.addons.evaluation.layer_removal import _choose_metrics
from ablate.addons.evaluation.scoring import score
from ablate.addons.evaluation.tasks import _find_manager, load_tasks

BYTES = load_tokenizer("bytes")


def write(file, *questions):
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(list(questions)), file)
    elif file.suffix == ".csv":
        csv.write_csv(pa.Table.from_pylist(list(questions)), file)
    else:
        file.write_text("".join(json.dumps(question) + "\n" for question in questions))


def number(n, **more):
    return {key: value.format(n) if isinstance(value, str) else value for key, value in more.items()}


def subject(n, name="anatomy"):
    choices = [f"{word} {n}" for word in ("red", "green", "blue", "grey")]
    return {"question": f" Which {name} is {n}?", "subject": name, "choices": choices, "answer": n % 4}


def pair(n):
    return number(n, goal="Do {}", sol1="use a {}", sol2="use two of {}", label=n % 2)


def ending(n):
    more = {"endings": [f"goes to {n} {word}." for word in "abcd"], "label": str(n % 4), "source_id": "x"}
    return number(n, ctx_a="A man {}.", ctx_b="he", activity_label="Walking {}", ctx="A man {}. he", **more)


def common(n):
    choices = {"label": list("ABCDE"), "text": [f"{word} {n}" for word in "abcde"]}
    return {"question": f"Where is {n}?", "choices": choices, "answerKey": "ABCDE"[n % 5]}


README = """\
---
configs:
  - config_name: anatomy
    data_files:
      - {split: test, path: anatomy/test-*}
      - {split: dev, path: anatomy/dev-*}
---
"""
CASES = {
    "mmlu_anatomy": ("mmlu", "mmlu/anatomy", ("test", "dev"), "-00000-of-00001.parquet", subject, 2),
    "piqa": ("piqa", "piqa", ("train", "validation", "test"), ".csv", pair, 2),
    "hellaswag": ("hellaswag", "hellaswag/data", ("train", "validation"), "-00000-of-00001.parquet", ending, 1),
    "commonsense_qa": ("commonsense_qa", "commonsense_qa", ("train", "validation"), ".jsonl", common, 0),
}
"""Task -> (folder of the harness, of the data, its splits, the ends of their files, a question, solved examples)."""


@pytest.fixture(scope="module")
def model():
    experiment = Experiment.from_mapping({"model": {"hidden": 16, "mlp": 22, "layers": 1, "heads": 2}})
    torch.manual_seed(0)
    return experiment.model.build(experiment.norm, experiment.init, 256, (512,))


@pytest.mark.parametrize("task", CASES)
def test_the_scores_are_those_of_the_harness_on_the_same_files(task, tmp_path, model, monkeypatch):
    folder, place, splits, end, question, shots = CASES[task]
    for start, split in enumerate(splits):
        write(tmp_path / place / f"{split}{end}", *[question(100 * start + n) for n in range(7)])
    if task == "mmlu_anatomy":
        (tmp_path / "mmlu" / "README.md").write_text(README)
    loaded = load_tasks([task], tmp_path, shots)
    ours = score(model, BYTES, loaded, length=512)[task]

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    kind = end.rpartition(".")[2].replace("jsonl", "json")
    files = {
        split: datasets.load_dataset(kind, data_files=str(tmp_path / place / f"{split}{end}"), split="train")
        for split in splits
    }
    manager = harness.TaskManager(include_path=Path(harness.__file__).parent / folder, include_defaults=False)
    their_task = {"task": task, "custom_dataset": lambda **_: files}
    theirs = simple_evaluate(
        OwnModel(model, BYTES, 512, 4),
        tasks=[{"group": "local", "task": [their_task]}],
        task_manager=manager,
        num_fewshot=shots,
        bootstrap_iters=0,
    )
    samples = theirs["samples"][task]
    asked = [[request.args for request in loaded["tasks"][task].instances if request.doc_id == n] for n in range(7)]
    assert asked == [sample["arguments"] for sample in samples]
    assert ours.shots == shots
    assert ours.metrics == {name: theirs["results"][task][f"{name},none"] for name in ours.metrics}
    for mine, sample in zip(ours.questions, samples, strict=True):
        assert mine.loglikelihoods == pytest.approx([value for value, _ in sample["filtered_resps"]], rel=1e-5)


@pytest.fixture
def subjects(tmp_path):
    """All subjects of MMLU, of two to five questions each; (the folder, subject -> its questions)."""
    index = _find_manager(["mmlu"]).task_index
    stems = [index[group].cfg["task"][0] for group in index["mmlu"].cfg["task"]]
    names = [index[task].cfg["dataset_name"] for stem in stems for task in sorted(index[stem].tags)]
    contents = {name: [subject(i + n, name) for n in range(2 + i % 4)] for i, name in enumerate(names)}
    for name, questions in contents.items():
        write(tmp_path / "tasks" / "mmlu" / name / "test.jsonl", *questions)
        write(tmp_path / "tasks" / "mmlu" / name / "dev.jsonl", *questions)
    configs = [
        {"config_name": name, "data_files": [{"split": s, "path": f"{name}/{s}.jsonl"} for s in ("test", "dev")]}
        for name in contents
    ]
    (tmp_path / "tasks" / "mmlu" / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    return tmp_path / "tasks", contents


def test_mmlu_is_the_average_over_questions(subjects, likes):
    folder, contents = subjects
    assert len(contents) == 57
    found = score(likes({"C": 9.0}), BYTES, load_tasks(["mmlu"], folder), length=256)  # always the third answer
    right = {name: [float(question["answer"] == 2) for question in questions] for name, questions in contents.items()}
    for name, values in right.items():
        assert found[f"mmlu_{name}"].metrics["acc"] == sum(values) / len(values)
    every = [value for values in right.values() for value in values]
    assert found["mmlu"].metrics["acc"] == pytest.approx(sum(every) / len(every))
    assert found["mmlu"].stderr["acc"] == pytest.approx(torch.tensor(every).std().item() / math.sqrt(len(every)))
    index = _find_manager(["mmlu"]).task_index
    stem = [task.removeprefix("mmlu_") for task in index["mmlu_stem_tasks"].tags]
    values = [value for name in stem for value in right[name]]
    assert found["mmlu_stem"].metrics["acc"] == pytest.approx(sum(values) / len(values))
    assert [metric[:2] for metric in _choose_metrics("mmlu", load_tasks(["mmlu"], folder))] == [("mmlu", "acc")]


def test_layers_are_removed_for_a_tag_and_a_group(tmp_path):
    """A tag has no score of its own: each of its tasks is scored."""
    for name in ("ARC-Easy", "ARC-Challenge"):
        for split in ("train", "validation", "test"):
            write(tmp_path / "ai2_arc" / name / f"{split}.jsonl", *[common(n) for n in range(2)])
    parts = [*_choose_metrics("ai2_arc", load_tasks(["ai2_arc"], tmp_path))]
    assert [part[:2] for part in parts] == [("arc_challenge", "acc_norm"), ("arc_easy", "acc_norm")]
    assert [list(loaded["tasks"]) for _, _, loaded in parts] == [["arc_challenge"], ["arc_easy"]]


def test_all_folders_that_are_missing_are_told(tmp_path):
    write(tmp_path / "piqa" / "train.jsonl", pair(1))
    with pytest.raises(DataError, match=r"(?s)^There are no questions of allenai/ai2_arc under .*no folder .*/ai2_arc.*"
        r"hf download allenai/ai2_arc .*\nThere are no questions of allenai/sciq under ") as caught:  # fmt: skip
        load_tasks(["arc_easy", "piqa", "sciq"], tmp_path)
    assert "baber/piqa" not in str(caught.value)


@pytest.mark.parametrize(
    ("tasks", "files", "text"),
    [
        (
            ["piqa"],
            {"piqa/train.jsonl": [pair(1)], "piqa/validation.jsonl": [pair(2), {**pair(3), "label": 4}]},
            "1 questions of piqa .* cannot be scored: question 2 has the answer 4, which is not one of its 2 choices",
        ),
        (
            ["piqa"],
            {"piqa/train.jsonl": [pair(1)]},
            "The questions of piqa under .* KeyError: 'validation'.*all splits",
        ),
        (
            ["commonsense_qa"],
            {f"commonsense_qa/{s}.jsonl": [{**common(1), "choices": {"text": ["a"]}}] for s in ("train", "validation")},
            "The questions of commonsense_qa under .* are not as lm-evaluation-harness expects them: UndefinedError",
        ),
    ],
)
def test_mistakes_in_files_are_told(tmp_path, tasks, files, text):
    for place, questions in files.items():
        write(tmp_path / place, *questions)
    with pytest.raises(DataError, match=f"(?s){text}"):
        load_tasks(tasks, tmp_path)


def test_the_command_and_the_training_run_say_it_in_words(trained, tmp_path, capsys):
    for split in ("train", "validation"):
        write(tmp_path / "piqa" / f"{split}.jsonl", pair(1), {**pair(2), "label": 9})
    words = ["--tasks", "piqa", "--task-data", str(tmp_path)]
    run = trained("llama").run_id
    assert main(["evaluate", run, *words]) == 2
    assert "question 2 has the answer 9" in capsys.readouterr().err
    settings = [f"evaluation.task_data={tmp_path}", "evaluation.tasks=piqa", "trainer.max_steps=1"]
    assert main(["train", *settings]) == 2
    assert "question 2 has the answer 9" in capsys.readouterr().err


def test_all_unknown_names_are_told():
    with pytest.raises(AblateError, match=r"unknown task 'piqaa', 'gsm9k'\. Did you mean piqa\?.*gsm8k"):
        load_tasks(["piqaa", "piqa", "gsm9k"])


def test_common_tasks_are_found_without_the_index_of_all():
    names = ["arc_easy", "arc_challenge", "hellaswag", "lambada_openai", "openbookqa", "piqa", "sciq", "winogrande"]
    assert len(_find_manager(names).all_tasks) < 1000
