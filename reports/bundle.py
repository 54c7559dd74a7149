"""One file to attach to an upstream issue: redacted, listed, checksummed, small.

The incident is redacted again and its reports are made anew from that; raw evidence follows as
text, most telling first, until the limit. What is left out is listed with the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from mmrepro import __version__
from mmrepro.base import units
from mmrepro.errors import UnwritableOutput, UsageError
from mmrepro.evidence import Evidence
from mmrepro.incident import EVIDENCE_DIR, INCIDENT_FILE, Incident
from mmrepro.incident.folder import incident_json
from mmrepro.machine.files import replacing
from mmrepro.probes.data import LogsData, StacksData
from mmrepro.reports import documents, incident as runs
from mmrepro.reports.bundle_file import MANIFEST_FILE, BundledFile, BundleManifest, LeftOut
from mmrepro.text.looks import callers, conversation
from mmrepro.text.opaque import Span, names_a_digest
from mmrepro.text.redact import PLACEHOLDER, Redactor, names_a_secret

DEFAULT_MAX_BYTES: Final = 10 << 20
"""GitHub takes ZIP files of up to 25 MB."""

HEAD_BYTES: Final = 256 << 10
TAIL_BYTES: Final = 2 << 20
"""Of a longer text only so much of its beginning and its end is kept."""

MAX_LINE_CHARS: Final = 16 << 10
MAX_FILES: Final = 5000
MAX_ITEMS: Final = 20_000
"""Of one kind of evidence: a run has some hundreds of requests and events."""
MAX_DEPTH: Final = 100
"""Of JSON that is looked through by its fields: py-spy's has five."""
LEFT_OUT: Final = "[left out]"

_HARMLESS: Final = re.compile(
    r"-?\d[\d_.eE+-]*|None|True|False|<[\w.]+ object at 0x[0-9a-f]+>|(['\"]?[0-9a-f]{16,64}['\"]?)"
)
_ORDER: Final = ("log", "metrics", "json", "txt", "lock", "stacks")


@dataclass(frozen=True)
class BundledText:
    """What goes out of a file; ``original_bytes``: before redaction and trimming."""

    text: str
    original_bytes: int
    note: str = ""


def write_bundle(
    directory: Path,
    incident: Incident,
    target: Path,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    secrets: Sequence[str] = (),
    force: bool = False,
) -> BundleManifest:
    """Write the bundle of ``incident``, which lies in ``directory``, to ``target`` (a ZIP file).

    Args:
        max_bytes: of the finished file; evidence that does not fit is left out and listed.
        secrets: further texts to be replaced wherever they occur.

    Raises:
        UsageError: ``target`` is there already, or the incident alone is larger than the limit.
        UnwritableOutput: it cannot be written.
    """
    redactor = Redactor()
    redactor.reserve(incident_json(incident))
    for secret in secrets:
        redactor.add(secret)
    bounded, cut = _bounded(incident)
    return archived(
        target, lambda archive: _fill(archive, directory, bounded, cut, redactor, max_bytes), force
    )


def archived(
    target: Path, fill: Callable[[zipfile.ZipFile], BundleManifest], force: bool
) -> BundleManifest:
    """What ``fill`` puts into the archive ``target``, whole or not at all. Raises as above."""
    if target.exists() and not force:
        raise UsageError(f"{target} is there already.", hint="--force, or --out another name")
    try:
        with replacing(target) as file, zipfile.ZipFile(file, "w") as archive:
            return fill(archive)
    except OSError as error:
        raise UnwritableOutput(
            f"{target} cannot be written: {error.strerror or error}.",
            hint="free some space or check the permissions, or give --out FILE",
        ) from error


