"""The fields of a sweep file: few enough to know, and each of use to somebody."""

import re
from pathlib import Path

import pytest

import ablate
from ablate.config.building import json_schema
from ablate.config.yaml import read_yaml

ROOT = Path(__file__).parents[2]
MOST = 49


def list_fields():
    """Each field that holds a value or settings, as a dotted path: a part that stands at several places once, a kind's
    fields with those of the others of its registry, and nothing of the base experiment."""
    schema, found, seen = json_schema(ablate.Sweep), {}, set()

    def walk(path, node):
        if ref := node.get("$ref"):
            if ref in seen or not ref.startswith("#/$defs/"):  # the fields of a file that a size gives anew
                return
            seen.add(ref)
            node = schema["$defs"][ref.rpartition("/")[2]]
        found[path] = found.get(path, False) or node.get("additionalProperties") is True
        for part in (node.get("items"), node.get("additionalProperties"), *node.get("anyOf", ())):
            if isinstance(part, dict):
                walk(path, part)
        for name, field in node.get("properties", {}).items():
            walk(f"{path}.{name}".lstrip("."), field)

    walk("", schema)
    known = [
        path for path, is_settings in found.items() if is_settings or not any(p.startswith(f"{path}.") for p in found)
    ]
    known = [path for path in known if path.partition(".")[0] != "experiment"]
    return [*{*known, "search"} - {"", "search.method"}]  # the method is a field of its own in the schema


FIELDS = list_fields()


def test_a_sweep_file_has_few_fields():
    print(FIELDS)
    assert len(FIELDS) <= MOST


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_file_or_a_page_uses_each(field):
    name = field.rpartition(".")[2]
    used = any(name in list_keys(read_yaml(file)) for file in (ROOT / "sweeps").glob("*.yaml"))
    pages = [file for file in (ROOT / "docs").rglob("*.md") if "reference" not in file.parts]
    shown = re.compile(rf"(?<![\w.]){name}: |{re.escape(field)}=|`{re.escape(field)}`")
    assert used or any(shown.search(page.read_text(encoding="utf-8")) for page in pages)


def list_keys(tree):
    if isinstance(tree, list):
        return {key for item in tree for key in list_keys(item)}
    return {*tree} | {key for item in tree.values() for key in list_keys(item)} if isinstance(tree, dict) else set()
