"""What GitHub's runner makes of the output of a step, as its ActionCommand.cs has
it."""

from collections.abc import Iterable
from dataclasses import dataclass

COMMANDS = {
    "error",
    "warning",
    "notice",
    "debug",
    "add-mask",
    "set-output",
    "set-env",
    "add-path",
    "stop-commands",
    "group",
    "endgroup",
    "echo",
    "add-matcher",
    "save-state",
}


@dataclass
class Command:
    name: str
    properties: dict[str, str]
    data: str


def as_the_runner_reads_it(line: str) -> Command | None:
    """What GitHub's runner makes of a line (ActionCommand.cs): the new form, else the
    old one."""
    stripped = line.lstrip()
    if stripped.startswith("::"):
        info, separator, data = stripped[2:].partition("::")
        name, _, rest = info.partition(" ")
        if separator and name in COMMANDS:
            pairs = [p.partition("=") for p in rest.strip().split(",") if p]
            return Command(
                name, {k: unescaped(v, ":,") for k, _, v in pairs}, unescaped(data)
            )
    _, prefix, rest = line.partition("##[")
    info, bracket, data = rest.partition("]")
    if prefix and bracket and info.partition(" ")[0] in COMMANDS:
        return Command(info.partition(" ")[0], {"old": info}, data)
    return None


def unescaped(text: str, more: str = "") -> str:
    for sign in f"\r\n{more}%":
        text = text.replace(f"%{ord(sign):02X}", sign)
    return text


def commands_in(lines: Iterable[str]) -> list[Command]:
    """Those that it obeys; what stands between ``stop-commands`` and its token it only
    shows."""
    found, token = [], ""
    for line in lines:
        if token:
            token = "" if line.strip() == f"::{token}::" else token
            continue
        read = as_the_runner_reads_it(line)
        if read is not None and read.name == "stop-commands":
            token = read.data
        elif read is not None:
            found.append(read)
    return found
