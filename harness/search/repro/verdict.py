"""What a replay says of a bug report's claim. Pure functions.

A failure is *reproduced* where it is the reported one; it is *not reproduced* only where
what the report is about came. All else says that nothing can be said, and why."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Sequence
from typing import Final

from mmrepro.base.records import FindingClass
from mmrepro.engines.features import shown_by
from mmrepro.failure.documents.replay import (
    Answer,
    Claim,
    Finding,
    Needs,
    PlayFacts,
    Replaced,
    Replay,
    ReportFacts,
    ReproVerdict,
    Sighting,
)
from mmrepro.search.oracle.scripted import A_CALL, A_THOUGHT, HELD, JSON_ANSWER
from mmrepro.search.replay.pursue import LOUD
from mmrepro.search.repro.claim import BY_EACH, ECHOES, EXCEPTION, SHOWS
from mmrepro.search.repro.vocabularies import vocabulary_of
from mmrepro.traffic.case import PlayState

_LIMITS: Final = re.compile(
    r"context length|max_model_len|maximum (?:model|context|input|allowed)|too long"
    r"|longer than|"
    r"exceeds?|does not exist|not a multimodal|multimodal|chat template|tool[- ]?call"
    r"|--enable-|"
    r"restart |not supported (?:by|for|on) (?:this|the) model|does not support"
    r"|not enabled|"
    r"at most \d+ image|no (?:adapter|lora)|model_not_found|not found|unauthori[sz]ed|"
    r"grammar backend|reasoning parser|out[ -]of[ -]vocab|vocab",
    re.IGNORECASE,
)
"""How a refusal reads that is about the server's options or its stand-in, and not the
request."""
_OPTION: Final = re.compile(r"--[a-z][\w-]*\w")


def _limit(words: str, tokens: int, given: Collection[str]) -> bool:
    """Whether a refusal is about the server's options or its stand-in. A token id that
    the real model, of ``tokens``, lacks as well is refused for itself; one that asks
    for an option which the server has been ``given`` is wrong."""
    if not set(_OPTION.findall(words)).isdisjoint(given):
        return False
    if "vocab" in words.lower():
        numbers = map(int, re.findall(r"(?<![\w.])-?\d{1,19}(?![\w.]*\w)", words))
        if any(number < 0 or number >= tokens for number in numbers):
            return False
    return _LIMITS.search(words) is not None


def concluded(replay: Replay) -> tuple[ReproVerdict, str]:
    """Conclude what the replay of a report shows, with the sentence. The report's own
    facts are in it."""
    report = replay.report
    assert report is not None
    claim = report.claim
    confirmed = [finding for finding in replay.findings if finding.confirmed]
    for finding in confirmed:
        if _needs_nothing(finding):
            said = f"it needs none of the report's requests: {finding.said}"
            return ReproVerdict.NOTHING_TESTED, f"nothing was tested: {said}"
        if matches(finding, claim):
            if _is_unread(report) and finding.finding_class in LOUD:
                return ReproVerdict.UNPROVEN, f"{finding.said.rstrip('.')}; {_UNREAD}"
            return ReproVerdict.REPRODUCED, _reproduced(finding)
    real = _real_model(report)
    tokens = vocabulary_of(real)
    answer = _as_reported(replay, claim, tokens)
    if answer is not None:
        words = f"{answer.operation} got {answer.words}, as in the report"
        return ReproVerdict.REPRODUCED, words
    if replay.untestable and not confirmed:
        return ReproVerdict.NEEDS_HARDWARE, replay.untestable[0]
    checked = _of_engine(report) or _checked(report)
    if checked is not None:
        verdict, said = checked
        # An engine that never was asked may want what is not here.
        return (
            _untold(replay, said) if verdict is ReproVerdict.NOTHING_TESTED else checked
        )

    start = FindingClass.START_FAILURE
    not_started = _of_class(replay.unconfirmed, {start})
    if not_started is not None and start not in claim.classes:
        return _untold(replay, f"nothing was tested: {not_started.said}")
    once: list[Finding | Sighting] = [f for f in replay.findings if not f.confirmed]
    once += replay.unconfirmed
    for shown in once:
        if matches(shown, claim):
            said = f"observed, and not as often as confirms it: {shown.said}"
            return ReproVerdict.UNPROVEN, said

    started = _of_class(confirmed, {start})
    if started is not None and _REFUSED_OPTION.search(started.said):
        said = f"nothing was tested: {started.said}"
        return ReproVerdict.NOTHING_TESTED, said
    if started is not None and start in claim.classes:
        said = f"{started.said.rstrip('.')}; whether that is the report's is not known"
        return _untold(replay, said)
    if started is not None:
        return _untold(replay, f"nothing was tested: {started.said}")
    other = _of_class(confirmed, LOUD if claim.words else BY_EACH)
    if other is not None:
        claimed = f", not the {claim.words} of the report" if claim.words else ""
        said = f"{other.finding_class}{claimed}: {other.said}"
        return ReproVerdict.DIFFERENT, said

    if report.died:
        said = (
            "the server ended while the client ran, and not when its requests "
            "were sent again"
        )
        return ReproVerdict.UNPROVEN, said
    if report.end is not None and report.end.saw and not _is_silent(claim):
        said = f"{report.end.saw} as the client ran, and not when that was sent again"
        return ReproVerdict.UNPROVEN, said

    return _silent(replay, real, tokens)


_REFUSED_OPTION: Final = re.compile(
    r"\bargument -{0,2}\w[^\n]{0,80}: (?:invalid|expected|not allowed)"
    r"|unrecognized arguments"
)
"""How the parser of a command refuses an option, which no model has to do with."""
_UNREAD: Final = (
    "what the report observed is not read from its words (--reported WORD, or --expect)"
)


def _is_unread(report: ReportFacts) -> bool:
    """Whether nothing is known of what a report observed."""
    claim = report.claim
    known = claim.words or claim.about or claim.exceptions or claim.expected
    return bool(report.source) and not known


def _is_silent(claim: Claim) -> bool:
    """Whether the report is of a fault that only an answer's content shows."""
    return LOUD.isdisjoint(claim.classes) and claim.status is None


