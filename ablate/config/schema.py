"""The JSON schema of a configuration file, for editors."""

from __future__ import annotations

from typing import Any

from ablate.config import plugins
from ablate.config.base import Config
from ablate.config.registry import Registry


def json_schema(cls: type[Config]) -> dict[str, Any]:
    """Return the JSON schema of a configuration file, for editors."""
    plugins.load()
    schema = cls.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    for registry in Registry.all.values():
        definitions[registry.slug] = part = registry.json_schema()
        for kind in part["anyOf"]:  # a kind's own definitions are looked up at the top
            definitions.update(kind.pop("$defs", {}))
    return _refer(schema)


def _refer(schema: Any) -> Any:
    """Return `schema` with references in the place of registries, and of fields that a part has from the whole file."""
    if isinstance(schema, dict):
        for mark, place in (("registry", "$defs"), ("of_file", "properties")):
            if isinstance(name := schema.get(mark), str):
                rest = {key: _refer(value) for key, value in schema.items() if key != mark}
                return {**rest, "$ref": f"#/{place}/{name}"}
        return {key: _refer(value) for key, value in schema.items()}
    return [_refer(item) for item in schema] if isinstance(schema, list) else schema
