"""Names of models: what can only be a path is never asked for on the hub, and a name of the hub once."""

import logging

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError

from ablate.config.errors import AblateError
from ablate.config.hub import find_model, is_path
from ablate.config.logs import silence


@pytest.fixture
def asked(monkeypatch):
    """The names that the hub was asked for, which cannot be reached."""
    names = []

    def ask(self, name, timeout):
        names.append(name)
        if name.startswith("-"):
            raise HFValidationError("bad name")
        raise ConnectionError("Name or service\nnot known")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    return names


@pytest.mark.parametrize("name", ["/nowhere/model", "./model", "../model", "~/no-model", ".hidden", "a/b/c"])
def test_a_path_is_not_asked_for_on_the_hub(name, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_path(name)
    with pytest.raises(AblateError, match=f"^There is no folder {name} here"):
        find_model(name)
    assert not asked


def test_a_similar_folder_is_named(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(AblateError, match="Did you mean model"):
        find_model(f"{tmp_path}/modle")


def test_a_name_of_the_hub_is_asked_for_once(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AblateError, match=r"no folder 'a/b' here, .* not be reached .* \(Name or service not known\)"):
        find_model("a/b")
    assert asked == ["a/b"]
    with pytest.raises(AblateError, match="There is no model '-a' on the Hugging Face hub"):
        find_model("-a")


def test_what_is_here_or_in_the_cache_is_not_asked_for(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert find_model("~/model") == f"{tmp_path}/model"
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: f"/cache/{name}/{file}")
    assert find_model("a/b") == "a/b"
    assert not asked


def test_the_lines_of_a_library_are_silenced_and_come_back(caplog):
    logger = logging.getLogger("huggingface_hub.utils._http")
    with silence("huggingface_hub"):
        logger.warning("Retrying in 1s")
        logger.error("shown")
    logger.warning("again")
    assert [record.message for record in caplog.records] == ["shown", "again"]