def _checked(report: ReportFacts) -> tuple[ReproVerdict, str] | None:
    """What the client's own check says; None: nothing, or the report is of a loud
    failure, which no check shows."""
    end = report.end
    if end is None or not end.is_check or end.refused or not _is_silent(report.claim):
        return None
    place = f"the client's own check in line {end.line} ({end.exception})"
    answered = f"all of its {_requests(end.asked)} were answered"
    if end.failed < end.runs:
        said = f"{place} failed in {end.failed} of {end.runs} runs; {answered}"
        return ReproVerdict.UNPROVEN, said
    said = f"{place} fails in {end.failed} of {end.runs} runs on fresh servers"
    return ReproVerdict.REPRODUCED, f"{said}, and {answered}"


def _of_engine(report: ReportFacts) -> tuple[ReproVerdict, str] | None:
    """What the engine in a script's own process says, by how it ended that; None: it
    did not end it."""
    end, claim = report.end, report.claim
    if end is None or not end.in_engine:
        return None
    how = end.exception or f"exit code {end.code}"
    place = f"the engine in the script's own process ended it with {how}"
    times = f"in {end.failed} of {end.runs} runs"
    # Any two engines may fail to start by one kind of exception: its words decide.
    same_words = any(_is_within(message, end.message) for message in claim.messages)
    starts = FindingClass.START_FAILURE in claim.classes and same_words
    if not end.asked and not starts:
        said = f"nothing was tested: {place}, before it was asked anything"
        return ReproVerdict.NOTHING_TESTED, said
    real = _real_model(report)
    if _limit(end.message, vocabulary_of(real), ()):
        said = f"nothing was tested: {place}: {end.message}"
        return ReproVerdict.NOTHING_TESTED, said
    named = set(claim.exceptions)
    is_named = bool(named & set(end.raised))
    is_loud = not LOUD.isdisjoint(claim.classes) or (claim.status or 0) >= 500
    if not is_named and (named or not is_loud):
        return ReproVerdict.DIFFERENT, f"{place}, which is not what the report has"
    if end.failed < max(2, end.runs):
        return ReproVerdict.UNPROVEN, f"{place}, {times}"
    return ReproVerdict.REPRODUCED, f"{place}, {times}, each with a fresh engine"


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"


