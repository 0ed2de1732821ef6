"""Tasks on local files: the requests and scores are those of the harness's own loader on the same files; averages of
groups; what is told of files that are missing or wrong."""

import logging
import math
from pathlib import Path

import pytest
import torch
from evaluation.test_local import write

from ablate.cli import main
from ablate.config.errors import DataError
from ablate.data.text.tokenizers import load_tokenizer
from ablate.experiment.tree import Experiment

pytest.importorskip("lm_eval")
import datasets
import lm_eval.tasks as harness
from lm_eval import simple_evaluate

from ablate.evaluation.catalog import index_tasks
from ablate.evaluation.harness import OwnModel
from ablate.evaluation.layer_removal import _choose_metrics
from ablate.evaluation.scoring import score
from ablate.evaluation.tasks import load_tasks

BYTES = load_tokenizer("bytes")


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


CASES = {
    "mmlu_anatomy": ("mmlu/default", "cais/mmlu/anatomy", {"test": "parquet", "dev": "jsonl"}, subject, 2),
    "piqa": ("piqa", "piqa", {"train": "csv", "validation": "csv", "test": "jsonl"}, pair, 2),
    "hellaswag": ("hellaswag", "hellaswag", {"train": "jsonl", "validation": "parquet"}, ending, 1),
    "commonsense_qa": ("commonsense_qa", "commonsense_qa", {"train": "json", "validation": "jsonl"}, common, 0),
}
"""Task -> (folder of the harness, of the data, split -> suffix of its file, a question, solved examples)."""


@pytest.fixture(scope="module")
def model():
    experiment = Experiment.from_mapping({"model": {"hidden": 16, "mlp": 22, "layers": 1, "heads": 2}})
    torch.manual_seed(0)
    return experiment.model.build(experiment.norm, experiment.init, 256, (512,))


