"""mmrepro: reproduce and diagnose failures of LLM inference engines."""

TYPE_CHECKING = False
"""As of ``typing``, which is not imported: with ``python -m mmrepro`` the current
folder, which may be a stranger's, still comes first here."""
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.2.0"


_API = ("diagnose", "judge", "load", "logs", "replay", "run", "upgrade")


def __getattr__(function: str) -> "Any":
    """The functions of :mod:`mmrepro.api`; importing mmrepro alone loads nothing
    else."""
    if function in _API:
        from importlib import import_module

        # Not by a statement: what a run imports is its key, and no run imports the API.
        return getattr(import_module("mmrepro.api"), function)
    raise AttributeError(f"module 'mmrepro' has no attribute {function!r}")


def __dir__() -> list[str]:
    return [*globals(), *_API]
