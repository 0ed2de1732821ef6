"""Layer removal of a BERT on questions of SQuAD, against a plain loop over questions on BERTs of one layer less."""

import copy
import itertools
import json
import math
import random
from collections import Counter

import pytest
import torch
from torch import nn

from ablate.addons.evaluation.layer_removal import Benchmarks
from ablate.addons.papers.spans.squad import load_questions
from ablate.cli import main
from ablate.config.errors import DataError
from ablate.diagnostics.figures.run import figure

transformers = pytest.importorskip("transformers")
pytest.importorskip("lm_eval")

WORDS = [f"w{n:02}" for n in range(40)]  # none is the beginning of another
LENGTH, LAYERS = 24, 3


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """The folder of a tiny BERT with a span head, in whose answers each layer matters."""
    folder = tmp_path_factory.mktemp("models") / "bert"
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        initializer_range=0.6,
    )
    transformers.BertForQuestionAnswering(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    return folder


class Oracle:
    """A BERT that answers one question after another, window by window, without any batch."""

    def __init__(self, folder, left_out=None):
        self.model = transformers.BertForQuestionAnswering.from_pretrained(folder).eval()
        layers = self.model.bert.encoder.layer
        self.model.bert.encoder.layer = nn.ModuleList(layer for i, layer in enumerate(layers) if i != left_out)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def read(self, question):
        """Yield (offsets of the context's tokens by place, output of the model) of each window."""
        text = self.tokenizer(question["question"], add_special_tokens=False).input_ids
        words = self.tokenizer(question["context"], add_special_tokens=False, return_offsets_mapping=True)
        room = LENGTH - 3 - len(text)
        answer = question["answers"][0]
        for first in itertools.count(0, room - room // 2):
            ids = words.input_ids[first : first + room]
            offsets = {2 + len(text) + n: place for n, place in enumerate(words.offset_mapping[first : first + room])}
            places = [
                place
                for place, (begin, end) in offsets.items()
                if begin >= answer["answer_start"] and end <= answer["answer_start"] + len(answer["text"])
            ]
            if len(places) < len(answer["text"].split()):
                places = [0]
            with torch.no_grad():
                output = self.model(
                    input_ids=torch.tensor([[2, *text, 3, *ids, 3]]),
                    token_type_ids=torch.tensor([[0] * (len(text) + 2) + [1] * (len(ids) + 1)]),
                    start_positions=torch.tensor(places[:1]),
                    end_positions=torch.tensor(places[-1:]),
                )
            yield offsets, output
            if first + room >= len(words.input_ids):
                break

    def answer(self, question):
        best = (-math.inf, "")
        for offsets, output in self.read(question):
            starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
            for first in sorted(range(len(starts)), key=lambda i: -starts[i])[:20]:
                for last in sorted(range(len(ends)), key=lambda i: -ends[i])[:20]:
                    if first in offsets and last in offsets and 0 <= last - first < 30:
                        text = question["context"][offsets[first][0] : offsets[last][1]]
                        best = max(best, (starts[first] + ends[last], text))
        return best[1]

    def score(self, questions):
        """Exact match and F1 from 0 to 1, and the mean loss of transformers over windows."""
        exact, f1 = [], []
        for question in questions:
            answer, right = self.answer(question), [one["text"] for one in question["answers"]]
            exact.append(answer in right)
            f1.append(max(compute_f1(answer.split(), one.split()) for one in right))
        losses = [output.loss.item() for question in questions for _, output in self.read(question)]
        return {
            "squad/exact_match": sum(exact) / len(exact),
            "squad/f1": sum(f1) / len(f1),
            "loss": sum(losses) / len(losses),
        }


def compute_f1(ours, theirs):
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


@pytest.fixture(scope="module")
def questions(bert):
    """Questions on short and long texts. The model answers every third one as the first, or another, right answer."""
    draw, whole = random.Random(0), Oracle(bert)
    made = []
    for number in range(12):
        words = draw.choices(WORDS, k=draw.choice([6, 14, 30, 50]))
        context, begin = " ".join(words), draw.randrange(len(words) - 3)
        answer = {"text": " ".join(words[begin : begin + 2]), "answer_start": len(" ".join([*words[:begin], ""]))}
        question = {"id": f"q{number}", "question": " ".join(draw.choices(WORDS, k=3)), "answers": [answer]}
        made.append({**question, "context": context})
        if number % 3 == 0:
            text = whole.answer(made[-1])
            own = {"text": text, "answer_start": context.index(text)}
            made[-1]["answers"].insert(number % 2, own)
    return made


def write_squad(folder, questions):
    """SQuAD's own file."""
    paragraphs = [
        {"context": one["context"], "qas": [{key: value for key, value in one.items() if key != "context"}]}
        for one in questions
    ]
    (folder / "squad").mkdir(parents=True)
    content = {"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}
    (folder / "squad" / "dev-v1.1.json").write_text(json.dumps(content, indent=1))
    return folder


def write_hub(folder, questions):
    """The columns of the hub."""
    folder = folder / "squad"
    folder.mkdir(parents=True)
    lines = [
        {**one, "answers": {key: [answer[key] for answer in one["answers"]] for key in ("text", "answer_start")}}
        for one in questions
    ]
    (folder / "validation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder.parent


def words_of(bert, tasks, *more):
    return ["diagnose", f"hf:{bert}", "--what", "pruning", "--tasks", "squad", "--task-data", str(tasks), *more]


def test_removal_of_a_layer_is_a_model_without_it(store, bert, questions, tmp_path, capsys):
    tasks = write_squad(tmp_path / "tasks", questions)
    assert main(words_of(bert, tasks, "--json", "--output", str(tmp_path / "out"), "--batch-tokens", "120")) == 0
    result = json.loads(capsys.readouterr().out)["measurements"]["pruning"]["bert"]
    expected = [Oracle(bert, left_out).score(questions) for left_out in (None, *range(LAYERS))]
    assert expected[0]["squad/exact_match"] > 0.3
    assert len({scores["squad/f1"] for scores in expected}) > 2  # removal changes something
    assert result["facts"]["whole"] == pytest.approx(expected[0], abs=1e-5)
    for row, scores in zip(result["rows"], expected[1:], strict=True):
        for name, column in (("loss", "loss_increase"), *((n, f"{n}_change") for n in scores if n != "loss")):
            assert row[column] == pytest.approx(scores[name] - expected[0][name], abs=1e-5)


def test_what_is_printed_and_the_other_measurements(store, bert, questions, tmp_path, capsys):
    tasks = write_hub(tmp_path / "tasks", questions)
    words = words_of(bert, tasks, "--limit", "5", "--output", str(tmp_path / "out"))
    assert main([*words[:3], "pruning,angular,gradients,variance", *words[4:]]) == 0
    text = capsys.readouterr().out
    assert "squad/exact match change" in text
    assert "bert with all layers: loss" in text
    assert "measured on squad: 5 questions in" in text
    assert "gradients: norm" in text


def test_each_model_is_scored_on_the_tasks_that_it_can_answer(store, bert, questions, trained, tmp_path, monkeypatch):
    """As the papers' figures of BERT on SQuAD beside LLaMA on MMLU, which here is PIQA."""
    monkeypatch.setattr("ablate.diagnostics.figures.run.save", lambda *words: [])
    run = trained("llama").run_id
    folder = write_squad(write_piqa(tmp_path / "tasks"), questions)
    alone = figure("removal", f"hf:{bert}", tokens=96, benchmarks=Benchmarks(["squad"], folder)).rows["pruning"]
    other = figure("removal", run, tokens=96, benchmarks=Benchmarks(["piqa"], folder)).rows["pruning"]
    drawing = figure("lns-2", [f"hf:{bert}", run], tokens=96, benchmarks=Benchmarks(["squad", "piqa"], folder))
    spans, causal = drawing.rows["pruning"].values()
    assert spans.mean.rows == alone["bert"].mean.rows
    assert causal.mean.rows == next(iter(other.values())).mean.rows
    assert "squad/f1_change" in spans.mean.rows[0]
    assert "piqa/acc_norm_change" in causal.mean.rows[0]
    first, second = (note for note in drawing.notes if "scored on" in note)
    assert first == "bert: scored on squad and not on piqa (a span head)."
    assert second.endswith(": scored on piqa and not on squad (no span head).")


def write_piqa(folder):
    folder.mkdir()
    rows = [{"goal": f"w{n}", "sol1": "yes", "sol2": "no", "label": n % 2} for n in range(4)]
    (folder / "piqa").mkdir()
    for split in ("train", "validation"):
        (folder / "piqa" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_questions_that_cannot_be_scored(store, bert, questions, tmp_path, capsys):
    bad = copy.deepcopy(questions)
    bad[1]["answers"][0]["answer_start"] = 10_000
    bad[2]["answers"][0]["answer_start"] += 1
    bad[4] |= {"answers": [], "is_impossible": True}
    bad[5]["answers"] = []
    assert main(words_of(bert, write_squad(tmp_path / "bad", bad))) == 2
    text = capsys.readouterr().err
    assert "4 of the 12 questions of squad under" in text
    assert all(f": {name}" in text for name in ("q1 (", "q2 (", "q4\n", "q5\n"))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (None, "", "no questions of rajpurkar/squad under .*: no folder .*/squad"),
        ("squad/train.jsonl", '{"id": "a"}', "squad cannot be read: Bad split"),
        ("squad/dev-v1.1.json", '{"data": []}', "no questions in squad under"),
        ("squad/dev-v1.1.json", '{"data": [{"paragraphs": 3}]}', "dev-v1.1.json cannot be read: article 1"),
        ("squad/dev-v1.1.json", '{"data": [', "dev-v1.1.json cannot be read"),
        ("squad/validation.jsonl", '{"id": "a", "question": "b", "context": "c"}', "has no answers"),
    ],
)
def test_files_that_hold_no_questions(tmp_path, file, text, message):
    if file:
        (tmp_path / "squad").mkdir()
        (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message.replace("(", r"\(").replace(")", r"\)")):
        load_questions(tmp_path)


def test_models_and_tasks_that_do_not_fit(store, bert, questions, trained, tmp_path, capsys):
    tasks = write_squad(tmp_path / "tasks", questions)
    plain, headless, twofold = (tmp_path / name for name in ("plain", "headless", "twofold"))
    config = transformers.BertConfig.from_pretrained(bert)
    transformers.BertForMaskedLM(config).save_pretrained(plain)
    transformers.BertModel(config).save_pretrained(headless)
    transformers.BartConfig(architectures=["BartForQuestionAnswering"]).save_pretrained(twofold)
    saved = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps(saved | {"architectures": ["BertForQuestionAnswering"]}))
    for model, words, message in [
        (f"hf:{plain}", ["--tasks", "squad"], "has no span head, which the task squad needs"),
        (f"hf:{headless}", ["--tasks", "squad"], "has no tokenizer"),
        (trained("llama").run_id, ["--tasks", "squad"], "has no span head, which squad needs"),
        (f"hf:{twofold}", ["--tasks", "squad"], "has an encoder and a decoder"),
        (f"hf:{bert}", ["--tasks", "piqa"], "so it is measured on questions of SQuAD"),
        (f"hf:{bert}", [], "--tasks squad --task-data FOLDER"),
    ]:
        assert main(["diagnose", model, "--what", "pruning", *words, "--task-data", str(tasks)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    (headless / "vocab.txt").write_text((bert / "vocab.txt").read_text())
    assert main(words_of(headless, tasks)) == 2
    assert "has no weights of qa_outputs.bias, qa_outputs.weight" in capsys.readouterr().err
    (headless / "vocab.txt").write_text((bert / "vocab.txt").read_text() + "\nmore")
    transformers.BertForQuestionAnswering(config).save_pretrained(headless)
    assert main(words_of(headless, tasks)) == 2
    assert "has 46 tokens and the model 45" in capsys.readouterr().err
    assert main(["evaluate", trained("llama").run_id, "--tasks", "squad"]) == 2
    assert "--tasks squad scores models with a span head" in " ".join(capsys.readouterr().err.split())
