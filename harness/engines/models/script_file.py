"""A file of scripts: what a model says, as people and reports write it.

TOML with a table for each script, or plain text, which is one script. What is in it is
data: its writer may be anybody."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import read_file, read_toml
from mmrepro.base.records import Record, misfits
from mmrepro.engines.models.families import all_tokens, family_of, frames
from mmrepro.engines.models.scripted import (
    Script,
    ScriptedModel,
    pieces_of,
    trigger_of,
)
from mmrepro.engines.models.stack import (
    TextModel,
    TinyLlamaText,
    TinyQwen3Moe,
    TinyQwen3Text,
)
from pydantic import Field, StringConstraints, ValidationError

_MOST_BYTES: Final = 1 << 18
_MOST_SCRIPTS: Final = 200
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL: Final = r"^[^\s⟦⟧][^⟦⟧]{0,62}[^\s⟦⟧]$"

BASES: Final[Mapping[str, TextModel]] = {
    "text": TinyLlamaText(),
    "qwen3-text": TinyQwen3Text(),
    "qwen3-moe": TinyQwen3Moe(),
}
"""Tiny models that say scripts, by their names: those whose first layer has plain
attention."""
USUAL_BASE: Final = "text"


class ScriptedCall(Record):
    """A call of a tool that a sound parser finds in a script."""

    name: str
    arguments: dict[str, Any] = {}


class ScriptedAnswer(Record):
    """One script.

    What a sound parser makes of it may be told as well: ``content``, ``reasoning`` and
    ``calls``. Then answers are held against that."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")] = (
        "answer"
    )
    text: Annotated[str, Field(description="what is said; cut into words")] = ""
    pieces: Annotated[
        list[str],
        Field(description="in place of text: its tokens; <0xC3> is a byte"),
    ] = []
    ends: Annotated[
        bool, Field(description="the model ends after it; else it begins again")
    ] = True
    after_text: Annotated[
        str, Field(description="said when the last message has this text")
    ] = ""
    with_tools: Annotated[
        bool, Field(description="said when the request brings tools")
    ] = False
    after_tool: Annotated[
        bool, Field(description="said when the last message is a tool's result")
    ] = False
    turn: Annotated[
        int, Field(ge=0, le=1000, description="said as the answer of that number")
    ] = 0
    content: Annotated[str | None, Field(description="that a sound parser leaves")] = (
        None
    )
    reasoning: Annotated[
        str | None, Field(description="that a sound parser takes out")
    ] = None
    calls: Annotated[
        list[ScriptedCall] | None, Field(description="that a sound parser finds")
    ] = None

    @property
    def is_told(self) -> bool:
        """Whether it says what a sound parser makes of it."""
        return self.content is not None or self.calls is not None

    def script(self, shared: Collection[str]) -> Script:
        """As a model says it. Raises UsageError: it says nothing."""
        if bool(self.text) == bool(self.pieces):
            raise UsageError(
                f"The script {self.name} has exactly one of text and pieces.",
                hint='text = "Hello there."',
            )
        if self.pieces:
            pieces = tuple(_piece(piece, shared) for piece in self.pieces)
        else:
            pieces = pieces_of(self.text, shared)
        return Script(
            name=self.name,
            pieces=pieces,
            ends=self.ends,
            after_text=self.after_text,
            with_tools=self.with_tools,
            after_tool=self.after_tool,
            turn=self.turn,
        )


def _piece(piece: str, shared: Collection[str]) -> str:
    """A token's text; bytes that are written as ``<0xC3>`` are bytes, where that is no
    token itself."""
    if piece in shared:
        return piece

    def byte(written: re.Match[str]) -> str:
        return bytes([int(written[1], 16)]).decode("utf-8", "surrogateescape")

    return _BYTE.sub(byte, piece)


