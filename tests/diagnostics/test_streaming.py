"""A measurement that is stopped goes on to the same numbers."""

import pytest
import torch
from diagnostics.models import Network, Scaled, subject_of

from ablate.diagnostics import streaming
from ablate.diagnostics.measures import Angular, Jacobian, Pruning, Subject, Variance
from ablate.diagnostics.streaming import measure

KINDS = [Angular, Pruning, Jacobian, Variance]


@pytest.fixture
def subject():
    torch.manual_seed(0)
    model = Network([Scaled(8, 1.0) for _ in range(2)], 11)
    return subject_of(model, torch.randn(10, 4, 8), torch.randint(11, (10, 4)))


def test_it_goes_on_where_it_was(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "SAVED_EVERY", 0.0)
    undisturbed = measure(subject, KINDS, batch_tokens=8)
    loaded = []

    def load(first, last, stop=5):
        loaded.append(first)
        if len(loaded) == stop:
            raise KeyboardInterrupt
        return subject.load(first, last)

    again = Subject("m", subject.layers, subject.forward, 10, load, 4, "tokens")
    with pytest.raises(KeyboardInterrupt):
        measure(again, KINDS, batch_tokens=8, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert measure(again, KINDS, batch_tokens=8, folder=tmp_path) == undisturbed
    assert loaded == [0, 2, 4, 6, 8, 8]
    assert not list(tmp_path.iterdir())


def test_another_measurement_does_not_go_on_from_it(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "SAVED_EVERY", 0.0)

    def load(first, last):
        if first >= 4 and not loaded:
            loaded.append(first)
            raise KeyboardInterrupt
        return subject.load(first, last)

    loaded = []
    again = Subject("m", subject.layers, subject.forward, 10, load, 4, "tokens")
    with pytest.raises(KeyboardInterrupt):
        measure(again, KINDS, batch_tokens=8, folder=tmp_path)
    assert measure(again, KINDS, batch_tokens=4, folder=tmp_path) == measure(subject, KINDS, batch_tokens=4)


def test_a_state_that_is_damaged_is_not_used(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "SAVED_EVERY", 0.0)
    undisturbed = measure(subject, KINDS, batch_tokens=8)
    monkeypatch.setattr(streaming, "_key", lambda *arguments: "key")
    (tmp_path / ".state-key.pt").write_bytes(b"half a file")
    assert measure(subject, KINDS, batch_tokens=8, folder=tmp_path) == undisturbed
