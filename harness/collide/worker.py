"""Runs the search's worker with an engine's interpreter and reads what it says, line by line."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Literal

from mmrepro.base.units import duration
from mmrepro.errors import EngineStartError, InfrastructureError
from mmrepro.machine.host import child_environment, die_with_parent
from mmrepro.records import Record
from mmrepro.reproducers import reproducer_path
from mmrepro.text.sanitize import one_line
from pydantic import Field, TypeAdapter, ValidationError

WORKER = "pad_value_search.py"
SILENCE_S = 300.0
"""Importing an engine takes 10 to 60 s on a busy machine; a round of the search, well below 10."""


class Stage(Record):
    event: Literal["stage"]
    text: str


class EngineSeen(Record):
    event: Literal["engine"]
    python: str
    packages: dict[str, str]
    image_processor: str
    set_pad_value: str


class Ready(Record):
    event: Literal["ready"]
    height: int
    width: int
    hashed_bytes: int
    tail_bytes: int
    samples: int
    seconds: float


class Progressed(Record):
    event: Literal["progress"]
    images: int  # of each family
    seconds: float


class PairSeen(Record):
    event: Literal["pair"]
    first: int
    second: int
    low_bits: int
    images: int


class Exhausted(Record):
    event: Literal["exhausted"]
    images: int


class Identity(Record):
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    pad_value: int
    features_sha256: str


class Verified(Record):
    event: Literal["verified"]
    images: dict[str, Identity]


class ProblemSeen(Record):
    event: Literal["problem"]
    text: str


Event = (
    Stage | EngineSeen | Ready | Progressed | PairSeen | Exhausted | Verified | ProblemSeen
)  # fmt: skip
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def events(
    python: Path, env: Mapping[str, str], request: Mapping[str, object], *, silence_s: float
) -> Iterator[Event]:
    """Start the worker on ``request`` and yield what it says until it ends.

    The worker never outlives this: it is ended when the generator is closed (Ctrl-C too), and the
    kernel ends it when this process is killed.

    Raises:
        EngineStartError: it ended with an error; ``detail`` holds its last lines.
        InfrastructureError: it could not be started, said nothing for ``silence_s`` seconds, or
            said something that is not of its protocol.
    """
    with tempfile.TemporaryDirectory(prefix="mmrepro-collide-") as folder:
        (Path(folder) / "request.json").write_text(json.dumps(request))
        with (Path(folder) / "stderr").open("w+b") as stderr:
            try:
                process = subprocess.Popen(
                    [str(python), str(reproducer_path(WORKER)), str(Path(folder, "request.json"))],
                    cwd=folder,
                    env=child_environment() | dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                raise InfrastructureError(f"The worker could not be started: {error}.") from error
            try:
                yield from _read(process, silence_s)
                if process.wait(timeout=60) != 0:
                    raise EngineStartError(
                        "The search inside the engine's environment failed "
                        f"(exit status {process.returncode}).",
                        hint="mmrepro env list; then build that environment anew",
                        detail=_last_lines(stderr),
                    )
            finally:
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(timeout=5)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()


def _read(process: subprocess.Popen[bytes], silence_s: float) -> Iterator[Event]:
    lines: queue.Queue[bytes | None] = queue.Queue()
    assert process.stdout is not None
    threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=silence_s)
        except queue.Empty as error:
            raise InfrastructureError(
                f"The search said nothing for {duration(silence_s)}.",
                hint="try again, or mmrepro check",
            ) from error
        if line is None:
            return
        try:
            event = _EVENT.validate_json(line)
        except ValidationError as error:
            raise InfrastructureError(
                "The search said something that is not understood: "
                + one_line(line.decode("utf-8", "replace"), 200)
            ) from error
        if isinstance(event, ProblemSeen):
            raise InfrastructureError(f"The search gave up: {one_line(event.text, 400)}.")
        yield event


def _pump(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _last_lines(stderr: IO[bytes], count: int = 6) -> list[str]:
    stderr.seek(0, 2)
    stderr.seek(max(0, stderr.tell() - 16_384))
    text = stderr.read().decode("utf-8", "replace")
    return [one_line(line, 300) for line in text.splitlines() if line.strip()][-count:]