class Scripts(Record):
    """All that a model says.

    Attributes:
        family: whose special tokens and conversation it has; "": the tokens of all
            families.
        tokens: further special tokens.
        hidden: special tokens that an answer is shown without.
        unread: the parser of a server does not read even the plainest script.
    """

    family: str = ""
    tokens: Annotated[
        list[Annotated[str, StringConstraints(pattern=_SPECIAL)]], Field(max_length=500)
    ] = []
    hidden: Annotated[list[str], Field(max_length=500)] = []
    script: Annotated[
        list[ScriptedAnswer], Field(min_length=1, max_length=_MOST_SCRIPTS)
    ]
    unread: Annotated[
        bool,
        Field(
            description="a parser did not read the plainest script: what it leaves in a "
            "text is not judged",
            exclude_if=lambda unread: not unread,
        ),
    ] = False

    def model(self, base: str = USUAL_BASE) -> ScriptedModel:
        """The model that says them, of the architecture of a tiny one. Raises
        UsageError: there is no such family or base, or a script is none."""
        if base not in BASES:
            raise UsageError(
                f"The tiny model {base} says no scripts.", hint=", ".join(BASES)
            )
        shared = self.shared
        frame = frames()["chatml"]
        if self.family:
            frame = frames()[family_of(self.family).frame]
        return ScriptedModel(
            scripts=tuple(answer.script(shared) for answer in self.script),
            shared=shared,
            hidden_tokens=tuple(self.hidden),
            base=BASES[base],
            frame=frame,
        )

    @property
    def shared(self) -> tuple[str, ...]:
        """Tokens that parsers know by their ids."""
        known = family_of(self.family).tokens if self.family else all_tokens()
        return tuple(dict.fromkeys((*known, *self.tokens, *self.hidden)))

    def chosen(self, body: Mapping[str, Any]) -> ScriptedAnswer | None:
        """The script that a request's body is answered with; None: that is not known.

        A chat's template chooses it, and in a completion the prompt's last token."""
        if any(body.get(name) for name in _OTHER_PROMPT):
            return None
        messages, prompt = body.get("messages"), body.get("prompt")
        if isinstance(messages, list) and messages:
            if body.get("add_generation_prompt") is False:
                return None
            return self._of_chat(messages, bool(body.get("tools")))
        if not isinstance(prompt, str) or not prompt:
            return None
        for answer in self.script:
            if prompt.endswith(trigger_of(answer.name)):
                return answer
        # A special token at the end may be one of a script's own.
        ends = any(prompt.endswith(token) for token in self.shared)
        return None if ends else self.script[0]

    def _of_chat(self, messages: list[Any], tools: bool) -> ScriptedAnswer | None:
        if not all(isinstance(message, dict) for message in messages):
            return None
        shared = self.shared
        for answer in self.script:
            script = answer.script(shared)
            if script.condition and script.holds(messages, tools):
                return answer
        return self.script[0]


_OTHER_PROMPT: Final = (
    "chat_template",
    "continue_final_message",
    "echo",
    "documents",
    "suffix",
    "prompt_embeds",
)
"""Fields of a request by which its prompt ends otherwise."""


def read_scripts(file: Path) -> Scripts:
    """Read a file of scripts: TOML where its name ends so, else one script of plain
    text. Raises UsageError: it cannot be read, or says nothing that a model could."""
    if file.suffix == ".toml":
        document = read_toml(file, hint=_HINT)
        return checked_scripts(document, str(file))
    try:
        text = read_file(file, _MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    return checked_scripts({"script": [{"text": text}]}, str(file))


def checked_scripts(document: Mapping[str, Any], source: str) -> Scripts:
    """The scripts that a document says. Raises UsageError: it is of no such form, or
    too much."""
    try:
        scripts = Scripts.model_validate(document)
    except ValidationError as error:
        first = misfits(error, document)[0]
        raise UsageError(f"{source}: {first.text}.", hint=_HINT) from error
    scripts.model()  # raises where a script is none
    return scripts


_HINT: Final = "mmrepro help verdicts has the form"