def _needs_nothing(finding: Finding) -> bool:
    """Whether a server that is sent none of the requests fails as well: what our own
    checks did, or its start, and not the report's client."""
    is_start = finding.finding_class is FindingClass.START_FAILURE
    return not (finding.requests or is_start)


def _of_class(
    shown: Sequence[Finding | Sighting], kinds: Collection[FindingClass]
) -> Finding | Sighting | None:
    """The first of these classes."""
    return next((item for item in shown if item.finding_class in kinds), None)


def matches(shown: Finding | Sighting, claim: Claim) -> bool:
    """Whether what was observed is what the report has: its class, and not another
    exception."""
    kind = shown.finding_class
    if kind is FindingClass.EXPECTATION:
        return _is_expected(shown, claim)
    if kind is FindingClass.START_FAILURE:
        # Any two starts fail by a RuntimeError of the engine's: its words decide.
        return kind in claim.classes and _says_the_same(shown, claim)
    mine = _exceptions(shown)
    named = set(claim.exceptions)
    if not claim.classes and claim.status is None:
        if kind not in LOUD:
            return _is_about(shown, claim)
        if claim.about and not mine & named:
            return False  # the report is of an answer, and not of a failure
        return not (mine and named) or bool(mine & named)

    if kind is FindingClass.PROTOCOL and not _is_about_none(claim):
        return kind in claim.classes and _is_about(shown, claim)
    if kind not in LOUD:
        return kind in claim.classes
    # One exception in common is enough: a log holds those that follow from it as well.
    if mine & named:
        return True
    if mine and named and kind is not FindingClass.HANG:
        return False
    return kind in claim.classes


_BESIDE_WHOLE: Final = re.compile(
    r"\bbeside \S+-whole the (text|reasoning|calls of tools|end) (?:is|are)\b"
)
_PARTS: Final = {
    # What a parser leaves in a text is how a lost call, or thought, looks.
    "text": {"text", "calls", "reasoning", "stop"},
    "reasoning": {"reasoning"},
    "calls of tools": {"calls"},
    "end": {"finish"},
}
"""Features that a report may be about where a stream has another part than the whole
answer."""


def _is_expected(shown: Finding | Sighting, claim: Claim) -> bool:
    """Whether somebody wrote down what is right; of the twin that we put beside a
    stream, whether the part that differs is what the report is about."""
    beside = _BESIDE_WHOLE.search(shown.said)
    if claim.expected or beside is None:
        return True
    return not _PARTS[beside[1]].isdisjoint(claim.about)


def _is_about_none(claim: Claim) -> bool:
    """Whether a report names no feature of an answer that an oracle judges."""
    return not any(feature in SHOWS for feature in claim.about)


def _says_the_same(shown: Finding | Sighting, claim: Claim) -> bool:
    """Whether what was logged has a message that the report has."""
    lines = shown.log_lines if isinstance(shown, Finding) else []
    said = " ".join([shown.said, *lines])
    return any(_is_within(message, said) for message in claim.messages)


def _is_within(message: str, text: str) -> bool:
    """Whether most of a message's words are in a text."""
    mine = set(_WORD.findall(message.lower()))
    theirs = set(_WORD.findall(text.lower()))
    return bool(mine) and 3 * len(mine & theirs) >= 2 * len(mine)


