"""Tasks of the harness by name, without an index of all of them."""

from pathlib import Path

import pytest

from ablate.config.errors import AblateError

pytest.importorskip("lm_eval")
import lm_eval.tasks as harness

from ablate.evaluation.catalog import FOLDERS, _list_names, _read_declarations, index_tasks

ROOT = Path(harness.__file__).parent


def test_the_folders_of_common_tasks_are_those_that_declare_them():
    declared = _read_declarations(ROOT)
    assert {name: declared[name] for name in FOLDERS} == {name: {ROOT / place} for name, place in FOLDERS.items()}


@pytest.mark.parametrize("name", ["ai2_arc", "openllm"])
def test_all_that_a_group_or_tag_consists_of_is_found(name):
    """Also from other folders than the group's."""
    index = index_tasks([name]).task_index
    names = set(_list_names(index, [name]))
    assert len(names) > 2
    assert names <= set(index)


def test_a_tag_has_the_tasks_of_all_folders():
    index = index_tasks(["glue"]).task_index
    whole = harness.TaskManager(include_path=ROOT / "glue", include_defaults=False).task_index
    assert index["glue"].tags == whole["glue"].tags
    assert len({index[task].yaml_path.parent for task in index["glue"].tags}) > 1


def test_all_unknown_names_are_told():
    with pytest.raises(AblateError, match=r"unknown task 'pica', 'gsm9k'\. Did you mean piqa\?.*gsm8k"):
        index_tasks(["pica", "piqa", "gsm9k"])
