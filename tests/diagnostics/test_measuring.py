"""Complete measurements are stored, and read for the same weights, data and settings alone."""

from dataclasses import replace

import pytest
import torch
from diagnostics.models import Network, Scaled, subject_of

from ablate.diagnostics import measuring
from ablate.diagnostics.measures import Angular, Jacobian, Options, Pruning, Subject, Variance
from ablate.diagnostics.measuring import measure

KINDS = [Angular, Pruning, Jacobian, Variance]


@pytest.fixture
def subject():
    torch.manual_seed(0)
    model = Network([Scaled(8, 1.0) for _ in range(2)], 11)
    return subject_of(model, torch.randn(10, 4, 8), torch.randint(11, (10, 4)))


def test_a_stopped_measurement_keeps_what_was_complete(subject, tmp_path):
    def load(first, last):
        loaded.append(first)
        if len(loaded) == 7:
            raise KeyboardInterrupt
        return subject.load(first, last)

    loaded = []
    again = Subject("m", subject.layers, subject.forward, 10, load, 4, "tokens")
    with pytest.raises(KeyboardInterrupt):
        measure(again, KINDS, batch_tokens=8, results=tmp_path)
    assert measure(again, KINDS, batch_tokens=8, results=tmp_path) == measure(subject, KINDS, batch_tokens=8)
    assert loaded == [*range(0, 10, 2), 0, 2, *3 * [*range(0, 10, 2)]]
    assert len(list(tmp_path.iterdir())) == len(KINDS)


def count_loads(subject, **changes):
    """The subject, and the list that it notes the first item of each batch in."""
    loaded = []

    def load(first, last):
        loaded.append(first)
        return subject.load(first, last)

    return replace(subject, load=load, **changes), loaded


def test_what_was_measured_is_read_and_only_the_rest_is_taken(subject, tmp_path):
    taken = measure(subject, [Angular, Pruning], batch_tokens=8, results=tmp_path)
    counted, loaded = count_loads(subject)
    assert measure(counted, [Angular, Pruning], batch_tokens=8, results=tmp_path) == taken
    assert not loaded
    more = measure(counted, [Variance, Angular], batch_tokens=8, results=tmp_path)
    assert loaded == [0, 2, 4, 6, 8]
    assert (list(more), more["angular"]) == (["variance", "angular"], taken["angular"])
    for file in tmp_path.iterdir():
        file.write_text("half a")
    assert measure(counted, [Angular, Pruning], batch_tokens=8, results=tmp_path) == taken


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"identity": "other weights"}, {}, {}),
        ({}, {"positions": "last"}, {}),
        ({}, {}, {"tokens": 8}),
        ({}, {}, {"batch_tokens": 12}),
    ],
)
def test_what_was_measured_otherwise_is_not_read(subject, tmp_path, changes, options, words):
    words = {"batch_tokens": 8, **words}
    measure(subject, [Angular], batch_tokens=8, results=tmp_path)
    counted, loaded = count_loads(subject, **changes)
    measure(counted, [Angular], Options(**options), results=tmp_path, **words)
    assert loaded


def test_a_gpu_has_its_own_numbers(subject):
    gpu = replace(subject, device=torch.device("cuda", 1))
    words = Angular, Options(), 10, 2
    assert measuring._key(gpu, *words) != measuring._key(subject, *words)
    assert measuring._key(gpu, *words) == measuring._key(replace(gpu, device=torch.device("cuda", 0)), *words)


@pytest.mark.parametrize("identity", ["piqa", None])  # None: functions of the user's own
def test_scores_belong_to_layer_removal_alone(subject, tmp_path, identity):
    taken = measure(subject, [Angular, Pruning], results=tmp_path)
    counted, loaded = count_loads(subject)
    scored = Options(metrics={"one": lambda model: 1.0}, metrics_identity=identity)
    assert measure(counted, [Angular], scored, results=tmp_path)["angular"] == taken["angular"]
    assert not loaded
    assert measure(counted, [Pruning], scored, results=tmp_path)["pruning"].has("one_change")
    assert loaded
    for _ in range(2):
        loaded.clear()
        measure(counted, [Pruning], scored, results=tmp_path)
    assert bool(loaded) == (identity is None)