def _is_about(shown: Finding | Sighting, claim: Claim) -> bool:
    """Whether the feature that is wrong is one that the report is about."""
    if shown.finding_class is FindingClass.METRICS:
        return "metrics" in claim.about
    if shown.finding_class is not FindingClass.PROTOCOL:
        return False
    kind = shown.bucket.rpartition("/")[2]
    return any(kind in SHOWS.get(feature, ()) for feature in claim.about)


def _exceptions(shown: Finding | Sighting) -> set[str]:
    """Exceptions of the engine itself, in the first lines of its log and the
    sentence."""
    lines = shown.log_lines[:3] if isinstance(shown, Finding) else []
    names: set[str] = set()
    for line in [*lines, shown.said]:
        names.update(EXCEPTION.findall(line))
    return names - ECHOES


def _real_model(report: ReportFacts) -> str:
    """The model that the report has, and a tiny one replaces; "": none is replaced."""
    return next((item.what for item in report.replaced if item.model), "")


def refusal_reported(replay: Replay) -> Answer | None:
    """The answer that is the refusal which the report complains of; None: there is
    none."""
    report = replay.report
    assert report is not None
    real = _real_model(report)
    return _as_reported(replay, report.claim, vocabulary_of(real))


def _as_reported(replay: Replay, claim: Claim, tokens: int) -> Answer | None:
    """An answer that is the refusal which the report complains of."""
    if claim.status is None or claim.status >= 500:
        return None
    for answer in replay.answers:
        limit = _limit(answer.words, tokens, replay.server.args)
        if answer.status != str(claim.status) or limit:
            continue
        if not claim.messages or any(
            _alike(message, answer.words) for message in claim.messages
        ):
            return answer
    return None


def _alike(message: str, words: str) -> bool:
    """Whether a refusal's text is that of the report, as far as half of its words."""
    mine = set(_WORD.findall(message.lower()))
    theirs = set(_WORD.findall(words.lower()))
    return not mine or 2 * len(mine & theirs) >= min(len(mine), len(theirs))


_WORD: Final = re.compile(r"[a-z_]{4,}")


def _reproduced(finding: Finding) -> str:
    rate = finding.rate
    words = finding.said.rstrip(".")
    return f"{words}; in {rate.failed} of {rate.plays} replays on fresh servers"


_NO_PACKAGE: Final = re.compile(
    r"No module named '([\w.]{1,40})'|\b(\w{1,40}): command not found"
)


def _exception(printed: str, claim: Claim) -> str:
    """What a client ended with: an exception that Python or the report has; else no
    name."""
    name = printed.partition(":")[0].strip().rpartition(".")[2]
    raised = getattr(builtins, name, None)
    if isinstance(raised, type) and issubclass(raised, BaseException):
        return name
    return name if name in claim.exceptions else "a message"


