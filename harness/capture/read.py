"""A recording of traffic, whatever its format, made into a case."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from io import BufferedReader
from pathlib import Path

from mmrepro.capture import batch
from mmrepro.capture.bounded import BadJson, events
from mmrepro.capture.captured import Captured, Contents
from mmrepro.capture.har import Har, settled
from mmrepro.capture.heard import Heard, Latest, Tally, case_of
from mmrepro.capture.lines import lines
from mmrepro.capture.messages import Bodies
from mmrepro.capture.notes import notes
from mmrepro.capture.order import SLACK_S
from mmrepro.capture.sglang_log import MARK as SGLANG, SglangLog
from mmrepro.capture.vllm_log import MARK as VLLM, VllmLog
from mmrepro.case.files import read_case
from mmrepro.case.model import CASE_FILE, IMAGES_DIR, Content, Origin, ServerWanted
from mmrepro.errors import UsageError
from mmrepro.machine.files import is_file, is_folder, open_to_read

LIMIT = 20_000
FORMATS = "a HAR, an OpenAI batch file, a request log of vLLM or SGLang, or a case of mmrepro"
RECIPE = "mitmdump --mode reverse:http://127.0.0.1:8000 --set hardump=FILE records a HAR"

NAMES = {
    "har": "HAR",
    "batch": "batch file",
    "vllm-log": "log of vLLM",
    "sglang-log": "log of SGLang",
}
MOST_EVENTS = 10_000

Progress = Callable[[int, int], None]


def read(
    file: Path,
    server: ServerWanted,
    *,
    host: str = "",
    concurrency: int | None = None,
    limit: int = LIMIT,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Captured:
    """The requests in ``file``: HAR, OpenAI Batch JSONL, a vLLM or SGLang log, or a case.

    Args:
        server: what they are played on. A case of ours (its file, or a finding's folder) keeps its
            own.
        host: ``HOST[:PORT]`` whose requests are read, where a HAR has those of several.
        concurrency: so many run at once, whatever the recording tells of that. None: as it tells;
            one after the other where it does not.
        limit: so many are kept, the last ones.
        folder: where pictures are kept while the case is worked on; None: a temporary one.
        progress: called with bytes read and bytes in all.

    Raises:
        UsageError: one sentence, which names the place in the file.
    """
    if is_folder(file):
        if not is_file(file / CASE_FILE):
            raise UsageError(f"{file.name} is a folder without a {CASE_FILE}.")
        file = file / CASE_FILE
    try:
        with open_to_read(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            kind = _sniffed(opened, file.name)
            opened.seek(0)
            if kind == "case":
                return _case(file)
            tally = Tally(file.name, kind)
            return _recording(
                opened,
                tally,
                server,
                Latest(tally, limit),
                host=host,
                concurrency=concurrency,
                folder=folder,
                progress=None if progress is None else lambda at: progress(at, size),
            )
    except OSError as error:
        raise UsageError(f"{file.name} cannot be read: {error.strerror or error}.") from error


def _recording(
    file: BufferedReader,
    tally: Tally,
    server: ServerWanted,
    found: Latest,
    *,
    host: str,
    concurrency: int | None,
    folder: Path | None,
    progress: Callable[[int], None] | None,
) -> Captured:
    """Raises UsageError."""
    contents = Contents(folder)
    bodies = Bodies(contents)
    heard: Iterable[Heard] = found
    if tally.format == "har":
        har = Har(file, bodies, tally, host, progress)
        for one in har.requests():
            found.add(one)
        _one_host(har, tally)
        heard = settled(list(found), har.creator)
    elif tally.format == "batch":
        for one in batch.requests(lines(file, progress), bodies, tally):
            found.add(one)
    elif tally.format == "vllm-log":
        VllmLog(bodies, tally, found).read(lines(file, progress))
    else:
        SglangLog(bodies, tally, found).read(lines(file, progress))
    if not found:
        raise _nothing(tally)
    tally.dropped.update(bodies.dropped)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    slack = SLACK_S if tally.format == "har" else 0.0
    case, ordered = case_of(heard, server, bodies, concurrency=concurrency, slack=slack)
    origin = Origin(
        format=tally.format,
        file=tally.file,
        sha256=digest,
        read=tally.read,
        left_out=dict(+tally.left_out),
        dropped=dict(+tally.dropped),
        notes=[*ordered, *notes(tally, bodies)],
    )
    title = f"{len(case.operations)} requests from a {NAMES[tally.format]}"
    case = case.model_copy(update={"origin": origin, "title": title})
    wanted = {image.sha256 for image in case.images.values() if isinstance(image, Content)}
    contents.keep(wanted)
    return Captured(case, contents)


def _one_host(har: Har, tally: Tally) -> None:
    """Raises UsageError: the requests went to several hosts, and none is chosen."""
    if len(har.hosts) > 1:
        shown = [f"{host} ({count})" for host, count in har.hosts.most_common(5)]
        more = f" and {len(har.hosts) - 5} more" if len(har.hosts) > 5 else ""
        raise UsageError(
            f"{tally.file} has requests to several hosts: {', '.join(shown)}{more}.",
            hint=f"choose one: --host {har.hosts.most_common(1)[0][0]}",
        )


def _nothing(tally: Tally) -> UsageError:
    why = "; ".join(f"{count} × {why}" for why, count in tally.left_out.most_common(4))
    told = f" ({why})" if why else ""
    return UsageError(
        f"{tally.file} has no request that can be played, of {tally.read} that were read{told}.",
        hint=RECIPE,
    )


def _case(file: Path) -> Captured:
    """Raises UsageError."""
    case, folder = read_case(file)
    contents = Contents(folder / IMAGES_DIR)
    contents.has(image.sha256 for image in case.images.values() if isinstance(image, Content))
    return Captured(case, contents)


# ---------------------------------------------------------------------- which format


def _sniffed(file: BufferedReader, name: str) -> str:
    """Raises UsageError: it is none of the formats."""
    head = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise UsageError(f"{name} is empty.", hint=RECIPE)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise UsageError(
            f"{name} is a pickle (a dump of SGLang's), which is not opened: reading one runs code.",
            hint="record the log instead: --log-requests --log-requests-level 3",
        )
    if head[:1] == b"{":
        file.seek(0)
        if kind := _json_kind(file):
            return kind
    if b'"entries"' in head or name.lower().endswith(".har"):
        return "har"
    file.seek(0)
    for line in lines(file):
        if VLLM.search(line.text):
            return "vllm-log"
        if SGLANG.search(line.text):
            return "sglang-log"
    raise UsageError(f"{name} is none of what can be read: {FORMATS}.", hint=RECIPE)


def _json_kind(file: BufferedReader) -> str:
    """By the first keys of the first object; "": by none."""
    key, keys = "", set()
    try:
        for count, (event, value, depth) in enumerate(events(file)):
            if event == "map_key" and depth == 1:
                key = value
                keys.add(key)
            elif event == "start_map" and depth == 1 and key == "log":
                return "har"
            if (found := _by_keys(keys)) or count > MOST_EVENTS or (count and not depth):
                return found
    except BadJson:
        pass
    return _by_keys(keys)


def _by_keys(keys: set[str]) -> str:
    if keys & {"operations", "schema_version"}:
        return "case"
    if keys & {"custom_id", "body"}:
        return "batch"
    return "sglang-log" if {"timestamp", "event"} <= keys else ""
