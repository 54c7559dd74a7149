"""Which plain texts a regular expression cannot match without.

``bytes.find`` runs over a log ten times faster than ``re``; only lines that hold one of these
texts are decoded and shown to the expression itself.
"""

from __future__ import annotations

import re
from re import _constants as sre, _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

MIN_CHARS = 3
MAX_TEXTS = 8


def required_texts(pattern: re.Pattern[str]) -> list[bytes] | None:
    """Texts of which every match holds at least one; None when there are none worth a search.

    Read from the parsed expression (``re._parser``, private but stable since Python 3.11); any
    surprise there means None, which is slower and still right.
    """
    if pattern.flags & re.IGNORECASE:
        return None
    try:
        texts = _of_sequence(sre_parser.parse(pattern.pattern, pattern.flags))
    except Exception:
        return None
    if not texts or min(map(len, texts)) < MIN_CHARS or len(texts) > MAX_TEXTS:
        return None
    try:
        return [text.encode("utf-8") for text in texts]
    except UnicodeEncodeError:
        return None


def exact_texts(pattern: re.Pattern[str]) -> list[bytes] | None:
    """The texts that the expression means, where it means nothing but a few plain texts."""
    if pattern.flags & re.IGNORECASE:
        return None
    try:
        texts = _spelled(sre_parser.parse(pattern.pattern, pattern.flags))
    except Exception:
        return None
    if not texts or min(map(len, texts)) < MIN_CHARS:
        return None
    return [text.encode() for text in texts] if all(map(str.isascii, texts)) else None


def _spelled(items: Any) -> list[str] | None:
    """All texts that the sequence matches; None: not a few plain ones."""
    texts = [""]
    for operation, argument in items:
        if operation is sre.LITERAL and chr(argument).isprintable():
            more: list[str] | None = [chr(argument)]
        elif operation is sre.SUBPATTERN and not argument[1] and not argument[2]:
            more = _spelled(argument[3])
        elif operation is sre.BRANCH:
            parts = [_spelled(branch) for branch in argument[1]]
            more = None if None in parts else [text for part in parts for text in part or ()]
        else:
            return None
        if more is None or len(texts) * len(more) > MAX_TEXTS:
            return None
        texts = [text + end for text in texts for end in more]
    return texts


def _of_sequence(items: Any) -> list[str] | None:
    """The best set of alternatives that some part of the sequence insists on."""
    candidates: list[list[str]] = []
    run: list[str] = []
    for operation, argument in items:
        # Only printable characters: a log's control characters are removed before matching.
        if operation is sre.LITERAL and chr(argument).isprintable():
            run.append(chr(argument))
            continue
        if run:
            candidates.append(["".join(run)])
            run = []
        inner = _of_item(operation, argument)
        if inner:
            candidates.append(inner)
    if run:
        candidates.append(["".join(run)])
    return max(candidates, key=lambda texts: min(map(len, texts)), default=None)


def _of_item(operation: Any, argument: Any) -> list[str] | None:
    if operation is sre.SUBPATTERN:
        _group, added, _removed, inner = argument
        return None if added & re.IGNORECASE else _of_sequence(inner)
    if operation is sre.BRANCH:
        union: list[str] = []
        for branch in argument[1]:
            texts = _of_sequence(branch)
            if not texts:
                return None
            union.extend(texts)
        return union
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, _most, inner = argument
        return _of_sequence(inner) if least >= 1 else None
    return None