def _silent(replay: Replay, real: str, tokens: int) -> tuple[ReproVerdict, str]:
    """Nothing that the report has was observed: does that say anything?"""
    report = replay.report
    assert report is not None
    claim, answers = report.claim, replay.tested
    is_start = FindingClass.START_FAILURE in claim.classes and not report.client
    if is_start and any(map(_has_started, replay.plays)):
        return _started(replay)
    if not answers:
        said = f"nothing was tested: {_not_sent(report)}"
        if FindingClass.WRONG_ANSWER in claim.classes:
            return _untold(replay, said)  # no request would show it here
        return ReproVerdict.NOTHING_TESTED, said
    refused = [answer for answer in answers if answer.refused]
    for answer in refused:
        if not _is_limit(answer, tokens, replay.server.args):
            continue
        said = f"nothing was tested: {answer.operation} got {answer.words}"
        if "vocab" in answer.words.lower():
            said += f" (the tiny model has fewer tokens than {real or 'the real one'})"
        elif _CONTEXT.search(answer.words):
            longer = longer_context(answer.words)
            said += f" (--max-model-len {longer}: its tokens are bytes)"
        # It is the stand-in that is small, where the code of the report runs.
        if _runs_its_code(replay):
            return ReproVerdict.NOTHING_TESTED, said
        return _untold(replay, said)

    ends_server = {FindingClass.DEATH, FindingClass.FAILING}
    if all(map(_has_left, answers)) and ends_server.isdisjoint(claim.classes):
        said = "nothing was tested: each client went away before its answer came"
        return ReproVerdict.NOTHING_TESTED, said
    all_refused = len(refused) == len(answers)
    if all_refused and _LOUD_ANSWERS.isdisjoint(claim.classes):
        return _untold(replay, replay.nothing_tested or _refused_otherwise(refused[0]))
    never = _never_shown(replay, claim)
    if never:
        said = f"nothing was tested: {never}"
        return _untold(replay, said)
    if refused and claim.words:
        status, _, words = refused[0].words.partition(" ")
        said = f"{status}, not the {claim.words} of the report: {words}"
        # A request that is refused never comes as far as what is not here.
        fails_by_request = {*claim.classes} <= _BY_REQUEST
        if all_refused and fails_by_request and not (claim.hardware or claim.rare):
            return ReproVerdict.NOT_REPRODUCED, said
    else:
        said = _answered(replay, claim)

    verdict, why = _untold(replay, "")
    if why:
        return verdict, f"{why}; here {said}"
    doubt = _doubt(report)
    if doubt:
        return ReproVerdict.NOTHING_TESTED, f"{doubt}; here {said}"
    return ReproVerdict.NOT_REPRODUCED, said


def _has_left(answer: Answer) -> bool:
    """Whether its client went away on purpose."""
    return answer.status == "left"


def _has_started(play: PlayFacts) -> bool:
    """Whether a play had a server that started, and did not fail later."""
    return play.start_s > 0 and play.state == PlayState.ENDED.value


def _started(replay: Replay) -> tuple[ReproVerdict, str]:
    """A report without a client is of a start, and the server starts."""
    assert replay.report is not None
    said = "the server starts"
    verdict, why = _untold(replay, "")
    why = why or _doubt(replay.report)
    if why:
        return verdict, f"{why}; here {said}"
    return ReproVerdict.NOT_REPRODUCED, said


def _runs_its_code(replay: Replay) -> bool:
    """Whether the server has the feature whose code the report's traceback names."""
    assert replay.report is not None
    server, hardware = replay.server, replay.report.claim.hardware
    name = shown_by(server.engine, server.release, hardware) if hardware else ""
    return bool(name) and f"{{feature:{name}}}" in server.args


_CONTEXT: Final = re.compile(
    r"context length|max_model_len|maximum (?:model|context|input|allowed)|too long"
    r"|longer than",
    re.IGNORECASE,
)
_LEAST_LONGER, _MOST_LONGER = 4096, 32768


def too_long(replay: Replay) -> Answer | None:
    """The first request that the tiny model's context is too short for, where the report
    is not of such a refusal; None: there is none."""
    report = replay.report
    assert report is not None
    for answer in replay.tested:
        if answer.refused and _CONTEXT.search(answer.words):
            return None if answer.status == str(report.claim.status) else answer
    return None


