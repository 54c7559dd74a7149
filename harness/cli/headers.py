"""``--header 'NAME: VALUE'``."""

from __future__ import annotations

from collections.abc import Sequence

from mmrepro.errors import UsageError


def parse_headers(given: Sequence[str]) -> dict[str, str]:
    """Name: value of each. Raises UsageError."""
    headers = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise UsageError(
                "A --header is NAME: VALUE.", hint="--header 'Authorization: Bearer KEY'"
            )
        headers[name.strip()] = value.strip()
    return headers
