"""Two questions of each of the tasks of two-stage pre-training, in local files in the form of the hub."""

import json

CHOICES = {"text": ["sun", "moon"], "label": ["A", "B"]}
TASKS = {
    "lambada_openai": [
        {"text": "He sat on the chair. She took the other chair"},
        {"text": "It rained. They stayed at home"},
    ],
    "winogrande/winogrande_xl": [
        {"sentence": "The cup fell off the bar as the _ was weak.", "option1": "cup", "option2": "bar", "answer": "2"},
        {"sentence": "Ann thanked Eve as _ had helped.", "option1": "Ann", "option2": "Eve", "answer": "2"},
    ],
    "piqa": [
        {"goal": "Cut bread", "sol1": "knife", "sol2": "soup spoon", "label": 0},
        {"goal": "Sleep", "sol1": "loud hall", "sol2": "quiet room", "label": 1},
    ],
    "hellaswag": [
        {
            "ctx_a": "A man holds a ball.", "ctx_b": "he", "activity_label": "Ball", "label": str(right),
            "ctx": "A man holds a ball. he", "endings": ["throws it.", "eats the sky.", "is blue.", "rains."],
        }
        for right in (0, 1)
    ],
    "ai2_arc/ARC-Easy": [{"question": "What is hot?", "choices": CHOICES, "answerKey": key} for key in "AB"],
    "ai2_arc/ARC-Challenge": [{"question": "What is cold?", "choices": CHOICES, "answerKey": key} for key in "BA"],
    "openbookqa/main": [{"question_stem": "A day has a", "choices": CHOICES, "answerKey": key} for key in "AB"],
}  # fmt: skip


def write_tasks(folder):
    """Write the questions below `folder` and return it."""
    for name, questions in TASKS.items():
        (folder / name).mkdir(parents=True)
        text = "".join(json.dumps(question) + "\n" for question in questions)
        for split in ("train", "validation", "test"):
            (folder / name / f"{split}.jsonl").write_text(text)
    return folder
