"""What was sent to a server as a secret, taken out of whatever comes back, byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, quote_plus

Mask = Callable[[bytes], bytes]


def unmasked(data: bytes) -> bytes:
    return data


def mask_of(placeholders: Mapping[str, str]) -> Mask:
    """Replaces each secret by its placeholder: as it is, and as JSON, URLs and Python write it, in
    any case. For files that are too large, or too raw, for a ``Redactor``."""
    forms: dict[bytes, bytes] = {}
    for secret, placeholder in placeholders.items():
        written = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}
        written |= {quote(secret, safe=""), quote_plus(secret)}
        forms |= {form.encode().lower(): placeholder.encode() for form in written if form}
    if not forms:
        return unmasked
    longest_first = sorted(forms, key=len, reverse=True)
    found = re.compile(b"|".join(re.escape(form) for form in longest_first), re.IGNORECASE)
    return lambda data: found.sub(lambda match: forms[match[0].lower()], data)