def _fill(
    archive: zipfile.ZipFile,
    directory: Path,
    incident: Incident,
    cut: str,
    redactor: Redactor,
    max_bytes: int,
) -> BundleManifest:
    """``cut``: what of the incident is not in it any more."""
    public = redactor.redact_model(_without_words(incident, redactor))
    manifest = BundleManifest(
        mmrepro_version=__version__, incident=public.id, scenario=public.scenario.name, files=[]
    )
    size = _size_of(directory / INCIDENT_FILE)
    texts = {INCIDENT_FILE: incident_json(public) + "\n", **documents.rendered(runs.KIND, public)}
    for name, text in texts.items():
        # Rendering may join what was apart, so that a pattern fits now that did not before.
        text = text if name == INCIDENT_FILE else redactor.redact(text)
        whole = size if name == INCIDENT_FILE else len(text)
        add_text(archive, manifest, name, BundledText(text, whole, cut))
    if written(archive) > max_bytes:
        raise UsageError(
            f"The incident alone takes {written(archive) >> 10} KiB, over the limit of "
            f"{max_bytes >> 10} KiB.",
            hint="mmrepro bundle … --max-mib 25",
        )
    for path, safe in _named(directory / EVIDENCE_DIR, redactor, manifest):
        name = f"{EVIDENCE_DIR}/{safe}"
        content = _public_text(path, redactor)
        if isinstance(content, str):
            manifest.left_out.append(LeftOut(name=name, bytes=_size_of(path), why=content))
        elif written(archive) + _packed(content.text) > max_bytes:
            why = f"beyond the limit of {units.size(max_bytes)} for the bundle"
            manifest.left_out.append(LeftOut(name=name, bytes=content.original_bytes, why=why))
        else:
            add_text(archive, manifest, name, content)
    archive.writestr(entry(MANIFEST_FILE), manifest.model_dump_json(indent=1) + "\n")
    return manifest


