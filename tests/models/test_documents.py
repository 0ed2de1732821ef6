"""Documents that are packed into one window and masked: each is what it is alone."""

import pytest
import torch
import torch.nn.functional as F

from ablate.config.errors import ConfigError
from ablate.data.text.layouts import mark_starts
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.models.attention import read_starts

END = 3
MASKING = [kind for kind in models if models[kind].masks_documents]
ALL = {"gate": "headwise", "sink": "learned", "value_residual": "learned", "temperature": True}


def build(kind="llama", **settings):
    """The experiment, a model in float64, and two windows with documents of 1 to 11 tokens."""
    tree = {"model": {"kind": kind, "hidden": 16, "layers": 3, "heads": 4, "kv_heads": 2}, "init.std": 0.4}
    data = {"kind": "packages", "mask_documents": True}
    experiment = Experiment.from_mapping({**tree, "data": data, **settings})
    torch.manual_seed(0)
    model = experiment.build_model(20, (24,)).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("sink.weight", "temperature.weight")):
            torch.nn.init.normal_(parameter)
    tokens = torch.randint(END + 1, 20, (2, 24))
    for row, ends in enumerate(([7, 8, 19], [0, 22])):
        tokens[row, ends] = END
    return experiment, model, tokens


def cut(row):
    """The first token and the one behind the last of each document."""
    starts = [0, *(i + 1 for i in range(len(row) - 1) if row[i] == END)]
    return list(zip(starts, [*starts[1:], len(row)], strict=True))


@pytest.mark.parametrize("options", [{}, ALL], ids=["plain", "options"])
@pytest.mark.parametrize("kind", MASKING)
def test_each_document_is_what_it_is_alone(kind, options):
    _, model, tokens = build(kind, **({"model.attention": options, "norm.qk": "none"} if options else {}))
    found = model(mark_starts(tokens, END))
    model.masks_documents = False
    whole = model(tokens)
    for row in range(2):
        for first, last in cut(tokens[row].tolist()):
            alone = model(tokens[row : row + 1, first:last])
            # rotary angles are rounded to float32, and differ with the place in the window
            torch.testing.assert_close(found[row : row + 1, first:last], alone, rtol=1e-4, atol=2e-5)
    assert (found - whole).abs().max() > 0.1


def test_attention_is_that_of_a_mask_written_out(monkeypatch):
    """The same places, so that nothing is rounded."""
    _, model, tokens = build()
    found = model(mark_starts(tokens, END))
    mask = torch.zeros(2, 1, 24, 24, dtype=torch.bool)
    for row in range(2):
        for first, last in cut(tokens[row].tolist()):
            for place in range(first, last):
                mask[row, 0, place, first : place + 1] = True

    def attend(q, k, v, attn_mask=None, is_causal=False, enable_gqa=False):
        k, v = (part.repeat_interleave(2, 1) for part in (k, v))
        logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        return logits.softmax(-1) @ v

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    model.masks_documents = False
    torch.testing.assert_close(found, model(tokens), rtol=1e-10, atol=1e-10)


def test_marks_are_read_as_they_were_made():
    tokens = torch.tensor([[5, END, 0, 4, END], [END, END, 6, 7, 8]])
    marked = mark_starts(tokens, END)
    assert (marked < 0).tolist() == [[False, False, True, False, False], [False, True, True, False, False]]
    read, mask = read_starts(marked)
    assert torch.equal(read, tokens)
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]
    ]  # fmt: skip


def test_the_windows_of_files_are_marked_in_training_and_validation(tmp_path):
    lines = [f'{{"text": "{number} {"a" * (number % 7)}"}}' for number in range(400)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    data = {"kind": "text", "files": str(tmp_path / "lines.jsonl"), "seq_len": 16}
    marked, plain = (
        Experiment.from_mapping({"data": {**data, "mask_documents": masked}}).data.load(tmp_path)
        for masked in (True, False)
    )
    for side in ("train", "val"):
        (ours, targets), (theirs, same) = (getattr(corpus, side).__getitems__([0, 1]) for corpus in (marked, plain))
        assert torch.equal(targets, same)
        assert torch.equal(ours, mark_starts(theirs, 0))  # a zero byte ends a document
        assert (ours < 0).any()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"model": "gru"}, r"data\.mask_documents: model gru cannot mask documents\. Accepted: llama"),
        ({"data.end_of_text": "none"}, r"data\.mask_documents: no token separates them"),
        ({"model.attention.qk_clip": 1.0}, r"model\.attention\.qk_clip: clips by logits of all tokens before"),
        (
            {"data": {"kind": "text", "files": "a.txt", "layout": "documents", "mask_documents": True}},
            r"data\.mask_documents: each row is one document",
        ),
    ],
)
def test_what_cannot_be_masked_is_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        Experiment.from_mapping({"data": {"kind": "packages", "mask_documents": True}, **settings})
