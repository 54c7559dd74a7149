"""A recording of traffic, whatever its format, made into a case."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mmrepro.base.errors import UsageError
from mmrepro.base.machine.files import is_file, is_folder, is_there, open_to_read
from mmrepro.traffic.capture.curl import CURL, curl_requests
from mmrepro.traffic.capture.engine_logs import (
    SGLANG,
    UNLOGGED,
    VLLM,
    SglangLog,
    VllmLog,
    messages,
)
from mmrepro.traffic.capture.exchanges import METHODS, Exchange, Hears
from mmrepro.traffic.capture.har import Har, settled
from mmrepro.traffic.capture.messages import Bodies, Captured, Contents, Unusable
from mmrepro.traffic.capture.mooncake import (
    WHOLE,
    Excerpt,
    Trace,
    in_sessions,
    is_trace,
    read_trace,
    requests_of,
)
from mmrepro.traffic.capture.parsing import MAX_TEXT, BadJson, Line, events, lines
from mmrepro.traffic.capture.profiles import PROFILES, trace_of
from mmrepro.traffic.capture.recorded import (
    SLACK_S,
    Latest,
    RecordedRequest,
    Tally,
    case_of,
)
from mmrepro.traffic.case.bodies import JSON_TYPE, members
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.model import (
    CASE_FILE,
    CHAT,
    COMPLETIONS,
    IMAGES_DIR,
    Content,
    Operation,
    Origin,
    ServerWanted,
)
from mmrepro.traffic.reading import GENERATE

LIMIT = 20_000
"""Requests that are kept, the last ones."""
FORMATS = (
    "a HAR, an OpenAI batch file, a Mooncake trace, a script of curl commands, a "
    "request's JSON body, a request log of vLLM or SGLang, or a case of mmrepro"
)
RECIPE = (
    "mitmdump --mode reverse:http://127.0.0.1:8000 --set hardump=FILE records a HAR"
)

NAMES = {
    "har": "HAR",
    "batch": "batch file",
    "mooncake": "Mooncake trace",
    "profile": "profile",
    "curl": "script of curl commands",
    "body": "JSON body",
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
    excerpt: Excerpt = WHOLE,
    seed: int = 0,
) -> Captured:
    """The requests in ``file``: HAR, OpenAI Batch JSONL, a Mooncake trace, curl
    commands, a JSON body, a vLLM or SGLang log, or a case, whatever its name is; or the
    name of a profile.

    Args:
        server: what they are played on. A case of ours (its file, or a finding's
            folder) keeps its own.
        host: ``HOST[:PORT]`` whose requests are read, where a HAR has those of several.
        concurrency: so many run at once, whatever the recording tells of that. None: as
            it tells; one after the other where it does not.
        excerpt: the part that is wanted.
        seed: of prompts that are made up, for a trace or a profile.

    Raises:
        UsageError: one sentence, which names the place in the file.
    """
    if str(file) in PROFILES and not is_there(file):
        trace = trace_of(str(file), seed, excerpt)
        return _of_trace(
            trace, server, Origin(format="profile", file=file.name), concurrency, seed
        )
    if is_folder(file):
        if not is_file(file / CASE_FILE):
            raise UsageError(f"{file} is a folder without a {CASE_FILE}.")
        file = file / CASE_FILE
    try:
        with open_to_read(file) as opened:
            kind = _sniffed(opened, file.name)
            opened.seek(0)
            if kind == "case":
                case, below = read_case(file)
                contents = Contents(below / IMAGES_DIR)
                contents.has(
                    i.sha256 for i in case.images.values() if isinstance(i, Content)
                )
                if excerpt:
                    places = excerpt.places([op.at_s for op in case.operations])
                    case = case.keeping({case.operations[place].id for place in places})
                return Captured(case, contents)
            if kind == "mooncake":
                trace = read_trace(lines(opened), file.name, LIMIT, excerpt)
                origin = Origin(format=kind, file=file.name, sha256=_digest(opened))
                return _of_trace(trace, server, origin, concurrency, seed)
            tally = Tally(file.name, kind)
            bodies = Bodies(Contents(), own=kind in ("batch", "curl", "body"))
            bodies.adapters |= adapters(server)
            heard = _requests(opened, bodies, tally, host, file.parent)
            moments = [h.begin if h.at_s is None else h.at_s for h in heard]
            heard = [heard[place] for place in excerpt.places(moments)]
            tally.dropped.update(bodies.dropped)
            digest = _digest(opened)
            if not heard:
                raise _nothing_in(file.name)
        slack = SLACK_S if kind == "har" else 0.0
        case, ordered = case_of(
            heard, server, bodies, concurrency=concurrency, slack=slack
        )
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
        bodies.contents.keep(
            {i.sha256 for i in case.images.values() if isinstance(i, Content)}
        )
        return Captured(case, bodies.contents)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror or error}."
        ) from error


def _digest(file: BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _nothing_in(name: str) -> UsageError:
    return UsageError(
        f"{name} has no request in that time.",
        hint="--window counts seconds from its first one",
    )


def _of_trace(
    trace: Trace,
    server: ServerWanted,
    origin: Origin,
    concurrency: int | None,
    seed: int,
) -> Captured:
    """Raises UsageError."""
    if not trace.rows:
        raise _nothing_in(origin.file)
    heard, notes = requests_of(trace, server, seed)
    bodies = Bodies(Contents())
    case, ordered = case_of(heard, server, bodies, concurrency=concurrency)
    case = in_sessions(case, trace.rows)
    told = ordered if concurrency is not None else []
    origin = origin.model_copy(
        update={"read": len(trace.rows), "notes": [*told, *notes]}
    )
    kind = f"{NAMES[origin.format]}{f' {origin.file}' * (origin.format == 'profile')}"
    title = f"{len(case.operations)} requests from a {kind}"
    return Captured(
        case.model_copy(update={"origin": origin, "title": title}), bodies.contents
    )


def holds_case(place: Path) -> bool:
    """Whether a folder or a file, whatever its name is, holds a case of mmrepro."""
    if is_folder(place):
        return is_file(place / CASE_FILE)
    try:
        with open_to_read(place) as opened:
            begins = (
                opened.read(1 << 10).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
            )
            opened.seek(0)
            return begins and _json_kind(opened) == "case"
    except OSError:
        return False


def _requests(
    file: BufferedReader, bodies: Bodies, tally: Tally, host: str, folder: Path
) -> list[RecordedRequest]:
    """The requests of a recording, at least one. Raises UsageError."""
    found, heard = Latest(tally, LIMIT), None
    match tally.format:
        case "har":
            har = Har(file, bodies, tally, host)
            for one in har.requests():
                found.add(one)
            if len(har.hosts) > 1:
                shown = [
                    f"{host} ({count})" for host, count in har.hosts.most_common(5)
                ]
                more = f" and {len(har.hosts) - 5} more" if len(har.hosts) > 5 else ""
                raise UsageError(
                    (
                        f"{tally.file} has requests to several hosts: "
                        f"{', '.join(shown)}{more}."
                    ),
                    hint=f"choose one: --host {har.hosts.most_common(1)[0][0]}",
                )
            heard = settled(list(found), har.creator)
        case "batch":
            for one in batch_requests(lines(file), bodies, tally):
                found.add(one)
        case "curl" | "body":
            text = (
                file.read(MAX_TEXT)
                .decode("utf-8", "surrogateescape")
                .removeprefix("\ufeff")
            )
            given = (
                curl_requests(text, folder) if tally.format == "curl" else _plain(text)
            )
            hears = Hears(bodies)
            for exchange in given:
                tally.read += 1
                try:
                    if isinstance(exchange, Unusable):
                        raise exchange
                    found.add(hears.heard(exchange, None)[0])
                except Unusable as why:
                    tally.left_out[str(why)] += 1
        case "vllm-log":
            VllmLog(bodies, tally, found).read(messages(lines(file)))
        case _:
            SglangLog(bodies, tally, found).read(messages(lines(file)))
    if not found:
        left = "; ".join(
            f"{count} × {why}" for why, count in tally.left_out.most_common(4)
        )
        told = f" ({left})" if left else ""
        raise UsageError(
            f"{tally.file} has no request that can be played, of {tally.read} that "
            f"were read{told}.",
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
            (
                f"{name} is a pickle (a dump of SGLang's), which is not opened: "
                "reading one runs code."
            ),
            hint="record the log instead: --log-requests --log-requests-level 3",
        )
    if CURL.search(head.decode("utf-8", "replace")) and head[:1] != b"{":
        return "curl"
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
            found = _by_keys(keys)
            if (
                found not in ("", "body")
                or count > MOST_EVENTS
                or (count and not depth)
            ):
                return found
    except BadJson:
        pass
    return _by_keys(keys)


def _by_keys(keys: set[str]) -> str:
    if keys & {"operations", "schema_version"}:
        return "case"
    if keys & {"custom_id", "body"} or {"method", "url"} <= keys:
        return "batch"
    if {"timestamp", "event"} <= keys:
        return "sglang-log"
    if is_trace(keys):
        return "mooncake"
    return "body" if keys & _OF_A_BODY else ""


# ------------------------------------------------------------------ bodies

_OF_A_BODY: Final = {
    "messages",
    "prompt",
    "input",
    "text",
    "input_ids",
    "input_embeds",
    "token_ids",
    "query",
    "text_1",
    "lora_name",
    "image_data",
}
_BY_FIELDS: Final = (
    ({"messages", "max_tokens", "anthropic_version"}, "/v1/messages"),
    ({"messages"}, CHAT),
    ({"prompt"}, COMPLETIONS),
    ({"token_ids", "sampling_params"}, "/inference/v1/generate"),
    ({"text"}, GENERATE),
    ({"input_ids"}, GENERATE),
    ({"input_embeds"}, GENERATE),
    ({"lora_name"}, "/v1/load_lora_adapter"),
    ({"query", "documents"}, "/rerank"),
    ({"text_1"}, "/score"),
)
_OF_RESPONSES: Final = {
    "instructions",
    "max_output_tokens",
    "reasoning",
    "tools",
    "previous_response_id",
    "store",
    "text",
    "stream",
    "background",
    "temperature",
}


def path_of(fields: Mapping[str, Any]) -> str:
    """Where a body is sent that stands by itself, by its fields; "": no known place."""
    if "input" in fields:
        return "/v1/responses" if _OF_RESPONSES & fields.keys() else "/v1/embeddings"
    return next((path for names, path in _BY_FIELDS if names <= fields.keys()), "")


def _plain(text: str) -> Iterator[Exchange | Unusable]:
    """A body, or one on each line."""
    try:
        json.loads(text)
        bodies = [text.strip("\n")]
    except (ValueError, RecursionError):
        bodies = [line for line in text.splitlines() if line.strip()]
        if not all(
            line.startswith("{") and line.rstrip().endswith("}") for line in bodies
        ):
            bodies = [text.strip("\n")]  # one that is broken
    for one in bodies:
        names = set(re.findall(r'"(\w+)"\s*:', one))
        with contextlib.suppress(ValueError, RecursionError):
            names = {name for name, *_ in members(one)}
        path = path_of(dict.fromkeys(names))
        yield (
            Exchange("POST", path, [], one.encode("utf-8", "surrogateescape"))
            if path
            else (Unusable("a body whose path is not known"))
        )


def adapters(server: ServerWanted) -> set[str]:
    """Names of models that the server's own options load."""
    options = ("--lora-modules", "--lora-paths", "--adapters")
    args, found, inside = server.args, set(), False
    for word in (one for arg in args for one in arg.split("=", 1) if one):
        inside = word in options or (inside and not word.startswith("--"))
        if inside and word not in options:
            found.add(word.partition("=")[0])
    return found


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


