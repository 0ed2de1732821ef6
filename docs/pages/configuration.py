"""reference/configuration.md and reference/sweep-file.md: every field of an experiment and of a sweep file, from the
JSON schema that `ablate config --schema` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ablate
from ablate.config.building import json_schema
from ablate.config.markdown import build_table
from ablate.config.registry import Registry

Schema = Mapping[str, Any]

_EXPERIMENT = """\
# Configuration of an experiment

Written from the schema by `make docs`; `ablate config --schema` prints it as JSON for editors, and
`ablate config key=value ...` prints a whole configuration with its defaults filled in. A setting is a dotted path:
`optimizer.lr` below is `optimizer.lr=1e-3` on the command line, and `optimizer: {lr: 1.0e-3}` in YAML.
Write `null` in YAML where the table says None. The kind of a part may be given alone: `norm=mix` is `norm.kind=mix`.
"""
_SWEEP = """\
# Sweep file

Written from the schema by `make docs`; `ablate config --schema --sweep` prints it as JSON for editors.
[How to write one](../how-to/sweep.md).
"""
_LARGE = 1_000_000
"""Bounds of this size and above only catch typing errors, and are omitted."""


def build_experiment_page() -> str:
    """Return the page of the configuration, Markdown."""
    return _EXPERIMENT + "\n" + _Page(json_schema(ablate.Experiment)).build("experiment")


def build_sweep_page() -> str:
    """Return the page of the sweep file, Markdown."""
    return _SWEEP + "\n" + _Page(json_schema(ablate.Sweep)).build("sweep")


class _Page:
    """The sections of one schema, each part once, in the order in which the fields refer to them."""

    def __init__(self, schema: Schema) -> None:
        self.schema, self.definitions = schema, schema["$defs"]
        self.headings: dict[str, str] = {}

    def build(self, name: str) -> str:
        """Return the sections, the top level first."""
        self._name_parts(self.schema, "")
        parts = [
            f"## The {name}\n\n{_flatten(self.schema['description'])}\n",
            self._tabulate(self.schema["properties"]),
        ]
        fields = list(self.schema["properties"])
        in_order = sorted(self.headings.items(), key=lambda item: fields.index(item[1].partition(".")[0]))
        return "\n".join([*parts, *(self._describe(*item) for item in in_order)])

    def _name_parts(self, schema: Schema, path: str) -> None:
        """Assign each definition that `schema` refers to the path of its first field as its heading."""
        inner = []
        for field, property_schema in schema.get("properties", {}).items():
            for name, below in _find_references(property_schema, f"{path}{field}"):
                if name not in self.headings:
                    self.headings[name] = below
                    inner.append((name, below))
        for name, below in inner:
            for kind in self._list_kinds(name) or [self.definitions[name]]:
                self._name_parts(kind, f"{below}.")

    def _list_kinds(self, name: str) -> list[Schema]:
        """Return the kinds of a registry; an empty result for a part that is not a registry."""
        return [kind for kind in self.definitions[name].get("anyOf", []) if "properties" in kind]

    def _describe(self, name: str, heading: str) -> str:
        kinds = self._list_kinds(name)
        if not kinds:
            part = self.definitions[name]
            return f"## {heading}\n\n{_flatten(part.get('description', ''))}\n\n{self._tabulate(part['properties'])}"
        registry = next(registry for registry in Registry.all.values() if registry.slug == name)
        presets = [preset for preset in registry.names if preset not in registry]
        shared = _find_shared([kind["properties"] for kind in kinds])
        kind_names = [kind["properties"]["kind"]["const"] for kind in kinds]
        text = f"Kinds of {registry.name}: {', '.join(f'`{kind}`' for kind in kind_names)}."
        if presets:
            text += f" Presets: {', '.join(f'`{preset}`' for preset in presets)}."
        parts = [f"## {heading}\n\n{text}\n"]
        if shared:
            parts.append(f"Every kind has, where its own table does not say otherwise:\n\n{self._tabulate(shared)}")
        for kind, kind_name in zip(kinds, kind_names, strict=True):
            own = {k: v for k, v in kind["properties"].items() if k != "kind" and shared.get(k) != v}
            parts.append(f"### {heading}: {kind_name}\n\n{_flatten(kind.get('description', ''))}\n")
            if own:
                parts.append(self._tabulate(own))
        return "\n".join(parts)

    def _tabulate(self, properties: Schema) -> str:
        rows = [
            (f"`{field}`", self._name_type(schema), _show_default(schema), _flatten(schema.get("description", "")))
            for field, schema in properties.items()
        ]
        return build_table(("field", "type", "default", "meaning"), rows)

    def _name_type(self, schema: Schema) -> str:
        if (place := schema.get("$ref", "")).startswith("#/properties/"):
            return f"as `{place.rpartition('/')[2]}` of the file"
        if "$ref" in schema:
            heading = self.headings[schema["$ref"].rpartition("/")[2]]
            return f"[{heading}](#{heading.replace('.', '').lower()})"
        if "anyOf" in schema:
            if {option.get("type") for option in schema["anyOf"]} >= {"boolean", "number", "string"}:
                return "value"
            names = [self._name_type(option) for option in schema["anyOf"]]
            return " or ".join(name for name in dict.fromkeys(names) if name != "whole number" or "number" not in names)
        if "const" in schema:
            return f"`{schema['const']}`"
        if "enum" in schema:
            return " or ".join(f"`{value}`" for value in schema["enum"])
        kind = schema.get("type")
        if kind == "array":
            items = schema.get("prefixItems")
            if items:
                return f"{len(items)} x {self._name_type(items[0])}"
            return f"list of {self._name_type(schema['items'])}" if "items" in schema else "list"
        if kind == "object":
            values = schema.get("additionalProperties")
            return f"mapping of names to {self._name_type(values)}" if isinstance(values, Mapping) else "mapping"
        words = {"integer": "whole number", "boolean": "true or false", "string": "text", "null": "null"}
        return f"{words.get(str(kind), kind or 'any value')}{_name_bounds(schema)}"


def _find_shared(kinds: Sequence[Schema]) -> Schema:
    """Return the fields that all kinds have, as more than half of them have it; the others may have another default."""
    shared = {}
    for field in kinds[0]:
        if field != "kind" and all(field in kind for kind in kinds):
            schemas = [kind[field] for kind in kinds]
            schema = max(schemas, key=schemas.count)
            if 2 * schemas.count(schema) > len(kinds):
                shared[field] = schema
    return shared


def _find_references(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (definition, path) of the definitions in the type of one field; entries of a mapping are called NAME."""
    if isinstance(schema, Mapping):
        if schema.get("$ref", "").startswith("#/$defs/"):
            yield schema["$ref"].rpartition("/")[2], path
        for key in ("anyOf", "prefixItems"):
            for option in schema.get(key, ()):
                yield from _find_references(option, path)
        yield from _find_references(schema.get("items"), path)
        yield from _find_references(schema.get("additionalProperties"), f"{path}.NAME")


def _name_bounds(schema: Schema) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[key]}" for key, sign in signs.items() if key in schema and abs(schema[key]) < _LARGE]
    return f" {', '.join(bounds)}" if bounds else ""


def _show_default(schema: Schema) -> str:
    if "default" not in schema:
        return "required"
    value = schema["default"]
    if isinstance(value, Mapping) and value:
        return f"`{value['kind']}`" if "kind" in value else "its defaults"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`" if value else '`""`'


def _flatten(text: str) -> str:
    return " ".join(text.split())
