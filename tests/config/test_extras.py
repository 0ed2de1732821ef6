"""A library that is not installed is told with the command that installs it."""

import pytest

from ablate.config.errors import AblateError
from ablate.config.extras import import_library


def test_what_is_missing_is_told(monkeypatch, tmp_path):
    assert import_library("json", "hf").loads("1") == 1
    with pytest.raises(AblateError, match=r"needs the library no_such_thing, .* pip install '\.\[eval\]'"):
        import_library("no_such_thing.part", "eval")
    (tmp_path / "broken_thing.py").write_text("import another_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="another_thing"):
        import_library("broken_thing", "hf")