def _bounded(incident: Incident) -> tuple[Incident, str]:
    """``incident`` with both ends of what there is too much of, and what was cut, in words."""
    changes, cut = {}, []
    for name in Evidence.model_fields:
        value = getattr(incident.evidence, name)
        if isinstance(value, list) and len(value) > MAX_ITEMS:
            changes[name] = value[: MAX_ITEMS // 2] + value[-MAX_ITEMS // 2 :]
            cut.append(f"{len(value) - MAX_ITEMS} of {len(value)} {name}")
    if not cut:
        return incident, ""
    evidence = incident.evidence.model_copy(update=changes)
    told = f"left out of the middle: {', '.join(cut)}"
    return incident.model_copy(update={"evidence": evidence}), told


def add_text(
    archive: zipfile.ZipFile, manifest: BundleManifest, name: str, content: BundledText
) -> None:
    data = content.text.encode("utf-8", "replace")
    archive.writestr(entry(name), data)
    manifest.files.append(
        BundledFile(
            name=name,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            original_bytes=content.original_bytes,
            redactions=len(PLACEHOLDER.findall(content.text)),
            note=content.note,
        )
    )


def entry(name: str) -> zipfile.ZipInfo:
    """Without a date: the same incident gives the same bytes."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    return entry


def written(archive: zipfile.ZipFile) -> int:
    return archive.fp.tell() if archive.fp is not None else 0


def _packed(text: str) -> int:
    import zlib

    return len(zlib.compress(text.encode("utf-8", "replace"))) + 512


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _safe_name(name: str) -> str:
    return re.sub(r"[^\w.\[\]:+-]", "_", name)[:180] or "_"


# ---------------------------------------------------------------------- raw evidence


def _named(
    folder: Path, redactor: Redactor, manifest: BundleManifest
) -> Iterator[tuple[Path, str]]:
    """Each raw file, and a name that no other has; what is not even looked at is listed."""
    if folder.is_symlink():
        why = "a link: it may lead anywhere"
        manifest.left_out.append(LeftOut(name=EVIDENCE_DIR, bytes=0, why=why))
        return
    paths = list(_evidence(folder))
    if more := paths[MAX_FILES:]:
        name = f"{EVIDENCE_DIR}: {len(more)} of {len(paths)} files"
        size = sum(map(_size_of, more))
        manifest.left_out.append(LeftOut(name=name, bytes=size, why="too many files"))
    taken = {path.name for path in paths}
    for path in paths[:MAX_FILES]:
        name = safe = _safe_name(redactor.redact(path.name))
        number = 1
        while safe != path.name and safe in taken:
            number += 1
            safe = f"{Path(name).stem}-{number}{Path(name).suffix}"
        taken.add(safe)
        yield path, safe


def _evidence(folder: Path) -> Iterator[Path]:
    """The raw files, most telling first; of many stack dumps the first and the last come first."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    stacks = [path for path in paths if "-stacks-" in path.name]
    ends = {*stacks[:3], *stacks[-1:]}

    def rank(path: Path) -> tuple[int, str]:
        if "-stacks-" in path.name:
            return (len(_ORDER) - (path in ends), path.name)
        kind = next((i for i, word in enumerate(_ORDER) if word in path.name), len(_ORDER) - 2)
        return (kind, path.name)

    yield from sorted(paths, key=rank)


def _public_text(path: Path, redactor: Redactor) -> BundledText | str:
    """What of the file may go out; a text instead says why nothing does."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            return "a link or no plain file"
        size = path.stat().st_size
        with path.open("rb") as file:
            if b"\0" in file.read(4096):
                return "not text"
            file.seek(0)
            raw = file.read(HEAD_BYTES + TAIL_BYTES)
            note = ""
            if size > len(raw):
                head = raw[:HEAD_BYTES].rpartition(b"\n")[0]
                file.seek(size - TAIL_BYTES)
                tail = file.read(TAIL_BYTES).partition(b"\n")[2]
                gap = size - len(head) - len(tail)
                note = f"{gap} bytes in the middle are left out"
                raw = head + f"\n[mmrepro: {note}]\n".encode() + tail
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    text = raw.decode("utf-8", "replace")
    if "-stacks-" in path.name:
        if (dump := _json(text)) is None:
            return "no JSON that can be read: the values of local variables cannot be left out"
        text = json.dumps(_harmless_locals(dump), indent=1)
        note = "values of local variables are left out, numbers and digests apart"
    elif path.suffix == ".json" and (document := _json(text)) is not None:
        text = json.dumps(redactor.redact_value(document), indent=1, ensure_ascii=False)
    lines = [_cut(line) for line in text.split("\n")]
    return BundledText(redact_log("\n".join(lines), redactor), size, note)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + " [cut]"


def _json(text: str) -> Any:
    """None: it is no JSON, or so deep that it is better taken for a text."""
    with contextlib.suppress(ValueError, RecursionError):
        return document if _shallow(document := json.loads(text), MAX_DEPTH) else None
    return None


def _shallow(value: Any, most: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return most > 0 and all(_shallow(item, most - 1) for item in items)


def redact_log(text: str, redactor: Redactor) -> str:
    """``text`` of a log: besides secrets, what users wrote and where they called from."""
    text = redactor.redact(text)
    text = redactor.hide("prompt", text, _uncovered(text, conversation(text)))
    return redactor.hide("address", text, callers(text))


def _uncovered(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    return (span for span in spans if not PLACEHOLDER.fullmatch(text[slice(*span)]))


# ---------------------------------------------------------------------- local variables


def _without_words(incident: Incident, redactor: Redactor) -> Incident:
    """A copy without what users wrote: log lines as in ``redact_log``, and only such local
    variables as cannot hold any of it."""
    copy = incident.model_copy(deep=True)
    for result in copy.evidence.probes:
        if isinstance(result.data, StacksData):
            for sample in result.data.samples:
                for thread in sample.threads:
                    for frame in thread.frames:
                        frame.locals.update(_harmless_of(frame.locals))
        elif isinstance(result.data, LogsData):
            logs = result.data
            single = (logs.last_progress, logs.first_line, logs.last_line)
            several = (logs.errors, logs.last_by_process.values(), logs.stuck_requests)
            for line in chain(filter(None, single), *several, *logs.matches.values()):
                line.text = redact_log(line.text, redactor)
    for excerpt in copy.log_lines:
        excerpt.text = redact_log(excerpt.text, redactor)
    for key_frame in copy.key_stack.frames if copy.key_stack else ():
        key_frame.locals.update(_harmless_of(key_frame.locals))
    return copy


def _harmless_of(variables: dict[str, str]) -> dict[str, str]:
    return {name: _harmless(value, name) for name, value in variables.items()}


def _harmless(value: str, name: str) -> str:
    """A number, or a digest where one is expected; nothing of what is called a secret."""
    found = _HARMLESS.fullmatch(value.strip())
    known = found and (names_a_digest(name) or not found[1] or found[1].strip("'\"").isdigit())
    return value if known and not names_a_secret(name) else LEFT_OUT


def _harmless_locals(dump: Any) -> Any:
    """py-spy's JSON: ``locals`` of a frame is a list of objects with ``name`` and ``repr``."""
    if isinstance(dump, list):
        return [_harmless_locals(item) for item in dump]
    if isinstance(dump, dict):
        harmless = {key: _harmless_locals(item) for key, item in dump.items()}
        if isinstance(harmless.get("repr"), str):
            harmless["repr"] = _harmless(harmless["repr"], str(harmless.get("name", "")))
        return harmless
    return dump
