"""``mmrepro capture``: a recording made into a trace that may leave its company."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.base import common_options as common
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.options import command


@dataclass(frozen=True)
class _CaptureCommand(Command):
    COMMAND: ClassVar[str] = "capture"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "trace=mmrepro.traffic.capture.mooncake:Written",
    )
    file: Path = option(
        Path(),
        "A HAR, an OpenAI Batch JSONL, a log of vLLM or SGLang, or a case.json.",
        "FILE",
        argument=True,
        required=True,
    )
    mooncake: Path = option(
        Path(),
        "The trace that is written, as JSON lines.",
        "FILE",
        OUTPUT,
        required=True,
    )
    model: str = common.MODEL(
        "",
        help="Folder of the served model, whose tokenizer.json counts tokens.",
        metavar="DIR",
        shown="the tiny models' tokenizer, one token a byte",
    )
    host: str = option(
        "", "Host whose requests are read, in a HAR with several.", "HOST[:PORT]"
    )
    first: int | None = common.FIRST(None)
    window: tuple[float, float] | None = common.WINDOW(None)
    json: bool = common.JSON(False)


@command(_CaptureCommand)
def capture(asked: _CaptureCommand) -> None:
    """Write a recording as a Mooncake trace: arrivals, lengths and which prompts begin
    alike.

    No text is in it. Its hash ids are of a key that is made for this file and not kept,
    so that nobody can look a prompt up.

    Example: mmrepro capture night.har --mooncake night.jsonl --model ~/models/Qwen3-32B
    """
    from mmrepro.base.units import count, duration
    from mmrepro.cli.console import done_head, emit, say
    from mmrepro.traffic.capture import RecordingExcerpt, read_capture, write_trace
    from mmrepro.traffic.case import ServerWanted

    excerpt = RecordingExcerpt(asked.first, *(asked.window or ()))
    server = ServerWanted(engine="", release="")
    captured = read_capture(asked.file, server, host=asked.host, excerpt=excerpt)
    made = write_trace(
        captured, asked.mooncake, Path(asked.model) if asked.model else None
    )
    if asked.json:
        words = f"{count(made.requests, 'request')} written to {asked.mooncake}."
        following = [f"mmrepro replay {asked.mooncake}"]
        emit(made, done_head("written", words, following), "trace")
        return
    say(
        f"{count(made.requests, 'request')} in {duration(made.seconds)}: {made.prompt_tokens:,} "
        f"tokens of prompts in {made.blocks:,} blocks, of which {made.distinct:,} "
        f"differ; {made.answer_tokens:,} generated."
    )
    for note in made.notes:
        say(f"- {note}")
    say(f"Written to {asked.mooncake}; to send it: mmrepro replay {asked.mooncake}")
