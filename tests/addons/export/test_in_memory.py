"""Exported models as transformers, peft and TRL use them: cache, padding, loss, gradient, heads. What a model should
give is taken from ours, which has neither cache nor padding."""

import pytest
import torch
import torch.nn.functional as F
from export.cases import CASES, SEQ, VOCAB, checkpoint

from ablate.addons.export.in_memory import to_hf
from ablate.addons.export.transformers_files import restore_weights
from ablate.training.trained import open_trained

transformers = pytest.importorskip("transformers")

GROUPS = {"norm.layer.groups": 2}


def names(part):
    return part if isinstance(part, str) else " ".join(map(str, part.values()))


def both(folder, settings, auto="AutoModelForCausalLM"):
    """(ours, theirs), of one checkpoint."""
    if settings.get("norm.layer") == "groupnorm":
        settings = {**settings, **GROUPS}
    file, ours = checkpoint(folder, settings)
    return ours, to_hf(open_trained(str(file)), auto)


def draw(*shape):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(3))


def greedy(model, tokens, count):
    """Without any cache: the most probable token of our own model, again and again."""
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    return tokens


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=names)
@torch.no_grad()
def test_cache_and_padding_change_nothing(kind, settings, tmp_path):
    ours, theirs = both(tmp_path, {"norm": kind, **settings})
    tokens = draw(2, 12)
    expected = ours(tokens)
    own = type(theirs).__name__.startswith("Ablate")
    assert torch.equal(theirs(tokens).logits, expected) or not own  # the code of transformers rounds in another way
    torch.testing.assert_close(theirs(tokens).logits, expected, rtol=1e-5, atol=1e-5)

    first = theirs(tokens[:, :7], use_cache=True)  # in three pieces: several tokens after others, then one
    second = theirs(tokens[:, 7:11], past_key_values=first.past_key_values, use_cache=True)
    third = theirs(tokens[:, 11:], past_key_values=second.past_key_values, use_cache=True)
    pieces = torch.cat([first.logits, second.logits, third.logits], 1)
    torch.testing.assert_close(pieces, expected, rtol=1e-4, atol=1e-4)

    padding = draw(2, 4)  # whatever stands there
    mask = torch.tensor([[0] * 4 + [1] * 12] * 2)
    padded = theirs(torch.cat([padding, tokens], 1), attention_mask=mask).logits
    torch.testing.assert_close(padded[:, 4:], expected, rtol=1e-4, atol=1e-4)
    padded = theirs(torch.cat([tokens, padding], 1), attention_mask=mask.flip(1)).logits
    torch.testing.assert_close(padded[:, :12], expected, rtol=1e-4, atol=1e-4)

    made = greedy(ours, tokens[:, :5], 6)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    theirs.generation_config.eos_token_id = None  # the zero byte may come
    for use_cache in (True, False):
        assert torch.equal(theirs.generate(tokens[:, :5], use_cache=use_cache, **options), made)
    short, long = greedy(ours, tokens[:1, :3], 6)[:, 3:], greedy(ours, tokens[1:, :5], 6)[:, 5:]
    left = torch.stack([torch.cat([torch.zeros(2, dtype=torch.long), tokens[0, :3]]), tokens[1, :5]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    for use_cache in (True, False):
        found = theirs.generate(left, attention_mask=mask, use_cache=use_cache, **options)
        assert torch.equal(found[:, 5:], torch.cat([short, long]))


def test_the_hidden_state_under_the_prefix_gives_the_logits(tmp_path):
    ours, theirs = both(tmp_path, {"norm": "b2t"})
    tokens = draw(2, SEQ)
    base = getattr(theirs, theirs.base_model_prefix)
    out = base(tokens, output_hidden_states=True)
    torch.testing.assert_close(theirs.get_output_embeddings()(out.last_hidden_state), ours(tokens))
    assert len(out.hidden_states) == len(ours.layers) + 1
    seen = []
    handles = [layer.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for layer in ours.layers]
    ours(tokens)
    for handle in handles:
        handle.remove()
    for theirs_at, ours_at in zip(out.hidden_states, seen, strict=False):
        torch.testing.assert_close(theirs_at, ours_at)
    alone = to_hf(open_trained(str(tmp_path / "last.ckpt")), "AutoModel")
    assert torch.equal(alone(tokens).last_hidden_state, out.last_hidden_state)
    kept = theirs(tokens, logits_to_keep=2).logits
    torch.testing.assert_close(kept, ours(tokens)[:, -2:])
    by_embedding = theirs(inputs_embeds=theirs.get_input_embeddings()(tokens)).logits
    torch.testing.assert_close(by_embedding, ours(tokens))


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_loss_and_gradient_are_those_of_our_model(recompute, tmp_path):
    ours, theirs = both(tmp_path, {"norm": "mix"})
    tokens = draw(3, SEQ)
    labels = tokens.clone()
    labels[:, :5] = -100
    labels[1] = -100
    logits = ours(tokens)
    expected = F.cross_entropy(logits[[0, 2], 4:-1].flatten(0, 1), tokens[[0, 2], 5:].flatten())
    expected.backward()
    theirs.train()
    if recompute:
        theirs.gradient_checkpointing_enable()
    loss = theirs(tokens, labels=labels).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    found = {name.removeprefix("model.net."): p.grad for name, p in theirs.named_parameters()}
    for name, p in ours.named_parameters():
        torch.testing.assert_close(found[name], p.grad, msg=name)


@pytest.mark.parametrize("kind", ["pre", "deepnorm"])
def test_a_head_of_scores_reads_the_last_token(kind, tmp_path):
    ours, scorer = both(tmp_path, {"norm": kind}, "AutoModelForSequenceClassification")
    assert scorer.num_labels == 2
    assert scorer.score.weight.std().item() > 0
    scorer.config.pad_token_id = 0
    tokens = draw(2, 10).clamp(min=1)
    mask = torch.ones(2, 13, dtype=torch.long)
    states = []
    ours.norm.register_forward_hook(lambda *args: states.append(args[2]))
    ours(tokens)
    expected = scorer.score(states[0][:, -1])
    blank = torch.zeros(2, 3, dtype=torch.long)
    for ids, mask in (
        (torch.cat([tokens, blank], 1), torch.tensor([[1] * 10 + [0] * 3] * 2)),
        (torch.cat([blank, tokens], 1), torch.tensor([[0] * 3 + [1] * 10] * 2)),
        (tokens, None),
    ):
        torch.testing.assert_close(scorer(ids, attention_mask=mask).logits, expected, rtol=1e-4, atol=1e-4)


def test_the_vocabulary_keeps_its_size(tmp_path):
    _, theirs = both(tmp_path, {"norm": "post"})
    assert theirs.resize_token_embeddings(VOCAB) is theirs.get_input_embeddings()
    with pytest.raises(ValueError, match=f"has {VOCAB} tokens, and its embedding cannot be resized"):
        theirs.resize_token_embeddings(VOCAB + 1)
    with pytest.raises(ValueError, match="attention_mask is over 3 tokens, and there are 0 \\+ 2"):
        theirs(draw(1, 2), attention_mask=torch.tensor([[0, 1, 1]]))


def test_a_model_of_this_process_is_saved_and_found_by_the_auto_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    _, theirs = both(tmp_path, {"norm": "lns", "model.tie_embeddings": True})
    theirs.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    tokens = draw(1, SEQ)
    assert torch.equal(again(tokens).logits, theirs(tokens).logits)
    assert again.lm_head.weight is again.get_input_embeddings().weight
    options = {"trust_remote_code": True, "num_labels": 1}
    scorer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", **options)
    assert scorer(tokens).logits.shape == (1, 1)
    assert float(scorer.score.weight.detach().std()) == pytest.approx(0.02, rel=0.6)
    base = transformers.AutoModel.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    assert torch.equal(base(tokens).last_hidden_state, theirs.model(tokens).last_hidden_state)


@pytest.mark.parametrize("kind", ["pre", "mix"])
def test_peft_adapts_it(kind, tmp_path):
    peft = pytest.importorskip("peft")
    _, theirs = both(tmp_path, {"norm": kind})
    tokens = draw(2, SEQ)
    before = theirs(tokens).logits.detach()
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch.testing.assert_close(wrapped(tokens).logits, before)
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    losses = []
    for _ in range(5):
        loss = wrapped(tokens, labels=tokens).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    merged = wrapped.merge_and_unload()
    assert not torch.equal(merged(tokens).logits, before)
    assert type(merged) is type(theirs)


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=names)
def test_weights_that_were_trained_there_come_back_by_our_names(kind, settings, tmp_path):
    more = GROUPS if settings.get("norm.layer") == "groupnorm" else {}
    file, ours = checkpoint(tmp_path, {"norm": kind, **settings, **more})
    source = open_trained(str(file))
    theirs = to_hf(source)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(2)  # exact
    found = restore_weights(source, theirs.state_dict())
    assert found.keys() == ours.state_dict().keys()
    for name, parameter in ours.named_parameters(remove_duplicate=False):
        assert torch.equal(found[name], 2 * parameter), name
