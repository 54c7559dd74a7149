"""``mmrepro commit``: a commit of an engine as a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.errors import ExitCode
from mmrepro.base.options import Command, option
from mmrepro.base.units import exact_duration, parse_duration
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.failure.documents.replay import SideDifference
    from mmrepro.runs import CommitReading

_SHOWN = 6
_FUZZ_BYTES = 64 << 20
_REPRODUCED, _NOT_REPRODUCED = ExitCode.NOT_AS_EXPECTED, ExitCode.AS_EXPECTED
"""Exit codes of ``mmrepro repro``."""


@dataclass(frozen=True)
class _CommitCommand(Command):
    COMMAND: ClassVar[str] = "commit"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.runs.commits:CommitReading",)
    tree: str = option(
        "",
        "A commit of a git clone of the engine.",
        "DIR[@REV]",
        argument=True,
        required=True,
    )
    issue: Path | None = option(
        None,
        "A bug report that it is to fix: its requests are sent to servers of both "
        "sides, by mmrepro repro.",
        "ISSUE.md",
    )
    fuzz_s: float = option(
        0.0,
        "Also generate requests for so long, e.g. 20m: servers of both sides get the "
        "same ones, and what reaches the changed lines is mutated.",
        "TIME",
        name="--fuzz",
        read=parse_duration,
        write=exact_duration,
        shown="no request is generated",
    )
    kernels: str = common.KERNELS("", help="The release that lends compiled files.")
    device: str = common.DEVICE("auto")
    timeout_s: float = common.TIMEOUT(300.0)
    out: Path | None = common.OUT(None, shown="nothing is kept")
    json: bool = common.JSON(False)


@command(_CommitCommand)
def commit(asked: _CommitCommand) -> None:
    """Find out what a commit changes: its own tests on its parent and on itself.

    Both run in a box, on a CPU, without a build. With --fuzz servers of both run as
    --source starts them, without one.

    Example:  mmrepro commit ~/vllm@48bada6ea --issue ISSUE.md --fuzz 20m
    """
    from mmrepro.base.machine import device_of, write_file
    from mmrepro.base.records import DocumentHead
    from mmrepro.cli.console import emit, say
    from mmrepro.cli.test_tree import split_revision
    from mmrepro.failure.documents import prepared_folder
    from mmrepro.runs import CommitResult, read_commit

    clone, rev = split_revision(asked.tree)

    made = read_commit(
        clone,
        rev or "HEAD",
        device=device_of(asked.device),
        kernels=asked.kernels,
        limit_s=asked.timeout_s,
        say=partial(say, stderr=True),
    )
    folder = None if asked.out is None else prepared_folder(asked.out)
    if asked.fuzz_s:
        _fuzz(asked, clone, made)
    if folder is not None:
        write_file(folder / "commit.json", made.model_dump_json(indent=1) + "\n")
    lines = list(_lines(made))
    is_shown = made.result is CommitResult.TURNED
    is_shown = is_shown or any(difference.confirmed for difference in made.differences)
    if not asked.json:
        for line in lines:
            say(line)
    if asked.issue is not None:
        sentence, requests_show_it = _requests(asked, clone, made)
        say(sentence, stderr=asked.json)
        is_shown = is_shown or requests_show_it
    code = ExitCode.AS_EXPECTED if is_shown else ExitCode.INCONCLUSIVE
    if asked.json:
        status, summary = made.result.value, lines[0]
        emit(made, DocumentHead(status=status, exit_code=code, summary=summary))
    raise typer.Exit(code)


def _lines(made: CommitReading) -> Iterator[str]:
    """What is known of the commit, a line a fact."""
    from mmrepro.base.text import one_line

    yield f"{made.engine} {made.commit[:12]}, after {made.parent[:12]}"
    yield f"  touches {_few(made.functions or made.product)}"
    if made.compiled:
        yield f"  compiled files, which are not built: {_few(made.compiled)}"
    yield f"  its tests: {made.result.value}, {one_line(made.why, 300)}"
    for name, run in (("parent", made.before), ("commit", made.after)):
        if run is not None:
            yield f"  on the {name}: {run.counts}, {run.seconds:g} s"
    for test in made.turned[:_SHOWN]:
        yield f"  red before, green after: {test}"
    if len(made.turned) > _SHOWN:
        yield f"  and {len(made.turned) - _SHOWN} more"
    yield from _of_requests(made)


def _of_requests(made: CommitReading) -> Iterator[str]:
    """What the generated requests ran of the change, and what they were answered."""
    if made.aim is not None:
        lines = f"{made.aim.reached} of {made.aim.lines} lines that the commit changes"
        flags = f", with {' '.join(made.aim.flags)}" if made.aim.flags else ""
        yield f"  generated requests ran {lines}{flags}"
        missed = [f"{f.file}:{f.missed}" for f in made.aim.functions if f.missed]
        if missed:
            yield f"  no request ran {_few(missed)}"
    for difference in made.differences[:_SHOWN]:
        yield f"  {_difference(difference)}"
    if len(made.differences) > _SHOWN:
        yield f"  and {len(made.differences) - _SHOWN} more differences"


def _difference(difference: SideDifference) -> str:
    """What one request is answered on both sides, where OLD is the parent."""
    import json

    from mmrepro.base.text import one_line

    request = difference.request
    body = json.dumps(request.get("body"), ensure_ascii=False)
    asked = f"{request.get('method')} {request.get('path')} {body}"
    pairs = f"{difference.shown} of {difference.pairs} fresh pairs"
    return f"{one_line(difference.statement, 300)} ({pairs}) {one_line(asked, 400)}"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more or "no Python of the engine"


def _fuzz(asked: _CommitCommand, clone: Path, made: CommitReading) -> None:
    """Have servers of both sides get generated requests, and note what came of it.

    Raises:
        InfrastructureError: the session wrote no result.
    """
    import os
    import shlex
    import tempfile

    from mmrepro.base.errors import InfrastructureError
    from mmrepro.base.machine import read_file
    from mmrepro.base.records import parsed
    from mmrepro.campaign import spawn
    from mmrepro.failure.documents.replay import FUZZ_FILE, Fuzz

    kernels = ["--kernels", made.kernels] if made.kernels else []
    other = shlex.join(["--source", f"{clone}@{made.commit}", *kernels])
    words = ["fuzz", made.engine, "--source", f"{clone}@{made.parent}", *kernels]
    words += ["--against", other, "--profile", "plain", "--device", asked.device]
    words += ["--budget", exact_duration(asked.fuzz_s)]
    with tempfile.TemporaryDirectory(prefix="mmrepro-commit-") as name:
        folder = Path(name) if asked.out is None else asked.out
        words += ["--out", str(folder / "fuzz")]
        code = spawn(words, dict(os.environ), stderr=None).wait()
        try:
            fuzz = parsed(Fuzz, read_file(folder / "fuzz" / FUZZ_FILE, _FUZZ_BYTES))
        except (OSError, ValueError):
            raise InfrastructureError(
                f"The session of requests ended without a result (exit code {code}).",
                hint=f"mmrepro {shlex.join(words)}",
            ) from None
    made.aim, made.differences = fuzz.aim, fuzz.differences


def _requests(
    asked: _CommitCommand, clone: Path, made: CommitReading
) -> tuple[str, bool]:
    """What the requests of a report show on both sides: a sentence, and whether they
    are red before and green after."""
    import os

    from mmrepro.campaign import spawn

    codes = []
    for sha in (made.parent, made.commit):
        words = ["repro", str(asked.issue), "--source", f"{clone}@{sha}", "--quiet"]
        if made.kernels:
            words += ["--kernels", made.kernels]
        child = spawn([*words, "--engine", made.engine], dict(os.environ))
        codes.append(child.wait())
    before, after = codes
    if (before, after) == (_REPRODUCED, _NOT_REPRODUCED):
        return "its report's requests: red on the parent, green on the commit", True
    names: dict[int, str] = {
        _REPRODUCED: "reproduced",
        _NOT_REPRODUCED: "not reproduced",
    }
    shown = [names.get(code, f"undecided (exit code {code})") for code in codes]
    sentence = f"on the parent {shown[0]}, on the commit {shown[1]}"
    return f"its report's requests: {sentence}", False
