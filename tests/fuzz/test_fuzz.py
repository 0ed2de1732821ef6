"""The fuzzers for a few seconds, always with the same examples; `make fuzz` runs them for half an hour."""

import os

import pytest
from fuzz.bench import Bench
from fuzz.cases import CASES
from hypothesis import HealthCheck, Phase, given, settings

from ablate import tracking

QUICK = {"deadline": None, "derandomize": True, "database": None, "phases": [Phase.generate]}
QUICK["suppress_health_check"] = list(HealthCheck)


@pytest.fixture
def bench(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ABLATE_STORE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return Bench(tmp_path, store)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.quick])
def test_whatever_is_given_ends_in_a_sentence(name, bench):
    case = CASES[name]

    @settings(max_examples=case.quick, **QUICK)
    @given(case.examples)
    def run(example):
        case.check(bench, example)

    run()
    tracking.client.cache_clear()
