"""The hook that lets a torchvision without its compiled operators be imported, each time in a fresh process."""

import subprocess
import sys

import pytest
import torchvision.extension

from ablate.config import torchvision_repair


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def output(code):
    done = run(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_everything_imports_after_ablate():
    found = output(
        "import ablate, torchvision, timm, lightning, torch\n"
        "from torchvision.transforms import v2\n"
        "from torchvision.extension import _has_ops\n"
        "print(_has_ops(), hasattr(torch.ops.torchvision, 'nms'))"
    )
    assert found == [str(torchvision.extension._has_ops()), "True"]


def test_the_hook_is_needed_only_where_the_operators_are_missing():
    plain = run("import torchvision")
    if torchvision.extension._has_ops():
        assert plain.returncode == 0, plain.stderr
    else:
        assert "operator torchvision::nms does not exist" in plain.stderr


def test_ablate_alone_imports_nothing_heavy():
    found = output(
        "import sys, ablate\n"
        "print([m for m in ('torch', 'torchvision', 'timm', 'lightning', 'pydantic') if m in sys.modules])"
    )
    assert found == ["[]"]


def test_installed_once():
    found = output(
        "import sys, importlib, ablate\n"
        "from ablate.config import torchvision_repair\n"
        "torchvision_repair.install(); importlib.reload(ablate)\n"
        "print(sum(isinstance(f, torchvision_repair._Hook) for f in sys.meta_path))"
    )
    assert found == ["1"]


def test_too_late_it_is_not_installed():
    """This process has torchvision already: a second hook would never be asked."""
    before = list(sys.meta_path)
    torchvision_repair.install()
    assert sys.meta_path == before


def test_nothing_is_defined_on_a_matching_install(monkeypatch):
    import torch

    def refuse(*_):
        raise AssertionError("a library was opened")

    monkeypatch.setattr(torchvision.extension, "_has_ops", lambda: True)
    monkeypatch.setattr(torch.library, "Library", refuse)
    libraries = list(torchvision_repair._libraries)
    assert torchvision_repair.define_missing_operators() is False
    assert torchvision_repair._libraries == libraries


@pytest.mark.parametrize("name", ["torchvision", "torch", "torchvision.ops", "ablate.config.torchvision_repair"])
def test_other_modules_are_none_of_its_business(name):
    assert torchvision_repair._Hook().find_spec(name, None) is None


def test_a_missing_torchvision_stays_missing():
    assert torchvision_repair._Hook().find_spec(torchvision_repair._TARGET, []) is None
