"""mmrepro: reproduce and diagnose failures of LLM inference engines."""

TYPE_CHECKING = False
"""As of ``typing``, which is not imported: with ``python -m mmrepro`` the current
folder, which may be a stranger's, still comes first here."""
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.2.0"


_API = ("diagnose", "judge", "load", "logs", "replay", "run", "upgrade")
_ERRORS = (
    "BadIncident",
    "BrokenScenario",
    "ChangedIncident",
    "EngineStartError",
    "InfrastructureError",
    "MmreproError",
    "UnknownRelease",
    "UnknownScenario",
    "UsageError",
)


def __getattr__(name: str) -> "Any":
    """The functions of :mod:`mmrepro.api` and its errors, which type checkers read in
    ``__init__.pyi``; importing mmrepro alone loads nothing else."""
    if name in (*_API, *_ERRORS):
        from importlib import import_module

        module = "mmrepro.api" if name in _API else "mmrepro.base.errors"
        # Not by a statement: what a run imports is its key, and no run imports the API.
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'mmrepro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_API, *_ERRORS]
