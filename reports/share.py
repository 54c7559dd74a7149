"""One page to hand on: the redacted report, with its redacted evidence inside.

It is the page of a bundle, and the bundle itself as a link that saves it, so that what
is shared is what ``mmrepro bundle`` redacts, and nothing besides."""

from __future__ import annotations

import base64
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmrepro.base import units
from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.machine import is_there
from mmrepro.failure.documents import BundleManifest, Incident, replace_file
from mmrepro.failure.documents.replay import Replay
from mmrepro.reports import incident as runs, replay as replays
from mmrepro.reports.bundle import write_bundle
from mmrepro.reports.svg import join, tag

_EVIDENCE: Final = "evidence.zip"
_END: Final = "</main>"


@dataclass(frozen=True)
class SharedPage:
    """A page that was written.

    Attributes:
        manifest: of the bundle that is inside.
        redactions: places that were replaced.
    """

    file: Path
    bytes: int
    manifest: BundleManifest

    @property
    def redactions(self) -> int:
        return sum(file.redactions for file in self.manifest.files)


def write_shared(
    directory: Path,
    made: Incident | Replay,
    target: Path,
    *,
    max_bytes: int,
    secrets: Sequence[str] = (),
    force: bool = False,
    packed: Path | None = None,
) -> SharedPage:
    """Write the page of ``made``, which lies in ``directory``, to ``target``.

    Args:
        max_bytes: of the evidence within it; what does not fit is left out and listed.
        secrets: further texts to be replaced wherever they occur.
        packed: the bundle that ``made`` was read from; None: it is no bundle.

    Raises:
        UsageError: ``target`` is there already, or what has to be in it is too large.
        UnwritableOutput: it cannot be written.
    """
    if is_there(target) and not force:
        raise UsageError(
            f"{target} is there already.", hint="--force, or --out another name"
        )
    kind = runs.KIND if isinstance(made, Incident) else replays.KIND
    with tempfile.TemporaryDirectory(prefix="mmrepro-") as temporary:
        bundle = Path(temporary, _EVIDENCE)
        manifest = write_bundle(
            directory,
            made,
            bundle,
            max_bytes=max_bytes,
            secrets=secrets,
            packed=packed,
        )
        with zipfile.ZipFile(bundle) as archive:
            page = archive.read(kind.files[1]).decode("utf-8")
        evidence = bundle.read_bytes()

    before, end, after = page.rpartition(_END)
    text = before + _section(manifest, evidence) + end + after
    try:
        replace_file(target, text)
    except OSError as error:
        raise UnwritableOutput(
            f"{target} cannot be written: {error.strerror or error}.",
            hint="free some space or check the permissions, or give --out FILE",
        ) from error
    return SharedPage(target, len(text.encode()), manifest)


def _section(manifest: BundleManifest, evidence: bytes) -> str:
    """The list of what is inside, and the link that saves it."""
    encoded = base64.b64encode(evidence).decode("ascii")
    link = tag(
        "a",
        f"{_EVIDENCE} ({units.size(len(evidence), 1)})",
        href=f"data:application/zip;base64,{encoded}",
        download=_EVIDENCE,
    )
    places = units.count(sum(file.redactions for file in manifest.files), "place")
    words = f": {units.count(len(manifest.files), 'file')}, {places} redacted. "
    judge = f"mmrepro judge {_EVIDENCE}"
    told = tag("p", link, words, "Judge it again: ", tag("code", judge), ".")
    names = [tag("li", tag("code", file.name)) for file in manifest.files]
    listed = tag("details", tag("summary", "Files"), tag("ul", join(names)))
    heading = tag("h2", "The evidence is inside", id="evidence-inside")
    return str(tag("section", heading, told, listed))
