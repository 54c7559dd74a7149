"""The exit codes of all commands: one table.

The help of a command, ``mmrepro help exit-codes``, docs/exit-codes.md, what the MCP
tools report and ``--exit-zero`` follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mmrepro.base.errors import ExitCode

MEANINGS: Final = {
    ExitCode.AS_EXPECTED: "no problem, or as expected",
    ExitCode.NOT_AS_EXPECTED: "a problem was found, or not as expected",
    ExitCode.USAGE: "usage: the command, or a file that it names, is wrong",
    ExitCode.INCONCLUSIVE: "undecided",
    ExitCode.INFRASTRUCTURE: "infrastructure: nothing was learned about the engine",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.READER_GONE: "the reader of the output left (… | head -1)",
}


@dataclass(frozen=True)
class CommandCodes:
    """What the exit codes of one command mean; "": it does not end with that code.

    Every command can end with 2, 4, 130 and 141 besides."""

    ok: str
    problem: str = ""
    undecided: str = ""
    infrastructure: str = ""

    @property
    def has_verdict(self) -> bool:
        """Whether ``--exit-zero`` can change its exit code."""
        return bool(self.problem or self.undecided)

    @property
    def rows(self) -> Iterator[tuple[ExitCode, str]]:
        """Yield each code of its own with its meaning."""
        texts = {
            ExitCode.AS_EXPECTED: self.ok,
            ExitCode.NOT_AS_EXPECTED: self.problem,
            ExitCode.INCONCLUSIVE: self.undecided,
            ExitCode.INFRASTRUCTURE: self.infrastructure,
        }
        for code, text in texts.items():
            if text:
                yield code, text


CODES: Final = {
    "commit": CommandCodes(
        ok="a test or a request is red on the parent and green on the commit",
        undecided="none is, and it says why",
    ),
    "test-tree": CommandCodes(
        ok="a test passed, and none failed",
        problem="a test failed",
        undecided="untestable here, by its cause",
    ),
    "ablate": CommandCodes(
        ok="a workaround was found",
        problem="every cell is decided, and none is a workaround",
        undecided="too little was observed",
    ),
    "bisect": CommandCodes(
        ok="the boundary was found, and both sides ran twice",
        problem="there is no boundary: the last release fails too, or none fails",
        undecided="a range of releases, or undecided",
        infrastructure="all runs ended with an infrastructure error",
    ),
    "capture": CommandCodes(ok="the trace is written"),
    "check": CommandCodes(
        ok="the main job can run here; with --for, the release fits this machine",
        undecided="with --for: not every part can be compared",
        infrastructure="a required part is missing; with --for, one does not fit",
    ),
    "demo": CommandCodes(
        ok="the recorded verdict holds", problem="the verdict differs from the record"
    ),
    "diagnose": CommandCodes(
        ok="healthy",
        problem="a known failure was found, or a server is unhealthy",
        undecided="undecided; with --only, the evidence could not be collected",
    ),
    "env verify": CommandCodes(
        ok="every installed file is as its wheel has it",
        problem="a file is damaged, changed, added or missing",
    ),
    "find": CommandCodes(
        ok="a known failure was found",
        problem="no known failure contains the text",
        undecided="a known failure may match, by its words alone",
    ),
    "fuzz": CommandCodes(
        ok="no failure, or known failures only",
        problem="an unknown failure was found and confirmed",
        undecided="a failure did not recur as often as required",
    ),
    "judge": CommandCodes(
        ok="every verdict is the recorded one",
        problem="a verdict differs from the recorded one",
    ),
    "kv-budget": CommandCodes(
        ok="the engine starts, and the prompt fits some setting",
        problem="the engine does not start, or the prompt fits no setting",
    ),
    "logs": CommandCodes(
        ok="the log shows no failure",
        problem="the log or the dump shows a failure",
        undecided="nothing shows an end, the log was not read to its end, or it is no "
        "log",
    ),
    "matrix diff": CommandCodes(
        ok="nothing that raises an alert",
        problem="a bug returned, or a cell drifted, is flaky or fails differently",
    ),
    "matrix run": CommandCodes(
        ok="all jobs are as expected, or in quarantine",
        problem="outside of quarantine: an unexpected verdict, a flaky job, or an alert",
        undecided="a job has no verdict, or runs are left",
        infrastructure="infrastructure failed in every run, or no machine is left",
    ),
    "replay": CommandCodes(
        ok="no failure",
        problem="a failure was found and confirmed",
        undecided="a failure did not recur as often as required, or nothing was tested",
    ),
    "repro": CommandCodes(
        ok="not reproduced",
        problem="reproduced",
        undecided="nothing was tested, another failure, or it needs other hardware or the "
        "real model",
    ),
    "resume": CommandCodes(
        ok="as for the command that is continued",
        problem="likewise",
        undecided="likewise",
        infrastructure="likewise",
    ),
    "run": CommandCodes(
        ok="the outcome is the expected one",
        problem="the outcome is not the expected one",
        undecided="inconclusive",
    ),
    "upgrade": CommandCodes(
        ok="no significant difference",
        problem="a significant difference",
        undecided="a comparison is undecided",
    ),
    "watch": CommandCodes(
        ok="with --once: the server is live", problem="a server is not live"
    ),
    "why": CommandCodes(
        ok="the server is ready",
        problem="the start failed or is stuck, and the cause is known",
        undecided="the cause is unknown, or the server is still starting",
    ),
}
"""By command. A command that is not here ends with 0 when it has done its work."""
DONE: Final = CommandCodes(ok="done")
GIT: Final = {
    0: "the failure is not there",
    1: "the failure is there",
    125: "the tree cannot be tested, or fails in another way",
    128: "the bisection stops: a wrong command line, or a fault of this machine",
}
"""Exit codes of ``bisect-run``, as ``git bisect run`` reads them."""
EXIT_ZERO: Final = "Exit with 0 where the verdict would be 1 or 3; errors keep theirs."


def codes_of(command: str) -> CommandCodes:
    """What the exit codes of a command mean: ``matrix run``."""
    return CODES.get(command, DONE)


def help_rows(command: str) -> list[tuple[str, str]]:
    """Rows of the command's help: a code, and its meaning."""
    if command == "bisect-run":
        return [(str(code), text) for code, text in GIT.items()]
    return [(str(code.value), text) for code, text in codes_of(command).rows]


