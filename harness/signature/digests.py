"""Digests that stacks show against digests that logs name: is it one and the same key?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from mmrepro.signature.decide import Finding

LOCAL = re.compile(r"['\"]([0-9a-f]{16,128})[.…]*['\"]?")
"""A digest as py-spy prints a local: quoted, and cut when it is long."""


def digest_in(value: str) -> str:
    """The digest that py-spy printed of a local; "" when it printed anything else.

    A sample that pauses nothing may read a local while it is replaced, and prints whatever lay
    there: another object, a number. That is no reading of the key.
    """
    digest = LOCAL.fullmatch(value.strip())
    return digest[1] if digest else ""


def short_hash(text: str) -> str:
    return text[:16] + "…" if len(text) > 17 else text


def same_digest(keys: Sequence[str], named: Collection[str], shown: str) -> Finding:
    """Whether ``keys``, one of each sample that read it, are digests that the log names.

    Unknown where the samples disagree: one of them may be torn, or the work goes on.

    Args:
        shown: what the stacks tell of the key, e.g. "popitem evicts".
    """
    if not keys:
        return Finding.unknown("no stack sample shows the key")
    if not named:
        return Finding.unknown("the log names no digest to compare with")
    often = ", ".join(f"{n} × {short_hash(key)}" for key, n in Counter(keys).most_common(5))
    text = f"{shown} {often}; the log names {', '.join(sorted(map(short_hash, named)))}"
    fits = {any(digest.startswith(key) for digest in named) for key in keys}
    return Finding.unknown(text) if len(fits) > 1 else Finding.of(fits.pop(), text)
