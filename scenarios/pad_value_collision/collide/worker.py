"""Asks an engine's own code: its environment, and the worker that runs there, line by
line."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from mmrepro.base.errors import (
    EngineStartError,
    InfrastructureError,
    NoPair,
    UsageError,
)
from mmrepro.base.machine import cache_root, child_environment, die_with_parent
from mmrepro.base.records import Record, Setting, StandIn
from mmrepro.base.text import one_line
from mmrepro.base.units import duration
from mmrepro.engines import LaunchRequest, get_engine, spec_for
from mmrepro.engines.environments import Environment, ensure
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.reproducers import reproducer_path
from mmrepro.scenarios.pad_value_collision.collide.options import SCRIPT
from mmrepro.scenarios.pad_value_collision.collide.pair import (
    Identity,
    ImportedEngine,
    Searched,
)
from pydantic import ValidationError

_ENGINES = ("sglang",)
"""Engines whose hash the worker knows how to ask for."""
_SILENCE_S = 300.0
"""Importing an engine takes 10 to 60 s on a busy machine; a round of the search, well
below 10."""


@dataclass(frozen=True)
class EnginePlace:
    """Where the engine's own code is run: an interpreter and its variables.

    Attributes:
        env: what the server itself is given, besides the harness's own variables,
            cleaned.
    """

    engine: str
    release: str
    device: str
    python: Path
    env: Mapping[str, str]
    model: Path
    environment: Environment | None = None
    stand_ins: list[StandIn] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    silence_s: float = _SILENCE_S


def place_for(
    engine: str,
    release: str,
    *,
    device: str = "auto",
    model: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> EnginePlace:
    """Return the environment of ``engine`` at ``release``, built if it is not there.

    ``model``: folder of a model whose image processor is used; default: a tiny
        Qwen2-VL.

    Raises:
        UsageError: no such engine, or ``model`` has no preprocessor_config.json.
        UnknownRelease: the package index has no such release.
        InfrastructureError: the environment could not be built.
    """
    if engine not in _ENGINES:
        raise UsageError(
            f"There is no collision search for the engine {engine!r}; there is one for "
            f"{', '.join(_ENGINES)}.",
            hint=f"{SCRIPT} --engine sglang --release 0.5.6",
        )
    if model is not None and not (model / "preprocessor_config.json").is_file():
        raise UsageError(
            f"{model} is not the folder of a model: no preprocessor_config.json."
        )
    spec = spec_for(engine, release, device)
    environment = ensure(spec, progress)
    folder = model.absolute() if model else TinyQwen2VL().write(cache_root() / "models")
    request = LaunchRequest(
        environment=environment,
        model=folder,
        port=0,
        max_model_len=4096,
        server_args=(),
    )
    plan = get_engine(engine).plan(request)
    processor = Setting(
        name="image processor",
        value="use_fast=False",
        why="the one that the server gets with --disable-fast-image-processor",
    )
    # Options are the server's alone; the worker asks for the same image processor
    # itself.
    settings = [one for one in plan.settings if not one.name.startswith("-")]
    return EnginePlace(
        engine,
        spec.release,
        spec.device,
        environment.python,
        plan.env,
        folder,
        environment,
        plan.stand_ins,
        [*settings, processor],
    )


# --------------------------------------------------------------- what the worker writes


class Result(Record):
    """What the engine makes of the pictures, and the search that found them."""

    engine: ImportedEngine
    images: dict[str, Identity]
    search: Searched | None


class WorkerEvent(Record):
    """One line of the worker's output.

    Attributes:
        text: the stage, or the problem.
        images: hashed so far, of both families.
        seconds: since the first of them.
    """

    event: Literal["stage", "progress", "exhausted", "problem", "result"]
    text: str = ""
    images: int = 0
    seconds: float = 0.0
    result: Result | None = None


Progress = Callable[[str, str], None]
"""Takes the stage and how far it is."""


def ask(
    place: EnginePlace,
    request: Mapping[str, Any],
    progress: Progress | None,
    chance: Callable[[int], float] = lambda images: 0.0,
) -> Result:
    """Run the worker on ``request`` to its result.

    ``chance``: the probability of a pair among so many images.

    Raises:
        NoPair: there was none among as many images as the request allows.
        EngineStartError: the worker ended with an error; ``detail`` holds its last
            lines.
        InfrastructureError: it could not be started, wrote nothing for ``silence_s``
            seconds, gave up, or wrote something that is not of its protocol.
    """
    say = progress or (lambda stage, detail: None)
    say(stage := "starting the engine's interpreter", "")
    result = None
    used = place.environment.in_use() if place.environment else nullcontext()
    # An error's traceback keeps the generator alive: closing it ends the worker at
    # once.
    with used, closing(_events(place, request)) as events:
        for event in events:
            result, odds = event.result, f"{chance(event.images):.1%}"
            if event.event == "stage":
                say(stage := event.text, "")
            elif event.event == "progress":
                rate = event.images / event.seconds if event.seconds else 0.0
                say(
                    stage, f"{odds} sure by now, {event.images:,} images, {rate:,.0f}/s"
                )
            elif event.event == "exhausted":
                raise NoPair(
                    (
                        f"No pair among {event.images:,} images (the chance of one "
                        f"was {odds})."
                    ),
                    hint="try another --seed, or a larger --max-images",
                )
            elif event.event == "problem":
                raise InfrastructureError(
                    f"The search gave up: {one_line(event.text, 400)}."
                )
    if result is None:
        raise InfrastructureError("The search ended before the pictures were verified.")
    return result


def _events(place: EnginePlace, request: Mapping[str, Any]) -> Generator[WorkerEvent]:
    with tempfile.TemporaryDirectory(prefix="mmrepro-collide-") as folder:
        file = Path(folder, "request.json")
        file.write_text(json.dumps(request))
        with Path(folder, "stderr").open("w+b") as stderr:
            try:
                process = subprocess.Popen(
                    [place.python, reproducer_path("pad_value_search.py"), file],
                    cwd=folder,
                    env=child_environment() | dict(place.env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                raise InfrastructureError(
                    f"The worker could not be started: {error}."
                ) from error
            try:
                yield from _lines(process, place.silence_s)
                if process.wait(timeout=60) != 0:
                    raise EngineStartError(
                        "The search inside the engine's environment failed "
                        f"(exit status {process.returncode}).",
                        hint="mmrepro env list; then build that environment anew",
                        detail=_last_lines(stderr),
                    )
            finally:
                process.kill()
                process.wait()


def _lines(
    process: subprocess.Popen[bytes], silence_s: float
) -> Generator[WorkerEvent]:
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    rest = b""
    while True:
        if not poll.poll(silence_s * 1000):
            raise InfrastructureError(
                f"The search wrote nothing for {duration(silence_s)}.",
                hint="try again, or mmrepro check",
            )
        if not (data := os.read(pipe, 1 << 16)):
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            try:
                yield WorkerEvent.model_validate_json(line)
            except ValidationError as error:
                raise InfrastructureError(
                    "The search wrote something that is not understood: "
                    + one_line(line.decode("utf-8", "replace"), 200)
                ) from error


def _last_lines(stderr: IO[bytes], count: int = 6) -> list[str]:
    stderr.seek(0, 2)
    stderr.seek(max(0, stderr.tell() - 16_384))
    text = stderr.read().decode("utf-8", "replace")
    return [one_line(line, 300) for line in text.splitlines() if line.strip()][-count:]
