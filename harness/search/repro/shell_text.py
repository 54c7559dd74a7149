"""What is open at the end of a shell's text, told line by line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_HERE: Final = re.compile(r"(?<!<)<<(?!<)-?[ \t]*+[\"']?([A-Za-z_]\w*+)[\"']?")
FUNCTION: Final = re.compile(
    r"\s*(?:function\s+([\w-]+)(?:\s*\(\))?|([\w-]+)\s*\(\))\s*\{?"
)
_FUNCTION_ENDS: Final = re.compile(r"\s*\}|[^#]*;\s*\}\s*$")


class ShellText:
    """Reads lines; each is looked at once.

    Attributes:
        quote: the mark of the quote that is open; "": none is.
        documents: words that end the heredocs which are open, in order.
        function: whether a function is open. Its brace is closed on a line of its own,
            or at a line's end.
    """

    def __init__(self) -> None:
        self.quote = ""
        self.documents: list[str] = []
        self.function = False

    @property
    def is_open(self) -> bool:
        return bool(self.quote or self.documents or self.function)

    def read(self, lines: str) -> None:
        """Read a line, or several that backslashes join."""
        if FUNCTION.match(lines):
            self.function = True
        if self.function and _FUNCTION_ENDS.match(lines):
            self.function = False
        for line in lines.split("\n"):
            if not self.documents:
                self._read(line)
            elif line.strip(" \t") == self.documents[0]:
                del self.documents[0]

    def _read(self, line: str) -> None:
        """Quotes and heredocs that a line opens and closes. A comment opens none."""
        place = 0
        while place < len(line):
            char = line[place]
            if self.quote == "'":
                self.quote = "" if char == "'" else self.quote
            elif char == "\\":
                place += 1
            # Also in double quotes: "$(cat <<EOF" brings a document.
            elif char == "<" and (found := _HERE.match(line, place)):
                self.documents.append(found[1])
                place = found.end() - 1
            elif self.quote:
                self.quote = "" if char == self.quote else self.quote
            elif char in "'\"":
                self.quote = char
            elif char == "#" and not line[place - 1 : place].strip():
                return

            place += 1


_ROOT: Final = re.compile(r"[ \t]*#[ \t]+")
_GOES_ON: Final = re.compile(r"[ \t]*>[ \t]?")
_TRACED: Final = re.compile(r"[ \t]*\++[ \t]+")
"""What ``set -x`` prints before a line that is run."""
_PROMPTED: Final = re.compile(
    r"[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[\w.-]+@\S{1,80}[$#]|[$%])[ \t]"
)


def as_typed(text: str, is_command: Callable[[str], bool]) -> str:
    """Rewrite what a shell prints before typed lines: root's prompt becomes a user's,
    and the mark before a line that goes on is dropped.

    Args:
        is_command: whether a line is one that somebody types. Where such a line has no
            prompt, a ``#`` begins a comment.
    """
    lines = text.split("\n")
    is_roots = not any(map(is_command, lines))
    typed: list[str] = []
    open_text = ShellText()
    going = False
    for line in lines:
        if going:
            mark = _GOES_ON.match(line)
            line = line[mark.end() :] if mark else line
        elif is_roots and _ROOT.match(line) and is_command(_ROOT.sub("", line, 1)):
            line = _ROOT.sub("$ ", line, 1)
        elif _TRACED.match(line) and is_command(_TRACED.sub("", line, 1)):
            line = _TRACED.sub("$ ", line, 1)
        typed.append(line)
        prompt = _PROMPTED.match(line)
        if not going and prompt is None:
            continue
        open_text.read(line[prompt.end() :] if prompt and not going else line)
        going = line.rstrip().endswith("\\") or open_text.is_open

    return "\n".join(typed)
