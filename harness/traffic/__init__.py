"""What is sent to an engine: the HTTP client, a scenario's hands, pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrepro.traffic.client import Traffic as Traffic


def __getattr__(name: str) -> object:
    """``Traffic``, when it is first asked for: an HTTP client takes a while to
    import."""
    if name != "Traffic":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mmrepro.traffic.client import Traffic

    return Traffic
