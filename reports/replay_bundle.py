"""One file of a replay to attach to an upstream issue: other words and pictures, redacted."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mmrepro import __version__
from mmrepro.base.units import size
from mmrepro.case.files import case_text, read_contents
from mmrepro.case.model import CASE_FILE, IMAGES_DIR
from mmrepro.errors import UsageError
from mmrepro.incident.replay import REPLAY_FILE, Finding, Replay
from mmrepro.reports import documents, finding as one, issue_form, replay as replays
from mmrepro.reports.bundle import (
    DEFAULT_MAX_BYTES,
    BundledText,
    add_text,
    archived,
    entry,
    written,
)
from mmrepro.reports.bundle_file import MANIFEST_FILE, BundledFile, BundleManifest, LeftOut
from mmrepro.reports.findings import SCRIPT_FILE
from mmrepro.reports.replay_public import public, register
from mmrepro.text.redact import Redactor

ISSUE_FILE: Final = "issue.md"


def write_replay_bundle(
    directory: Path,
    replay: Replay,
    target: Path,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    secrets: Sequence[str] = (),
    force: bool = False,
) -> BundleManifest:
    """Write the bundle of ``replay``, which lies in ``directory``, to ``target`` (a ZIP file).

    Each finding's case has random texts and images in place of those that were played, unless
    those were random already; its script, its reports and its issue are made anew from that.

    Raises:
        UsageError: ``target`` is there already, or the replay alone is larger than the limit.
        UnwritableOutput: it cannot be written.
    """
    redactor = Redactor()
    redactor.reserve(documents.document_json(replay))
    for secret in secrets:
        redactor.add(secret)

    def fill(archive: zipfile.ZipFile) -> BundleManifest:
        return _fill(archive, directory, replay, redactor, max_bytes)

    return archived(target, fill, force)


def _fill(
    archive: zipfile.ZipFile, directory: Path, replay: Replay, redactor: Redactor, max_bytes: int
) -> BundleManifest:
    manifest = BundleManifest(
        mmrepro_version=__version__, incident=replay.id, scenario="replay", files=[]
    )
    everything = [one.finding_of(replay, finding, directory) for finding in replay.findings]
    for loaded in everything:  # all words first: one finding's may stand in another's sentences
        if loaded.case is not None:
            register(loaded.case, redactor)
    shown: list[Finding] = []
    folders: set[str] = set()
    for loaded in everything:
        name = loaded.finding.folder
        if not name or name in folders:
            why = "it has no folder of its own"
            manifest.left_out.append(LeftOut(name=f"finding {loaded.finding.id}", bytes=0, why=why))
            continue
        folders.add(name)
        with public(loaded, redactor) as shared:
            shown.append(shared.finding)
            _finding(archive, manifest, shared)
        if loaded.finding.diagnosis:
            why = "an incident of its own: mmrepro bundle packs it"
            manifest.left_out.append(LeftOut(name=loaded.finding.diagnosis, bytes=0, why=why))
    whole = redactor.redact_model(replay).model_copy(update={"findings": shown})
    texts = {REPLAY_FILE: documents.document_json(whole), **documents.rendered(replays.KIND, whole)}
    for name, text in texts.items():
        add_text(archive, manifest, name, BundledText(text, len(text)))
    if written(archive) > max_bytes:
        raise UsageError(
            f"The replay takes {size(written(archive))}, over the limit of {size(max_bytes)}.",
            hint="mmrepro bundle … --max-mib 25",
        )
    archive.writestr(entry(MANIFEST_FILE), manifest.model_dump_json(indent=1) + "\n")
    return manifest


def _finding(archive: zipfile.ZipFile, manifest: BundleManifest, loaded: one.LoadedFinding) -> None:
    below = loaded.finding.folder
    texts = {
        **documents.rendered(one.KIND, loaded),
        ISSUE_FILE: issue_form.public_issue(loaded),
    }
    if loaded.case is not None:
        texts[CASE_FILE] = case_text(loaded.case)
        if loaded.case.operations:
            texts[SCRIPT_FILE] = one.script_of(loaded)
    for name, text in texts.items():
        add_text(archive, manifest, f"{below}/{name}", BundledText(text, len(text)))
    if loaded.case is not None:
        for sha256, data in read_contents(loaded.case, loaded.folder).items():
            name = f"{below}/{IMAGES_DIR}/{sha256}"
            archive.writestr(entry(name), data)
            manifest.files.append(
                BundledFile(
                    name=name,
                    bytes=len(data),
                    sha256=sha256,
                    original_bytes=len(data),
                    redactions=0,
                )
            )
