"""What maintainers ask for when a server's log is reported: ``mmrepro logs --issue``.

Made of what may leave: no client's words, addresses or keys."""

from __future__ import annotations

from collections.abc import Iterator

from mmrepro.engines.folders import table
from mmrepro.failure.documents import (
    STATE_OF_LOG_WORDS,
    LogFacts,
    LogReading,
    as_published,
)

_NOT_LOGGED = "not in the log"


def issue_of_log(reading: LogReading) -> str:
    """The block as Markdown, for the form of any project."""
    public = as_published(reading)
    facts = public.facts
    if facts is None:
        return f"{public.cause.sentence}\n"
    return "\n".join(_parts(public, facts)) + "\n"


def _parts(reading: LogReading, facts: LogFacts) -> Iterator[str]:
    yield "### Environment\n"
    yield f"- engine: {reading.engine or 'unknown'} {reading.release or '(release not logged)'}"
    yield f"- platform: {facts.platform or _NOT_LOGGED}"
    yield f"- topology: {', '.join(facts.topology) or _NOT_LOGGED}"
    check = table(reading.engine, "advice.toml").get("environment", "")
    if check:
        yield f"- output of `{check}`: (paste it here)"

    yield "\n### Command\n"
    yield _fenced([facts.command or f"({_NOT_LOGGED}: paste it here)"])

    yield "\n### What happened\n"
    yield f"{STATE_OF_LOG_WORDS[facts.state].capitalize()}: {facts.sentence}"
    if reading.last_progress is not None:
        yield f"Last work: {reading.last_progress.time or 'without a time'}"

    yield "\n### First exception\n"
    yield _fenced(_failure(facts))
    if facts.after:
        yield "Then:\n"
        yield _fenced(facts.after)
    if facts.echo:
        yield "\n### What is missing\n"
        yield f"The cause was logged before: output of `{facts.fetch}`"


def _failure(facts: LogFacts) -> list[str]:
    failure = facts.failure
    if failure is None:
        return ["(none is in the log)"]
    lines = [*failure.lines]
    if failure.place:
        lines.append(f"raised at {failure.place}")
    if failure.code:
        lines.append(f"    {failure.code}")
    return lines


def _fenced(lines: list[str]) -> str:
    # A fence within a message must not end the block.
    body = "\n".join(lines).replace("```", "'''")
    return f"```text\n{body}\n```"
