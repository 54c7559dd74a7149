"""For stand-ins: a line of the log, and a change to a module at the moment it is
imported."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Change = Callable[[ModuleType], None]


def say(stand_in: str, what: str) -> None:
    """One whole line in one write: several processes share the log."""
    os.write(
        2, f"\nmmrepro stand-in {stand_in}: {what} (process {os.getpid()})\n".encode()
    )


class _ChangingLoader(Loader):
    """Lets the real loader do its work, then changes the module."""

    def __init__(self, real: Loader, changes: Sequence[Change]) -> None:
        self.real = real
        self.changes = changes

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        for change in self.changes:
            change(module)

    def __getattr__(self, name: str) -> object:  # get_source, get_code, path, …
        return getattr(self.real, name)


class _BootFinder(MetaPathFinder):
    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.changes:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, self.changes[name])
        return spec


_finder = _BootFinder()


def after_import(name: str, change: Change) -> None:
    """Call ``change`` with module ``name`` once it has been imported; now, if it is
    already.

    What ``change`` raises fails the engine's import: a stand-in never half works in
    silence."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.changes.setdefault(name, []).append(change)
