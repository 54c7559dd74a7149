"""With what a fuzz session begins: its options with the server, and what --from gives
it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.machine import (
    host_facts,
    is_file,
    is_folder,
    read_file,
    write_file,
)
from mmrepro.base.records import Fidelity, parsed
from mmrepro.engines import get_engine
from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.models import USUAL_SCRIPT_BASE
from mmrepro.failure.documents.replay import FUZZ_FILE, Fuzz
from mmrepro.failure.documents.searches import begun
from mmrepro.search.fuzz.knowledge import EPISODES
from mmrepro.search.fuzz.options import FuzzCommand, FuzzProfile, under
from mmrepro.search.fuzz.pairs import PAIRS
from mmrepro.search.replay.known import usual_server
from mmrepro.search.replay.unlisted import refuse_unlisted
from mmrepro.traffic.capture import read_capture
from mmrepro.traffic.capture.messages import Contents
from mmrepro.traffic.case import (
    CASE_FILE,
    IMAGES_DIR,
    MAX_IMAGE_BYTES,
    Case,
    Content,
    Image,
    ServerWanted,
)

_MAX_BYTES = 64 << 20


_KEPT: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "profile": ("--profile", FuzzProfile),
    "seed": ("--seed", int),
    "repeat": ("--repeat", int),
    "source": ("--from", Path),
    "blind": ("--blind", bool),
    "scripts": ("--scripts", bool),
}
"""Options that a session which is continued keeps: what each is called where they are
written down, and how it is read."""


def new_document(options: FuzzCommand, kind: str, resume_command: str) -> Fuzz:
    """The document of a session that begins, with its settled options."""
    return Fuzz(
        **begun(kind, options.command_line(), resume_command),
        resume=resume_command,
        server=options.server,
        other=options.other,
        profile=options.profile,
        seed=options.seed,
        budget_s=options.budget_s,
        blind=options.blind,
        host=host_facts(),
        fidelity=Fidelity.GPU if options.on_gpu else Fidelity.CPU,
    )


def settled(asked: FuzzCommand) -> FuzzCommand:
    """Settle the options with the server; a session that is continued keeps its own,
    where nothing else is asked for. Raises UsageError: no such engine or release; or
    the kept server has what a file may not set."""
    kept: dict[str, str] = {}
    budget_s = None
    if asked.resume is not None:
        kept, budget_s = kept_options(asked.resume)
    changes: dict[str, Any] = {}
    for option, (name, parse) in _KEPT.items():
        if kept.get(name) and not asked.given(option):
            changes[option] = parse(kept[name])
    if kept.get("--no-shrink") and not asked.given("shrink"):
        changes["shrink"] = False
    if budget_s and not asked.given("budget_s"):
        changes["budget_s"] = budget_s
    two_sides = bool(asked.against)
    if kept.get("--against") and not two_sides:
        two_sides = True
        changes["other"] = _kept_other(kept["--against"], asked)
    if two_sides and not kept and not asked.given("profile"):
        # Not every front end has the options that put a server under pressure.
        changes["profile"] = FuzzProfile.PLAIN
    profile = changes.get("profile", asked.profile)
    wanted = asked.asked
    if changes.get("scripts", asked.scripts):
        profile = changes["profile"] = FuzzProfile.PLAIN  # nothing is evicted
        if wanted or not kept:
            wanted = {"model": USUAL_SCRIPT_BASE, **wanted}
    server = server_of(asked.engine, profile, wanted, kept.get("server", ""))
    if asked.resume is not None and not asked.asked:
        refuse_unlisted(server, asked.resume)
    if two_sides:
        server = _for_both(server)
    return replace(asked, server=server, **changes)


def server_of(
    engine: str, profile: FuzzProfile, asked: dict[str, Any], kept: str
) -> ServerWanted:
    """Return the server: that of the engine's scenarios, under ``profile``, with what
    ``asked`` says; a session that is continued has the ``kept`` one, unless something
    is asked for. Raises UsageError: no such engine or release."""
    adapter = get_engine(engine)
    if kept and not asked:
        return ServerWanted.model_validate_json(kept)
    usual = usual_server(engine)
    if profile is FuzzProfile.MODERN:
        usual = usual.model_copy(update={"model": dialect_of(engine).model})
    wanted = ServerWanted.model_validate({**usual.model_dump(), **asked})
    adapter.environment_spec(wanted.release, "cpu")
    return under(profile, wanted, length_told="max_model_len" in asked)


def _kept_other(written: str, asked: FuzzCommand) -> ServerWanted:
    """The second server of a session that is continued. Raises UsageError: it has what
    a file may not set."""
    other = ServerWanted.model_validate_json(written)
    assert asked.resume is not None
    refuse_unlisted(other, asked.resume)
    return other


def _for_both(server: ServerWanted) -> ServerWanted:
    """The server without what makes its answers tell more: not every front end has
    these options, and what both sides tell is enough."""
    tells = dialect_of(server.engine).tells
    kept = [arg for arg in server.args if arg not in tells]
    return server.model_copy(update={"args": kept})


def other_side(asked: FuzzCommand, other: FuzzCommand) -> ServerWanted:
    """The server of ``--against``: the first one's, but for what is said of it.

    Args:
        other: the words of ``--against`` as options of a command of their own.

    Raises:
        UsageError: the engine has no such release.
    """
    said, server = other.asked, asked.server
    changes: dict[str, Any] = {}
    for name in ("release", "model", "max_model_len"):
        if name in said:
            changes[name] = said[name]
    # Options of the same name come last, and so win.
    changes["args"] = [*server.args, *said.get("args", ())]
    changes["env"] = {**server.env, **said.get("env", {})}
    second = server.model_copy(update=changes)
    get_engine(server.engine).environment_spec(second.release, "cpu")
    return second


def kept_options(folder: Path) -> tuple[dict[str, str], float | None]:
    """What the session in ``folder`` was begun with, and its budget in seconds. Raises
    UsageError: there is none."""
    journal = PAIRS if PAIRS.is_in(folder) else EPISODES
    try:
        with (folder / journal.file).open("rb") as file:
            line = file.readline(1 << 20)
    except OSError:
        return {}, None  # the session says what is wrong

    head = journal.head(line, folder)
    try:
        budget_s = parsed(Fuzz, read_file(folder / FUZZ_FILE, _MAX_BYTES)).budget_s
    except (OSError, ValueError):  # a session that was cut short has none yet
        budget_s = None

    return head.decides, budget_s


# ------------------------------------------------------------------------------- --from

_MEDIA = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}
_MOST_PICTURES = 64


@dataclass(frozen=True)
class FuzzSource:
    """What --from gives.

    Attributes:
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
        """Keep the pictures in the session's folder as well. Raises UnwritableOutput: it
        cannot be written."""
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