def short_table(command: str) -> str:
    """In one line: ``0 healthy, 1 a known failure was found, …``."""
    return ", ".join(f"{code} {text}" for code, text in help_rows(command))


def page() -> str:
    """docs/exit-codes.md, as ``mmrepro help exit-codes`` prints it."""
    lines = [
        "# Exit codes",
        "",
        "They mean the same for all commands. `mmrepro help exit-codes` prints this page,",
        "which is generated from `harness/cli/exit_codes.py`.",
        "",
        "| code | meaning |",
        "|---|---|",
    ]
    for code, text in MEANINGS.items():
        lines.append(f"| {code.value} | {_cell(text)} |")
    lines += [
        "",
        "`--exit-zero`, for each command with a verdict: exits with 0 in place of 1 and",
        "3. Errors (2, 4) keep their code.",
        "",
        "## By command",
        "",
        "| command | 0 | 1 | 3 | 4 |",
        "|---|---|---|---|---|",
    ]
    for command, codes in CODES.items():
        cells = [codes.ok, codes.problem, codes.undecided, codes.infrastructure]
        texts = " | ".join(_cell(text) for text in cells)
        lines.append(f"| `{command}` | {texts} |")
    lines += [
        "",
        "All other commands end with 0 when they have done their work. `bisect-run` has",
        "the codes of `git bisect run`:",
        "",
    ]
    for number, text in GIT.items():
        lines.append(f"- {number}: {text}")
    lines += [
        "",
        "- `run` compares with what is expected of the release: `not-reproduced` on an",
        "  unaffected release is 0, and `reproduced` on one is 1. `repro` expects nothing:",
        "  a reproduced report is a problem that was found.",
        "- Of `--repeat` the worst code counts; an unexpected result outweighs an",
        "  inconclusive run. Of `matrix run` the first counts that holds of 2, 130, 1, 4,",
        "  3, 0.",
        "- A full or closed stdout is 4, with a sentence, whatever the outcome: read it in",
        "  the incident. Characters that the encoding of stdout lacks (`LC_ALL=C`, a",
        "  latin-1 terminal) are written as JSON escapes, so that `--json` stays JSON.",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
