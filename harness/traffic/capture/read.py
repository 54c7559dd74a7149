"""A recording of traffic, whatever its format, made into a case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.machine.files import is_file, is_folder, open_to_read
from mmrepro.traffic.capture.engine_logs import SGLANG, UNLOGGED, VLLM, SglangLog, VllmLog, messages
from mmrepro.traffic.capture.har import Har, settled
from mmrepro.traffic.capture.messages import (
    UNSEEN_SIZE,
    Bodies,
    Captured,
    Contents,
    Unusable,
    played_path,
)
from mmrepro.traffic.capture.parsing import BadJson, Line, events, lines, no_constant
from mmrepro.traffic.capture.recorded import SLACK_S, Latest, RecordedRequest, Tally, case_of
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.model import CASE_FILE, IMAGES_DIR, Content, Origin, ServerWanted

LIMIT = 20_000
"""Requests that are kept, the last ones."""
FORMATS = "a HAR, an OpenAI batch file, a request log of vLLM or SGLang, or a case of mmrepro"
RECIPE = "mitmdump --mode reverse:http://127.0.0.1:8000 --set hardump=FILE records a HAR"

NAMES = {
    "har": "HAR",
    "batch": "batch file",
    "vllm-log": "log of vLLM",
    "sglang-log": "log of SGLang",
}
MOST_EVENTS = 10_000


def read(
    file: Path,
    server: ServerWanted,
    *,
    host: str = "",
    concurrency: int | None = None,
) -> Captured:
    """The requests in ``file``: HAR, OpenAI Batch JSONL, a vLLM or SGLang log, or a case.

    Args:
        server: what they are played on. A case of ours (its file, or a finding's folder) keeps its
            own.
        host: ``HOST[:PORT]`` whose requests are read, where a HAR has those of several.
        concurrency: so many run at once, whatever the recording tells of that. None: as it tells;
            one after the other where it does not.

    Raises:
        UsageError: one sentence, which names the place in the file.
    """
    if is_folder(file):
        if not is_file(file / CASE_FILE):
            raise UsageError(f"{file.name} is a folder without a {CASE_FILE}.")
        file = file / CASE_FILE
    try:
        with open_to_read(file) as opened:
            kind = _sniffed(opened, file.name)
            opened.seek(0)
            if kind == "case":
                case, below = read_case(file)
                contents = Contents(below / IMAGES_DIR)
                contents.has(i.sha256 for i in case.images.values() if isinstance(i, Content))
                return Captured(case, contents)
            tally, bodies = Tally(file.name, kind), Bodies(Contents())
            heard = _requests(opened, bodies, tally, host)
            tally.dropped.update(bodies.dropped)
            opened.seek(0)
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        slack = SLACK_S if kind == "har" else 0.0
        case, ordered = case_of(heard, server, bodies, concurrency=concurrency, slack=slack)
        origin = Origin(
            format=kind,
            file=tally.file,
            sha256=digest,
            read=tally.read,
            left_out=dict(+tally.left_out),
            dropped=dict(+tally.dropped),
            notes=[*ordered, *notes(tally, bodies)],
        )
        title = f"{len(case.operations)} requests from a {NAMES[kind]}"
        case = case.model_copy(update={"origin": origin, "title": title})
        bodies.contents.keep({i.sha256 for i in case.images.values() if isinstance(i, Content)})
        return Captured(case, bodies.contents)
    except OSError as error:
        raise UsageError(f"{file.name} cannot be read: {error.strerror or error}.") from error


def _requests(
    file: BufferedReader, bodies: Bodies, tally: Tally, host: str
) -> list[RecordedRequest]:
    """The requests of a recording, at least one. Raises UsageError."""
    found, heard = Latest(tally, LIMIT), None
    match tally.format:
        case "har":
            har = Har(file, bodies, tally, host)
            for one in har.requests():
                found.add(one)
            if len(har.hosts) > 1:
                shown = [f"{host} ({count})" for host, count in har.hosts.most_common(5)]
                more = f" and {len(har.hosts) - 5} more" if len(har.hosts) > 5 else ""
                raise UsageError(
                    f"{tally.file} has requests to several hosts: {', '.join(shown)}{more}.",
                    hint=f"choose one: --host {har.hosts.most_common(1)[0][0]}",
                )
            heard = settled(list(found), har.creator)
        case "batch":
            for one in batch_requests(lines(file), bodies, tally):
                found.add(one)
        case "vllm-log":
            VllmLog(bodies, tally, found).read(messages(lines(file)))
        case _:
            SglangLog(bodies, tally, found).read(messages(lines(file)))
    if not found:
        why = "; ".join(f"{count} × {why}" for why, count in tally.left_out.most_common(4))
        told = f" ({why})" if why else ""
        raise UsageError(
            f"{tally.file} has no request that can be played, of {tally.read} that were "
            f"read{told}.",
            hint=RECIPE,
        )
    return heard or list(found)


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
    for line in messages(lines(file)):
        if VLLM.match(line.text):
            return "vllm-log"
        if SGLANG.match(line.text):
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


# ------------------------------------------------------------------ batch files


def batch_requests(
    lines: Iterator[Line], bodies: Bodies, tally: Tally
) -> Iterator[RecordedRequest]:
    """Raises UsageError: it is the file of the answers."""
    for line in lines:
        if not line.text.strip():
            continue
        tally.read += 1
        try:
            yield RecordedRequest(_operation(line, bodies, tally))
        except Unusable as why:
            tally.left_out[str(why)] += 1


def _operation(line: Line, bodies: Bodies, tally: Tally) -> Any:
    """Raises Unusable, UsageError."""
    if line.cut:
        raise Unusable("a line that is too long")
    try:
        request = json.loads(line.text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Unusable("a line that is no JSON") from error
    if not isinstance(request, dict):
        raise Unusable("a line that is no request")
    if "response" in request and "body" not in request:
        raise UsageError(
            f"{tally.file} holds the answers of a batch, not its requests.",
            hint="give the file that was uploaded: its lines have custom_id, url and body",
        )
    tally.dropped["custom_id"] += "custom_id" in request
    if str(request.get("method", "POST")).upper() != "POST":
        raise Unusable("another method than POST")
    return bodies.operation(played_path(str(request.get("url", ""))), request.get("body"))


# ------------------------------------------------------------------ what was lost

_CHANGED: Final = {
    "image-by-address": "pictures were given by address, and nothing is fetched: noise of "
    f"{UNSEEN_SIZE[0]} x {UNSEEN_SIZE[1]} pixels stands for each, the same for the same address",
    "part-by-address": "other parts of messages were nothing but an address, and are left away",
    "image-raw": "pictures are not in the usual Base64, and are sent exactly as they were",
    "content-null": "messages had null as their content, and are sent with an empty text",
    "surrogates": "texts had halves of characters, which are replaced by U+FFFD",
}


def notes(tally: Tally, bodies: Bodies) -> Iterator[str]:
    for name, said in _CHANGED.items():
        if count := bodies.changed[name]:
            yield f"{count} {said}."
    named = len(bodies.models - {""})
    if named > 1:
        yield f"The requests named {named} models; all go to the one that is started."
    if tally.format == "vllm-log" and (count := tally.left_out[UNLOGGED]):
        yield (
            f"{count} requests were refused, and vLLM logs a prompt only once it is accepted: "
            "what a refused request leaves behind is not in this case."
        )
    if tally.format.endswith("-log"):
        yield "Of a log, prompts stand after the chat template, unless it has whole bodies."