@pytest.mark.parametrize("task", CASES)
def test_the_scores_are_those_of_the_harness_on_the_same_files(task, tmp_path, model, monkeypatch):
    folder, place, splits, question, shots = CASES[task]
    for start, (split, suffix) in enumerate(splits.items()):
        write(tmp_path / place / f"{split}.{suffix}", *[question(100 * start + n) for n in range(7)])
    loaded = load_tasks([task], tmp_path, shots)
    ours = score(model, BYTES, loaded, length=512)[task]

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = {
        split: datasets.load_dataset(
            suffix.replace("jsonl", "json"), data_files=str(tmp_path / place / f"{split}.{suffix}"), split="train"
        )
        for split, suffix in splits.items()
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
    index = index_tasks(["mmlu"]).task_index
    names = [entry.cfg["dataset_name"] for entry in index.values() if entry.kind.name == "TASK"]
    contents = {name: [subject(i + n, name) for n in range(2 + i % 4)] for i, name in enumerate(names)}
    for name, questions in contents.items():
        write(tmp_path / "tasks" / "mmlu" / name / "test.jsonl", *questions)
    return tmp_path / "tasks", contents


def test_mmlu_is_the_average_over_questions(subjects, likes):
    folder, contents = subjects
    assert len(contents) == 57
    found = score(likes({"C": 9.0}), BYTES, ["mmlu"], length=256, task_data=folder)  # always the third answer
    right = {name: [float(question["answer"] == 2) for question in questions] for name, questions in contents.items()}
    for name, values in right.items():
        assert found[f"mmlu_{name}"].metrics["acc"] == sum(values) / len(values)
    every = [value for values in right.values() for value in values]
    assert found["mmlu"].metrics["acc"] == pytest.approx(sum(every) / len(every))
    assert found["mmlu"].stderr["acc"] == pytest.approx(torch.tensor(every).std().item() / math.sqrt(len(every)))
    index = index_tasks(["mmlu"]).task_index
    stem = [task.removeprefix("mmlu_") for task in index["mmlu_stem_tasks"].tags]
    values = [value for name in stem for value in right[name]]
    assert found["mmlu_stem"].metrics["acc"] == pytest.approx(sum(values) / len(values))
    assert [metric[:2] for metric in _choose_metrics("mmlu", load_tasks(["mmlu"], folder))] == [("mmlu", "acc")]


def test_all_missing_subjects_are_named(subjects, tmp_path):
    folder, _ = subjects
    for name in ("anatomy", "world_religions"):
        (folder / "mmlu" / name / "test.jsonl").unlink()
    text = r"^There are no questions of .*mmlu_anatomy \(in mmlu/anatomy\), .*mmlu_world_religions \(in mmlu/world_"
    with pytest.raises(DataError, match=text + r"religions\) under .*tasks: test\.jsonl.*cais/mmlu") as caught:
        load_tasks(["mmlu"], folder)
    assert str(caught.value).count("mmlu_") == 2


def test_layers_are_removed_for_a_tag_and_a_group(tmp_path):
    """A tag has no score of its own: each of its tasks is scored."""
    for name in ("ARC-Easy", "ARC-Challenge"):
        write(tmp_path / "ai2_arc" / name / "test.jsonl", *[common(n) for n in range(2)])
    parts = [*_choose_metrics("ai2_arc", load_tasks(["ai2_arc"], tmp_path))]
    assert [part[:2] for part in parts] == [("arc_challenge", "acc_norm"), ("arc_easy", "acc_norm")]
    assert [list(loaded["tasks"]) for _, _, loaded in parts] == [["arc_challenge"], ["arc_easy"]]


def test_a_split_in_place_of_another_is_told(tmp_path, caplog):
    write(tmp_path / "ai2_arc" / "ARC-Easy" / "validation.jsonl", *[common(n) for n in range(4)])
    with caplog.at_level(logging.WARNING):
        loaded = load_tasks(["arc_easy"], tmp_path, 2)["tasks"]["arc_easy"]
    assert caplog.messages == [
        f"arc_easy: scored on the validation questions, since there are no test questions under {tmp_path}."
    ]
    assert len(loaded.eval_docs) == 4
    for question in loaded.eval_docs:
        assert question["question"] not in loaded.fewshot_context(question, 2).rpartition("Question: ")[0]


@pytest.mark.parametrize(
    ("tasks", "files", "shots", "text"),
    [
        (
            ["mmlu_anatomy", "piqa"],
            {"piqa/validation.jsonl": [{"goal": "x"}]},
            None,
            r"mmlu_anatomy \(in mmlu/anatomy\).*with the columns choices, question, answer\..*\n.*of piqa \(in piqa\).*"
            r"validation.jsonl has no label, sol1, sol2\.",
        ),
        (
            ["mmlu_anatomy"],
            {"mmlu/anatomy/test.jsonl": [subject(1), {**subject(2), "answer": 4}, {**subject(3), "answer": -1}]},
            None,
            "2 questions of mmlu_anatomy .* cannot be scored: question 2 has the answer 4, which is none of its 4 choi",
        ),
        (
            ["mmlu_anatomy"],
            {"mmlu/anatomy/test.jsonl": [{**subject(n), "choices": ["a", "b", "c", "d"][: 5 - n]} for n in range(3)]},
            None,
            r"1 questions of mmlu_anatomy .* question 3 has another form .*\(UndefinedError: list object has no elem",
        ),
        (
            ["mmlu_anatomy"],
            {"mmlu/anatomy/test.jsonl": [subject(1)], "mmlu/anatomy/dev.jsonl": [{"question": "x"}]},
            1,
            r"no dev questions of mmlu_anatomy .* for the 1 solved examples: no mmlu/anatomy with dev\.jsonl.* "
            r".*mmlu/anatomy/dev\.jsonl has no choices, answer",
        ),
        (
            ["piqa"],
            {"piqa/train.jsonl": [pair(1)], "piqa/validation.jsonl": [pair(2)]},
            2,
            "The train questions of piqa .* are not enough for --shots 2",
        ),
        (["squadv2"], {}, None, "squadv2 loads its questions by code of its own. Omit --task-data for it"),
        (
            ["gsm8k"],
            {"gsm8k/test.jsonl": [{"question": "1+1?", "answer": "2"}]},
            None,
            r"gsm8k \(in gsm8k/main\).*question, answer",
        ),
        (
            ["commonsense_qa"],
            {"commonsense_qa/validation.jsonl": [{**common(1), "choices": {"text": ["a"]}}]},
            None,
            "The questions of commonsense_qa under .* are not as lm-evaluation-harness expects them: UndefinedError",
        ),
    ],
)
def test_mistakes_in_files_are_told(tmp_path, tasks, files, shots, text):
    for place, questions in files.items():
        write(tmp_path / place, *questions)
    with pytest.raises(DataError, match=f"(?s){text}"):
        load_tasks(tasks, tmp_path, shots)


def test_the_command_and_the_training_run_say_it_in_words(trained, tmp_path, capsys):
    write(tmp_path / "mmlu" / "anatomy" / "test.jsonl", subject(1), {**subject(2), "answer": 9})
    words = ["--tasks", "mmlu_anatomy", "--task-data", str(tmp_path)]
    run = trained("llama").run_id
    assert main(["evaluate", run, *words]) == 2
    assert "question 2 has the answer 9" in capsys.readouterr().err
    settings = [f"evaluation.task_data={tmp_path}", "evaluation.tasks=mmlu_anatomy", "trainer.max_steps=1"]
    assert main(["train", *settings]) == 2
    assert "question 2 has the answer 9" in capsys.readouterr().err
