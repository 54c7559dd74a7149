"""What a scenario's file declares, read without running it.

Another process parses it (:mod:`mmrepro.scenario.declared_fields`), within limits of
time and memory; here its answer is taken as data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import BrokenScenario, UnknownScenario
from mmrepro.base.machine import is_file, read_file
from mmrepro.base.records import Record
from mmrepro.scenario import declared_fields
from mmrepro.scenario.definition import Scenario, paragraphs, section
from mmrepro.scenario.parts import NOT_LOOKED_UP, ON, PROJECTS, FailureClass, Severity
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import ValidationError

_MOST_BYTES: Final = 1 << 20
_TIMEOUT_S = 15.0


class DeclaredCondition(Record):
    id: str
    part: str
    statement: str
    required: bool


class DeclaredMitigation(Record):
    name: str
    description: str
    release: str


class DeclaredReference(Record):
    kind: str
    id: str
    title: str
    url: str

    @property
    def address(self) -> str:
        """Where it is; of ``issue("vllm#26223", "…")`` its page at GitHub."""
        project, mark, number = self.id.partition("#")
        if self.url or not mark or project not in PROJECTS:
            return self.url
        return f"https://github.com/{PROJECTS[project]}/{_PAGES.get(self.kind, '')}/{number}"


_PAGES: Final = {"issue": "issues", "pull": "pull"}


class DeclaredUpstream(Record):
    state: str = ""
    source: DeclaredReference | None = None
    looked_up: str = ""
    release: str = ""


class DeclaredScenario(Record):
    """The fields of a scenario as its file has them; "" or []: not there, or only a run
    tells."""

    name: str
    engine: str
    release: str
    affected: str
    server: str
    variant: str
    variants: list[str]
    devices: list[str]
    failure_class: str
    severity: str
    docstrings: list[str]
    conditions: list[DeclaredCondition]
    mitigations: list[DeclaredMitigation]
    references: list[DeclaredReference]
    upstream: DeclaredUpstream

    @property
    def title(self) -> str:
        text = self.docstrings[0] if self.docstrings else ""
        return paragraphs(text)[0].removesuffix(".") if text else ""

    @property
    def summary(self) -> str:
        return section(self.docstrings, "What:")

    @property
    def explanation(self) -> str:
        return section(self.docstrings, "Why:")

    @property
    def affected_where(self) -> str:
        where = "" if {*self.devices} >= {*ON} else " or ".join(self.devices)
        return f"{self.affected}, {where} alone" if where else self.affected

    @property
    def kind(self) -> str:
        """What a user sees, and how bad it is; "": it is not declared."""
        if self.failure_class not in {*FailureClass}:
            return ""
        words = FailureClass(self.failure_class).words
        return f"{words}, {self.severity}" if self.severity in {*Severity} else words

    @property
    def upstream_words(self) -> str:
        """What the engine's project says of it, for people."""
        state = self.upstream.state or NOT_LOOKED_UP.state
        words = state.replace("-", " ")
        if self.upstream.release:
            words += f" in {self.upstream.release}"
        if self.upstream.source is not None:
            words += f": {self.upstream.source.id}"
        if self.upstream.looked_up:
            words += f" ({self.upstream.looked_up})"
        return words

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of ``mmrepro list``."""
        variants = ", ".join(self.variants)
        title = f"{self.title} ({variants})" if variants else self.title
        about = f"{title} (declared, not run)"
        return self.name, self.engine, self.affected_where, self.release, about


def read_declared(name: str) -> DeclaredScenario:
    """What the file ``name`` declares. Nothing of it is run.

    Raises:
        UnknownScenario: there is no such file.
        BrokenScenario: it is no Python that can be parsed within the limits, or has no
            scenario.
    """
    path = Path(name)
    if not is_file(path):
        raise UnknownScenario(f"There is no scenario file {path}.", hint="mmrepro list")
    try:
        source = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise BrokenScenario(
            f"{path} cannot be loaded: {error.strerror or error}."
        ) from error
    answer = _parsed(path, source)
    if unreadable := answer.get("unreadable"):
        raise BrokenScenario(
            f"{path} {unreadable}.",
            hint="SCENARIO = TheClass(); mmrepro new NAME writes a file that has it",
        )
    try:
        fields = DeclaredScenario.model_validate(answer.get("fields"))
    except ValidationError as error:
        raise BrokenScenario(
            f"{path} declares no scenario that can be shown."
        ) from error
    fields.engine = fields.engine or Scenario.engine
    fields.devices = fields.devices or list(ON)
    fields.affected = _range(fields.affected)
    return fields


def _parsed(path: Path, source: bytes) -> dict[str, Any]:
    """The answer of the process that parses. Raises BrokenScenario: it gave none."""
    command = [sys.executable, "-I", "-S", "-B", str(Path(declared_fields.__file__))]
    try:
        ended = subprocess.run(
            command,
            input=source,
            capture_output=True,
            timeout=_TIMEOUT_S,
            env={},
            check=False,
        )
        document = json.loads(ended.stdout)
    except subprocess.TimeoutExpired:
        raise BrokenScenario(
            f"{path} was not parsed within {_TIMEOUT_S:.0f} s."
        ) from None
    except (
        ValueError
    ):  # it was ended: by a limit, or by a depth that Python's parser cannot bear
        raise BrokenScenario(
            f"{path} cannot be parsed: it is too large or too deep."
        ) from None
    return document if isinstance(document, dict) else {}


def _range(affected: str) -> str:
    """The affected releases, lower bound first; as they are written, if that is no
    range."""
    try:
        parts = str(SpecifierSet(affected)).split(",")
    except InvalidSpecifier:
        return affected
    return ", ".join(sorted(parts, key=lambda part: (part[:1] != ">", part)))
