"""How often a run is validated, and on how much: a tenth of its training where nothing says it."""

import itertools

import pytest

from ablate.experiment.tree import Experiment

LEAST = {"topics": 16_384, "text": 16_384, "instructions": 16_384, "digits": 256}  # tokens or images


def experiment(**settings):
    return Experiment.from_mapping({key.replace("__", "."): value for key, value in settings.items()})


def describe_kind(kind, length):
    if kind == "digits":
        return {"model": "vit-digits", "data": kind}
    return {"data": {"kind": kind, "seq_len": length, **({} if kind == "topics" else {"files": "a.jsonl"})}}


@pytest.mark.parametrize("kind", LEAST)
def test_all_validations_together_cost_a_tenth_of_training_unless_that_is_too_little_to_say_anything(kind):
    for steps, batch, length in itertools.product((1, 7, 20, 300, 20_000), (2, 16, 512), (64, 1000)):
        run = Experiment.from_mapping(
            describe_kind(kind, length), {"trainer": {"max_steps": steps, "batch_size": batch}}
        )
        validation, size = run.validation, 1 if kind == "digits" else length
        updates = [step for step in range(1, steps + 1) if step % validation.interval == 0 or step == steps]
        assert len(updates) == validation.times <= 6
        cost, training = len(updates) * validation.samples / 3, steps * batch
        least = -(-LEAST[kind] // size)
        assert validation.samples >= least
        if cost > 0.1 * training:
            assert (validation.samples, validation.times) == (least, 1)
            assert "trainer.val_samples" in validation.describe([10**9])
        elif training >= 10 * 6 * least:  # it is not spared either
            assert cost > 0.1 * training - validation.times
        assert validation.compute_share([10**9]) == pytest.approx(cost / (cost + training))


def test_it_depends_on_nothing_but_the_length_the_batch_and_the_data():
    same = experiment().validation
    others = {"seed": 7, "norm": "post", "optimizer.lr": 1.0, "model.layers": 1, "trainer.precision": "bf16-mixed"}
    for path, value in others.items():
        assert Experiment.from_mapping({path: value}).validation == same
    assert experiment(trainer__max_steps=20).validation != same


@pytest.mark.parametrize(
    ("settings", "interval", "samples"),
    [
        ({"trainer.val_check_interval": 2}, 2, 64),
        ({"trainer.val_check_interval": 50}, 20, 96),
        ({"trainer.val_samples": 32}, 7, 32),
        ({"trainer.val_samples": 5000}, 20, 5000),
        ({"trainer.val_samples": "all"}, 4, None),
        ({"trainer.val_samples": "all", "trainer.val_check_interval": 1}, 1, None),
        ({"data.val_tokens": 257 * 40}, 10, None),
        ({"data.val_tokens": 257 * 400}, 20, None),
        ({"data.val_tokens": 257 * 40, "trainer.val_samples": 10}, 4, 10),
    ],
)
def test_what_is_asked_for_is_done(settings, interval, samples):
    base = {"data": {"kind": "text", "files": "a.txt", "seq_len": 256}, "trainer": {"max_steps": 20, "batch_size": 16}}
    validation = Experiment.from_mapping(base, settings).validation
    assert (validation.interval, validation.samples) == (interval, samples)


def test_each_forward_pass_counts():
    base = {"data": {"kind": "text", "files": "a.txt"}, "trainer": {"max_steps": 6000, "batch_size": 16}}
    further = {"data.val_sets": {"wiki": {"files": "b.txt"}}}
    whole, average, both = (
        Experiment.from_mapping(base, more).validation for more in ({}, {"trainer.ema_decay": 0.9}, further)
    )
    assert whole.samples == 6000 * 16 * 0.3 / 6
    assert average.samples == both.samples == whole.samples // 2
    assert average.compute_share([9000]) == pytest.approx(both.compute_share([9000, 9000]))


def test_the_ten_million_tokens_of_a_dataset_are_not_asked_for():
    short = Experiment.from_mapping({"data": "c4", "trainer": {"max_steps": 20}})
    assert short.validation.samples == 96
    assert short.validation.describe([38_910]).startswith("once, at the end, on 96 of 38,910 sequences (24,576 tokens)")
    long = Experiment.from_mapping({"data": "c4", "trainer": {"max_steps": 10_000, "batch_size": 512}})
    assert long.validation.describe([38_910]).startswith("6 times, every 1,667 updates, on all 38,910 sequences")


@pytest.mark.parametrize(
    ("max_steps", "given", "expected"),
    [(300, None, 50), (7, None, 2), (1, None, 1), (300, 40, 40), (10, 40, 10), (6, None, 1)],
)
def test_the_interval_of_validations_on_all(max_steps, given, expected):
    trainer = {"max_steps": max_steps, "val_check_interval": given, "val_samples": "all"}
    assert Experiment.from_mapping({"trainer": trainer}).validation.interval == expected
