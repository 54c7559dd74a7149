"""Whether a server that is being started answers yet."""

from __future__ import annotations

from urllib.request import ProxyHandler, build_opener


def answers(url: str) -> bool:
    """Whether ``url`` is answered with 200 within two seconds, past any proxy."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False
