"""The progress of a run: lines now and then in a file, a bar on a terminal."""

import io
import re

import pytest
from rich.console import Console

from ablate.experiment.tree import Experiment
from ablate.training.progress import RunProgress, describe_run


def show(steps, seconds_per_update, every=10, done=0, **console):
    """What is written of a run of `steps` updates that each take so long; told every so many updates."""
    now = 0.0
    experiment = Experiment.from_mapping({"trainer": {"max_steps": steps, "batch_size": 4}, "data.seq_len": 25})
    written = io.StringIO()
    progress = RunProgress(Console(file=written, width=200, **console), experiment, lambda: now)
    with progress.show():
        if done:
            progress.begin_at(done)
        for step in range(done + 1, steps + 1):
            now += seconds_per_update
            if step == 1 or step % every == 0 or step == steps:
                progress.advance(step, 4.5)
    return written.getvalue()


def test_the_first_line_says_how_the_learning_rate_is_scaled():
    model = {"model.hidden": 128, "model.layers": 6, "parametrization.base": {"hidden": 64, "layers": 4}}

    def tell(kind):
        return describe_run(Experiment.from_mapping({**model, "parametrization.kind": kind, "optimizer.lr": 2e-3}))

    assert "learning rate 0.002, mup from base hidden 64 (m = 2), seed" in tell("mup")
    assert "0.002, complete_p from base hidden 64, layers 4 (m = 2, k = 1.5), seed" in tell("complete_p")
    plain = describe_run(Experiment.from_mapping({"optimizer.lr": 2e-3}))
    assert "learning rate 0.002, seed" in plain


def test_the_first_line_has_the_options_of_the_attention():
    gated = describe_run(Experiment.from_mapping({"model.attention": {"gate": "headwise", "temperature": True}}))
    assert "training llama, norm pre, attention.gate=headwise, attention.temperature=True, on " in gated


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"norm": "prores", "model.layers": 6, "trainer.max_steps": 3000},
            "a branch at 0.5 of its size; all are whole after 6,000",
        ),
        (
            {"norm": {"kind": "gpas", "base": {"kind": "mix", "alpha": 0.1}}, "model.layers": 4},
            "all are pre",
        ),
        ({"norm": {"kind": "mhc", "n": 1}}, "mhc: one stream (n=1) was worse"),
        ({"norm": "prores", "model.layers": 6, "trainer.max_steps": 6000}, ""),
        ({"norm": {"kind": "mix", "alpha": 0}}, ""),
    ],
)
def test_what_may_be_a_mistake_follows_the_first_line(settings, told):
    first, *cautions = describe_run(Experiment.from_mapping(settings)).splitlines()
    assert first.startswith("training llama")
    assert len(cautions) == bool(told)
    assert told in "".join(cautions)


def test_each_line_says_the_rate_and_the_time_that_is_left():
    lines = show(300, 2.0).splitlines()
    assert lines[0] == "update 1/300: loss 4.5000"  # nothing is known of the rate yet
    assert lines[1] == "update 10/300: loss 4.5000, 50 tokens/s, 9.7 min left"  # 100 tokens in 2 s; 290 * 2 s
    assert lines[-1] == "update 300/300: loss 4.5000, 50 tokens/s, 0.0 s left"


@pytest.mark.parametrize(
    ("steps", "seconds", "fewest", "most"),
    [(300, 0.01, 1, 1), (300, 1, 10, 22), (100_000, 0.01, 10, 67), (100_000, 1, 150, 170), (2_000, 100, 100, 201)],
)
def test_a_log_file_has_a_line_now_and_then(steps, seconds, fewest, most):
    text = show(steps, seconds)
    assert fewest <= len(text.splitlines()) <= most
    assert "\r" not in text
    assert "\x1b" not in text


def test_a_run_that_goes_on_counts_its_own_updates():
    assert show(300, 2.0, done=200).splitlines()[1] == "update 220/300: loss 4.5000, 50 tokens/s, 2.7 min left"


def test_a_terminal_has_a_bar_that_goes():
    text = show(30, 1.0, force_terminal=True, color_system=None)
    assert "update" in text
    assert "30/30" in text
    assert re.search(r"loss 4\.5000, 100 tokens/s, 0\.0 s left", text)
    assert "update 10/30: loss" not in text
