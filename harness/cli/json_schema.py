"""JSON Schemas of what commands print as JSON, by command and by ``$id``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from mmrepro.base.records import DocumentHead
from pydantic import BaseModel, TypeAdapter

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_BESIDE: Final[dict[str, dict[str, Any]]] = {
    "urn:mmrepro:incident:1": {
        "runs": {"type": "array", "description": "with --repeat: each run's outcome"}
    },
    "urn:mmrepro:nightly:1": {
        "run": {"type": "object", "description": "of matrix run: what is left to run"}
    },
    "urn:mmrepro:bundle:1": {
        "bundle": {"type": "string"},
        "bytes": {"type": "integer"},
    },
}
"""What is printed beside the fields of a document's class."""


def json_schema(documents: Sequence[str]) -> dict[str, Any]:
    """Return the schema of what is printed: of several documents, any of them.

    ``documents``: where their classes are, as :attr:`Command.DOCUMENTS` has it."""
    if len(documents) == 1:
        return {**_printed(documents[0]), "$schema": _DRAFT}
    definitions: dict[str, Any] = {}
    references = []
    for place in documents:
        schema = _printed(place)
        definitions |= schema.pop("$defs", {})
        name = place.rpartition(":")[2]
        definitions[name] = schema
        references.append({"$ref": f"#/$defs/{name}"})
    return {"anyOf": references, "$defs": definitions, "$schema": _DRAFT}


def _printed(place: str) -> dict[str, Any]:
    """The schema of a document with the head that a command prints before it."""
    kind, record = _class_at(place)
    schema = _flat(TypeAdapter(record).json_schema())
    if not kind and not urn_of(place):
        # It lies in a file, and no command prints it.
        return schema
    head = DocumentHead.model_json_schema()
    fields = dict(head["properties"])
    if kind:
        fields |= {"$id": {"const": urn_of(place)}, "schema_version": {"const": 1}}
    for name, field in schema["properties"].items():
        fields.setdefault(name, field)
    # A document of the same kind in a file has no head: it is not required.
    schema["properties"] = fields | _BESIDE.get(urn_of(place), {})
    return schema


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own fields stand at its top, where it refers to itself too."""
    reference = schema.get("$ref", "").removeprefix("#/$defs/")
    if not reference:
        return schema
    return {**schema["$defs"][reference], "$defs": schema["$defs"]}


def _class_at(place: str) -> tuple[str, type[BaseModel]]:
    """The kind that the command gives to a document, if it names none itself, and its
    class."""
    kind, _, where = place.rpartition("=")
    module, _, name = where.partition(":")
    return kind, getattr(import_module(module), name)


def urn_of(place: str) -> str:
    """The ``$id`` of a document; "": it has none."""
    kind, record = _class_at(place)
    return f"urn:mmrepro:{kind}:1" if kind else getattr(record, "urn", "")
