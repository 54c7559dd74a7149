"""What of a finding may leave the machine: other words and pictures of the same shape, redacted."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mmrepro.capture.anonymise import anonymise
from mmrepro.capture.messages import Captured
from mmrepro.case.files import read_case, read_contents, write_case
from mmrepro.case.model import CASE_FILE, Case
from mmrepro.incident.replay import PUBLIC_DIR, Finding, FindingClass
from mmrepro.reports.finding import LoadedFinding
from mmrepro.text.redact import Redactor

NOT_PLAYED: Final = (
    "Texts and images are random ones of the same lengths, sizes and sharing; the failure was "
    "seen with the real ones, and the random ones were not played"
)
_SPOKEN: Final = (FindingClass.CROSS_TALK, FindingClass.WRONG_ANSWER, FindingClass.CANARY)
"""Classes whose sentences quote answers."""
_QUOTED: Final = re.compile(r"""(['"])((?:\\.|(?!\1)[^\\]){3,4000})\1""")


@contextmanager
def public(loaded: LoadedFinding, redactor: Redactor | None = None) -> Iterator[LoadedFinding]:
    """``loaded`` for others, while its pictures are needed."""
    redactor = redactor or Redactor()
    if loaded.case is None:
        yield LoadedFinding(
            redactor.redact_model(loaded.replay), _without_words(loaded, redactor), None
        )
        return
    register(loaded.case, redactor)
    replay = redactor.redact_model(loaded.replay)
    with tempfile.TemporaryDirectory(prefix="mmrepro-") as temporary:
        case, played = _public_case(loaded, Path(temporary))
        finding = _without_words(loaded, redactor)
        if not played:
            finding.limits.append(NOT_PLAYED)
            for one in finding.expectations:
                one.text = None  # the answer to other words
        yield LoadedFinding(replay, finding, _without_keys(case, redactor), Path(temporary))


def register(case: Case, redactor: Redactor) -> None:
    """Make ``redactor`` know every text of ``case``: messages, prompts, recorded answers."""
    for op in case.operations:
        for message in op.messages or []:
            for part in message.parts():
                redactor.add(part.text or "", "prompt")
        if isinstance(op.prompt, str):
            redactor.add(op.prompt, "prompt")
        if op.recorded is not None:
            redactor.add(op.recorded.text, "answer")


def _public_case(loaded: LoadedFinding, folder: Path) -> tuple[Case, bool]:
    """The case that may go out, written to ``folder``; whether a play of it has failed."""
    assert loaded.case is not None
    own = loaded.folder / PUBLIC_DIR if loaded.folder is not None else None
    if own is not None and (own / CASE_FILE).is_file():
        case, place = read_case(own)
        write_case(case, folder, read_contents(case, place))
        return case, True
    contents = read_contents(loaded.case, loaded.folder)
    captured = Captured(loaded.case, contents)
    played = loaded.case.origin.anonymised
    if not played:
        captured = anonymise(captured, loaded.replay.seed, _tokenizer(loaded.case))
    write_case(captured.case, folder, captured.contents)
    return captured.case, played


def _without_keys(case: Case, redactor: Redactor) -> Case:
    """``case`` with the server's settings and the requests' parameters redacted; the words stay."""
    redacted = redactor.redact_model
    return case.model_copy(
        update={
            "title": redactor.redact(case.title),
            "server": redacted(case.server),
            "origin": redacted(case.origin),
            "operations": [
                op.model_copy(update={"parameters": redactor.redact_value(op.parameters)})
                for op in case.operations
            ],
        }
    )


def _tokenizer(case: Case) -> Path | None:
    """The folder of the model whose tokens count; None: a tiny one's."""
    folder = Path(case.server.model)
    return folder if (folder / "tokenizer.json").is_file() else None


def _without_words(loaded: LoadedFinding, redactor: Redactor) -> Finding:
    from mmrepro.reports.bundle import redact_log

    finding = loaded.finding.model_copy(deep=True)
    for op, text in finding.observed.items():
        if text[:1] == "2":  # the answer to words that do not go out
            finding.observed[op] = text[:3]
    finding.log_lines = [redact_log(text, redactor) for text in finding.log_lines]
    if finding.finding_class in _SPOKEN:

        def hidden(text: str) -> str:
            return _QUOTED.sub(lambda m: redactor.placeholder("answer", m[2]), text)

        finding.said, finding.known_why = hidden(finding.said), hidden(finding.known_why)
        finding.observed = {op: hidden(text) for op, text in finding.observed.items()}
    return redactor.redact_model(finding)