def read_source(place: Path | None, server: ServerWanted) -> FuzzSource:
    """A folder of pictures, or whatever ``mmrepro replay`` reads. Raises UsageError: it
    is neither, or holds nothing."""
    if place is None:
        return FuzzSource()
    if is_folder(place) and not is_file(place / CASE_FILE):
        return _pictures(place)
    captured = read_capture(place, server)
    case = captured.case.model_copy(update={"server": server, "title": place.name})
    contents = captured.contents
    return FuzzSource(place.name, dict(case.images), case, contents)


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in _MEDIA and is_file(file)


def _pictures(folder: Path) -> FuzzSource:
    images: dict[str, Image] = {}
    contents: dict[str, bytes] = {}
    try:
        files = sorted(filter(_is_picture, folder.iterdir()))
        for number, file in enumerate(files[:_MOST_PICTURES], 1):
            data = read_file(file, MAX_IMAGE_BYTES)
            sha256 = hashlib.sha256(data).hexdigest()
            contents[sha256] = data
            media_type = _MEDIA[file.suffix.lower()]
            images[f"given{number}"] = Content(sha256=sha256, media_type=media_type)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be read: {error.strerror or error}."
        ) from error

    if not images:
        raise UsageError(
            f"{folder} holds neither a {CASE_FILE} nor a picture.",
            hint=f"pictures are files that end in {', '.join(_MEDIA)}",
        )

    return FuzzSource(folder.resolve().name, images, None, contents)
