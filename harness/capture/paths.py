"""Which requests of a recording are played."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from mmrepro.capture.messages import GENERATE, Unusable
from mmrepro.case.model import CHAT, COMPLETIONS

_PLAYED: Final = (("/chat/completions", CHAT), ("/completions", COMPLETIONS), (GENERATE, GENERATE))
_KNOWN: Final = re.compile(
    r"/(?:v1/(?:models|embeddings|responses|messages|score|rerank)|health|metrics|tokenize|ping)/?$"
)


def played_path(address: str) -> str:
    """The path under which it is played, whatever a gateway put before it.

    Raises:
        Unusable: it is no request of the kind; says so without the address.
    """
    try:
        path = urlsplit(address).path.rstrip("/")
    except ValueError as error:
        raise Unusable("an entry without an address") from error
    for end, played in _PLAYED:
        if path.endswith(end):
            return played
    known = _KNOWN.search(path)
    raise Unusable(f"POST to {known[0]}" if known else "POST to another path")
