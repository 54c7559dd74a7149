"""Planted facts: two requests at once, each told a code that nobody else knows. A code in
the other one's answer is somebody else's words, whatever the model is.

The codes are random and 64 bits long: a model does not guess one. A model that repeats
nothing shows nothing either; the round then says that it was blind."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mmrepro.probes import InferenceData, run_probe
from mmrepro.probes.http import InferenceProbe

EVERY_S = 60.0
"""Between two rounds: other people's words are found within some minutes, and four small
requests a minute cost little."""
TOKENS = 48
_ASKED = "The code word of this session is {own}. Repeat the code word of this session."


class CanaryVerdict(StrEnum):
    """What one round shows."""

    CLEAN = "clean"
    BLIND = "blind"
    """No answer repeats its own code: the model could not show another one's."""
    CONTAMINATED = "contaminated"
    UNSTEADY = "unsteady"
    """The same greedy request had two answers. Batches may round differently."""
    UNANSWERED = "unanswered"


@dataclass(frozen=True)
class CanaryRound:
    """``hashes``: SHA-256 of what was asked and answered, of both sessions."""

    verdict: CanaryVerdict
    sentence: str
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Session:
    code: str
    prompt: str
    answer: str

    @property
    def digest(self) -> str:
        transcript = f"{self.prompt}\0{self.answer}".encode()
        return hashlib.sha256(transcript).hexdigest()


def judge_round(first: _Session, second: _Session, again: str) -> CanaryRound:
    """What two sessions' answers show; ``again``: of the first one's request, sent once
    more. Pure."""
    hashes = first.digest, second.digest
    leaks = [
        session
        for session, other in ((first, second), (second, first))
        if other.code in session.answer
    ]
    if leaks:
        return CanaryRound(
            CanaryVerdict.CONTAMINATED,
            "a session's answer has a code that only the other session got; "
            f"transcripts {hashes[0][:16]} and {hashes[1][:16]} (SHA-256)",
            hashes,
        )
    if again != first.answer:
        return CanaryRound(
            CanaryVerdict.UNSTEADY,
            "the same greedy request had two different answers",
            hashes,
        )
    repeated = [s for s in (first, second) if s.code in s.answer]
    if not repeated:
        return CanaryRound(CanaryVerdict.BLIND, "no answer repeats its own code")
    return CanaryRound(CanaryVerdict.CLEAN, "each answer has its own code alone")


class Canary:
    """Sends the rounds to one server."""

    def __init__(
        self, url: str, deadline_s: float, headers: Mapping[str, str] | None = None
    ) -> None:
        self._url = url
        self._deadline_s = deadline_s
        self._headers = dict(headers or {})
        self.counts: dict[CanaryVerdict, int] = dict.fromkeys(CanaryVerdict, 0)

    def round(self, model: str) -> CanaryRound:
        """Ask both sessions at once, then the first one again; never raises for what a
        server does."""
        codes = [secrets.token_hex(8) for _ in range(2)]
        prompts = [_ASKED.format(own=code) for code in codes]
        with ThreadPoolExecutor(2, "canary") as pool:
            answers = list(pool.map(lambda text: self._ask(model, text), prompts))
        again = self._ask(model, prompts[0])
        made = _judged(codes, prompts, answers, again)
        self.counts[made.verdict] += 1
        return made

    def _ask(self, model: str, prompt: str) -> str | None:
        """The answer; None: there is none."""
        probe = InferenceProbe(
            self._url,
            model,
            self._deadline_s,
            prompt=prompt,
            unique=False,
            max_tokens=TOKENS,
            headers=self._headers,
        )
        with tempfile.TemporaryDirectory(prefix="mmrepro-canary-") as folder:
            data = run_probe(probe, Path(folder), self._deadline_s + 1.0).data
        if not isinstance(data, InferenceData) or not data.answered:
            return None
        return data.text


def _judged(
    codes: list[str],
    prompts: list[str],
    answers: list[str | None],
    again: str | None,
) -> CanaryRound:
    first, second = answers
    if first is None or second is None or again is None:
        return CanaryRound(CanaryVerdict.UNANSWERED, "not all sessions were answered")
    return judge_round(
        _Session(codes[0], prompts[0], first),
        _Session(codes[1], prompts[1], second),
        again,
    )
