"""With what a fuzz session begins: its options with the server, and what --from gives
it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.machine.files import is_file, is_folder, read_file, write_file
from mmrepro.base.records import parsed
from mmrepro.engines import get_engine
from mmrepro.failure.documents.replay import EPISODES_FILE, FUZZ_FILE, Fuzz
from mmrepro.search.fuzz.knowledge import EPISODES
from mmrepro.search.fuzz.options import FuzzCommand, Profile, dialect_of, under
from mmrepro.search.replay.known import usual_server
from mmrepro.search.replay.unlisted import refuse_unlisted
from mmrepro.traffic.capture.messages import Contents
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.files import MAX_IMAGE_BYTES
from mmrepro.traffic.case.model import (
    CASE_FILE,
    IMAGES_DIR,
    Case,
    Content,
    Image,
    ServerWanted,
)

MAX_BYTES = 64 << 20


def settled(asked: FuzzCommand) -> FuzzCommand:
    """The options with the server; a session that is continued keeps its own, where
    nothing else is asked for. Raises UsageError: no such engine or release; or the kept
    server has what a file may not set."""
    kept, budget_s = (
        kept_options(asked.resume) if asked.resume is not None else ({}, None)
    )
    changes: dict[str, Any] = {}
    for option, name, parse in (
        ("profile", "--profile", Profile),
        ("seed", "--seed", int),
        ("repeat", "--repeat", int),
        ("source", "--from", Path),
        ("blind", "--blind", bool),
    ):
        if kept.get(name) and not asked.given(option):
            changes[option] = parse(kept[name])
    if kept.get("--no-shrink") and not asked.given("shrink"):
        changes["shrink"] = False
    if budget_s and not asked.given("budget_s"):
        changes["budget_s"] = budget_s
    profile = changes.get("profile", asked.profile)
    server = server_of(asked.engine, profile, asked.asked, kept.get("server", ""))
    if asked.resume is not None and not asked.asked:
        refuse_unlisted(server, asked.resume)
    return replace(asked, server=server, **changes)


def server_of(
    engine: str, profile: Profile, asked: dict[str, Any], kept: str
) -> ServerWanted:
    """The server: that of the engine's scenarios, under ``profile``, with what
    ``asked`` says; a session that is continued has the ``kept`` one, unless something
    is asked for. Raises
    UsageError: no such engine or release."""
    found = get_engine(engine)
    if kept and not asked:
        return ServerWanted.model_validate_json(kept)
    usual = usual_server(engine)
    if profile is Profile.MODERN:
        usual = usual.model_copy(update={"model": dialect_of(engine).model})
    wanted = ServerWanted.model_validate({**usual.model_dump(), **asked})
    found.environment_spec(wanted.release, "cpu")
    return under(profile, wanted, length_told="max_model_len" in asked)


def kept_options(folder: Path) -> tuple[dict[str, str], float | None]:
    """What the session in ``folder`` was begun with, and its budget in seconds. Raises
    UsageError: there is none."""
    try:
        with (folder / EPISODES_FILE).open("rb") as file:
            line = file.readline(1 << 20)
    except OSError:
        return {}, None  # the session says what is wrong
    head = EPISODES.head(line, folder)
    try:
        budget_s = parsed(Fuzz, read_file(folder / FUZZ_FILE, MAX_BYTES)).budget_s
    except (OSError, ValueError):  # a session that was cut short has none yet
        budget_s = None
    return head.decides, budget_s


# ------------------------------------------------------------------------------- --from

MEDIA = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}
MOST_PICTURES = 64


@dataclass(frozen=True)
class Source:
    """Attributes:
    name: of the file or folder, without those above it; "": nothing was given.
    images: to be used besides those that are made up.
    case: to be changed.
    contents: the pictures' bytes, by SHA-256.
    """

    name: str = ""
    images: Mapping[str, Image] = field(default_factory=dict)
    case: Case | None = None
    contents: Contents | Mapping[str, bytes] = field(default_factory=dict)

    def keep(self, folder: Path) -> Contents | Mapping[str, bytes]:
        """The pictures, in the session's folder as well. Raises UnwritableOutput."""
        try:
            if self.contents:
                (folder / IMAGES_DIR).mkdir(exist_ok=True)
            for sha256 in self.contents:
                write_file(folder / IMAGES_DIR / sha256, self.contents[sha256])
        except OSError as error:
            raise UnwritableOutput(
                f"{folder} cannot be written: {error.strerror}."
            ) from error
        return self.contents


def read_source(place: Path | None, server: ServerWanted) -> Source:
    """A folder of pictures, or whatever ``mmrepro replay`` reads. Raises UsageError: it
    is neither, or holds nothing."""
    if place is None:
        return Source()
    if is_folder(place) and not is_file(place / CASE_FILE):
        return _pictures(place)
    captured = read(place, server)
    case = captured.case.model_copy(update={"server": server, "title": place.name})
    contents = captured.contents
    return Source(place.name, dict(case.images), case, contents)


def _pictures(folder: Path) -> Source:
    images: dict[str, Image] = {}
    contents: dict[str, bytes] = {}
    try:
        files = sorted(
            p for p in folder.iterdir() if p.suffix.lower() in MEDIA and is_file(p)
        )
        for number, file in enumerate(files[:MOST_PICTURES], 1):
            data = read_file(file, MAX_IMAGE_BYTES)
            sha256 = hashlib.sha256(data).hexdigest()
            contents[sha256] = data
            images[f"given{number}"] = Content(
                sha256=sha256, media_type=MEDIA[file.suffix.lower()]
            )
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be read: {error.strerror or error}."
        ) from error
    if not images:
        raise UsageError(
            f"{folder} holds neither a {CASE_FILE} nor a picture.",
            hint=f"pictures are files that end in {', '.join(MEDIA)}",
        )
    return Source(folder.resolve().name, images, None, contents)