def longer_context(words: str) -> int:
    """A context in which a request that was too long for one has its place."""
    named = [int(number) for number in re.findall(r"(?<![\w.])\d{2,6}\b", words)]
    wanted = 2 * max(named, default=0)
    return max(_LEAST_LONGER, min(_MOST_LONGER, -(-wanted // 1024) * 1024))


_BY_REQUEST: Final = frozenset(
    {FindingClass.DEATH, FindingClass.FAILING, FindingClass.SERVER_ERROR}
)
"""Classes of a failure that a request brings about, which the server may refuse."""
_LOUD_ANSWERS: Final = _BY_REQUEST | {FindingClass.HANG, FindingClass.START_FAILURE}


def _refused_otherwise(answer: Answer) -> str:
    return f"nothing was tested: {answer.operation} got {answer.words}"


def _doubt(report: ReportFacts) -> str:
    """Why requests in which nothing showed do not refute the report; "": they do."""
    claim, end = report.claim, report.end
    if end is not None and end.ended:
        return (
            f"mmrepro ended the client early: {end.ended}, when "
            f"{_requests(end.asked)} had been sent (--client-timeout)"
        )
    if end is not None and end.exception and not end.refused:
        return (
            f"the client ended with {_exception(end.exception, claim)} and an exit "
            f"code of {end.code}: its further requests were not sent, or it reads what "
            "the model says (--script FILE)"
        )
    if claim.expected:
        return ""
    if _is_unread(report):
        return _UNREAD
    if claim.rare:
        return f"the report says that it comes and goes ({claim.rare!r})"
    if claim.classes and not _JUDGED.isdisjoint(claim.classes):
        kind = claim.classes[0].words
        return f"no short test with a tiny model refutes a report of {kind}"
    if not _is_silent(claim) or not report.source:
        return ""
    # An endpoint that a title names is where the fault is, and not what it is.
    if _is_about_none(claim) and "metrics" not in claim.about:
        return (
            "no rule of mmrepro's judges what the report has (--expect, or a client "
            "that asserts what is right)"
        )
    if "metrics" in claim.about:
        return (
            "of the server's counters only some are held against the requests, and "
            "those agree (a client that asserts what is right says more)"
        )
    if report.shows_sound:
        return (
            "the answer that the report shows is what a sound parser makes of its model's "
            "output: no rule of mmrepro's says what is wrong with it (--expect)"
        )
    if _OF_OUTPUT.isdisjoint(claim.about) or report.shows_output:
        return ""
    return (
        "the report does not show what its model said, on which it hangs (--script FILE: "
        "those words, and the content and calls of a sound answer)"
    )


_JUDGED: Final = frozenset(
    {
        FindingClass.WRONG_ANSWER,
        FindingClass.RESIDUE,
        FindingClass.CROSS_TALK,
        FindingClass.METRICS,
    }
)
"""Classes of a claim that some requests to a model with random weights never
refute."""
_OF_OUTPUT: Final = frozenset({"calls", "reasoning", "text"})
"""Features that hang on what exactly a model says."""


def _never_shown(replay: Replay, claim: Claim) -> str:
    """What the report is about and no answer had, with the option that helps; "": it
    was there."""
    answers = replay.tested
    asked = [path for path in claim.about if "/" in path or path == "derender"]
    # What only looks is no test of others: of itself it is.
    paths = {answer.path for answer in replay.answers if answer.status != "unsent"}
    for endpoint in asked:
        if not any(endpoint in path for path in paths):
            return (
                f"the report is about {endpoint}, and no request asked for it "
                '(--client "python client.py")'
            )
    missing: dict[str, None] = {}
    for answer in answers:
        missing.update(dict.fromkeys(answer.missing))
    relevant = [what for what in missing if _is_relevant(what, claim)]
    if relevant == [HELD]:
        return "no rule of mmrepro's knows what the answer is to be (--expect)"
    relevant = [what for what in relevant if what != HELD]
    if not relevant:
        return ""
    return (
        f"no answer had {' or '.join(relevant)} (--script FILE, with what the model "
        "said)"
    )


def _is_relevant(what: str, claim: Claim) -> bool:
    """Whether a report may be about a feature that never came. A report of a loud
    failure is only about those that it names."""
    if what == HELD:
        is_of_output = not _OF_OUTPUT.isdisjoint(claim.about)
        return is_of_output and _is_silent(claim) and not claim.expected
    if LOUD.isdisjoint(claim.classes):
        return True
    features = {A_CALL: "calls", A_THOUGHT: "reasoning", JSON_ANSWER: "json"}
    return features.get(what, "stop") in claim.about


_OUR_WORDS: Final = "mmrepro: a script with its own engine"
"""How the last line of reproducers/offline_run.py begins where it runs no script."""


def _not_sent(report: ReportFacts) -> str:
    """Why no request was sent, as far as the client's last line says."""
    said = "no request was sent"
    if not report.output.strip():
        return said
    printed = report.output.strip().splitlines()[-1]
    if printed.startswith(_OUR_WORDS):
        return f"{said}: {printed.removeprefix('mmrepro: ')}"
    # The verdict is pasted in public: none of the client's own words are in it.
    name = _exception(printed, report.claim)
    said += f"; its client ended with {name}, as the report shows"
    missing = _NO_PACKAGE.search(printed)
    if missing:
        package = missing[1] or missing[2]
        said += f" (--container IMAGE, of one that has {package})"
    return said


def _answered(replay: Replay, claim: Claim) -> str:
    """How the requests were answered that show nothing of what the report has."""
    answers = replay.tested
    last = next((a for a in reversed(answers) if not a.refused), answers[-1])
    tested = "1 request" if len(answers) == 1 else f"{len(answers)} requests"
    claimed = f", not the {claim.words} of the report" if claim.words else ""
    wrong: dict[str, None] = {}
    for finding in replay.findings:
        if finding.confirmed:
            wrong[finding.finding_class] = None
    nothing = "nothing is wrong"
    if wrong:
        nothing = f"what is wrong is another class ({', '.join(wrong)})"
    words = f"{last.operation} got {last.status}{claimed}"
    return f"{tested} answered, and {nothing}: {words}"


def _is_limit(answer: Answer, tokens: int, given: Collection[str]) -> bool:
    """Whether a refusal is about the server and not about what the request asks for."""
    if answer.status in ("401", "403", "404", "405"):
        return True
    return _limit(answer.words, tokens, given)


def _untold(replay: Replay, otherwise: str) -> tuple[ReproVerdict, str]:
    """Nothing can be said: for want of what is not here, or ``otherwise``."""
    report = replay.report
    assert report is not None
    claim = report.claim
    missing = [item for item in report.replaced if _may_hang_on(item, claim)]
    if report.claim.hardware:
        said = (
            f"not testable here: the report has {report.claim.hardware!r}, which needs "
            "a GPU"
        )
        return ReproVerdict.NEEDS_HARDWARE, said

    for needs, verdict in _VERDICTS:
        mine = [item for item in missing if (item.needs or Needs.HARDWARE) is needs]
        if mine:
            names = ", ".join(item.what for item in mine[:4])
            return verdict, f"not testable here without {names}: {mine[0].why}"

    if claim.model_code:
        said = f"not testable here: the report's traceback is in {claim.model_code}"
        return ReproVerdict.NEEDS_MODEL, f"{said}, code of its own model (--model DIR)"
    return ReproVerdict.NOTHING_TESTED, otherwise


_VERDICTS: Final = (
    (Needs.HARDWARE, ReproVerdict.NEEDS_HARDWARE),
    (Needs.MODEL, ReproVerdict.NEEDS_MODEL),
    (Needs.RELEASE, ReproVerdict.NOTHING_TESTED),
    (Needs.TRUST, ReproVerdict.NOTHING_TESTED),
)
_OF_FRONT: Final = frozenset({"finish", "calls", "reasoning", "stop", "json"})
"""Features that an API server makes of what a model says."""


def _may_hang_on(item: Replaced, claim: Claim) -> bool:
    """Whether a failure may hang on what was left out."""
    if not item.essential:
        return False
    # What stands beside a lost call, or thought, is called the content.
    about = set(claim.about) - {"text"}
    if not (about and about <= _OF_FRONT and _is_silent(claim)):
        return True
    # A parser reads what the model says: without that the verdict asks for it.
    is_said = item.model and not _OF_OUTPUT.isdisjoint(about)
    return not (item.needs is Needs.HARDWARE or is_said)