def _operation(line: Line, bodies: Bodies, tally: Tally) -> Operation:
    """Raises Unusable, UsageError."""
    if line.cut:
        raise Unusable("a line that is too long")
    try:
        request = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise Unusable("a line that is no JSON") from error
    if not isinstance(request, dict):
        raise Unusable("a line that is no request")
    if "response" in request and "body" not in request:
        raise UsageError(
            f"{tally.file} holds the answers of a batch, not its requests.",
            hint=(
                "give the file that was uploaded: its lines have custom_id, "
                "url and body"
            ),
        )
    tally.dropped["custom_id"] += "custom_id" in request
    method = str(request.get("method", "POST")).upper()
    if method not in METHODS:
        raise Unusable("a method that is none of HTTP")
    body = next(
        (line.text[a:b] for name, a, b in members(line.text) if name == "body"), ""
    )
    written = request.get("body")
    if body == "null":
        body = ""
    elif isinstance(written, str):  # not the API's form: a body that may be broken
        body = written
    headers = request.get("headers")
    given = headers.items() if isinstance(headers, dict) else []
    told = [(str(name), str(value)) for name, value in given]
    try:
        target = urlsplit(str(request.get("url", "")) or "/")
    except ValueError as error:
        raise Unusable("an entry without an address") from error
    path = target._replace(scheme="", netloc="", fragment="").geturl()
    kind = [("Content-Type", JSON_TYPE)] if body else []
    return bodies.request(
        method, path, [*kind, *told], body.encode("utf-8", "surrogateescape")
    )


# ------------------------------------------------------------------ what was lost


def notes(tally: Tally, bodies: Bodies) -> Iterator[str]:
    yield from bodies.notes()
    if tally.format == "vllm-log" and (count := tally.left_out[UNLOGGED]):
        yield (
            f"{count} requests were refused, and vLLM logs a prompt only once it is "
            "accepted: what a refused request leaves behind is not in this case."
        )
    if tally.format.endswith("-log"):
        yield (
            "Of a log, prompts stand after the chat template, unless it has "
            "whole bodies."
        )
