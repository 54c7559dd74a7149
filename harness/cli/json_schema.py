"""``--json-schema``: the JSON Schema of what a command's ``--json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Union

from pydantic import TypeAdapter

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(documents: Sequence[str]) -> dict[str, Any]:
    """Return the schema of the documents: of several, any of them.

    ``documents``: where their classes are, as :attr:`Command.DOCUMENTS` has it."""
    classes = []
    for place in documents:
        module, _, name = place.partition(":")
        classes.append(getattr(import_module(module), name))
    any_of_them: Any = Union[tuple(classes)]  # noqa: UP007
    schema = TypeAdapter(any_of_them).json_schema()
    return {**schema, "$schema": _DRAFT}
