"""What a bug report says that it saw, and what a replay says of that. Pure
functions."""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from mmrepro.base.errors import UsageError
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.replay import (
    Answer,
    Claim,
    Finding,
    Replay,
    ReportFacts,
    ReproVerdict,
    Sighting,
)
from mmrepro.search.oracle.scripted import A_CALL, A_THOUGHT, JSON_ANSWER
from mmrepro.search.replay.pursue import LOUD

_DEATH: Final = re.compile(
    r"EngineDeadError|engine ?core (?:has )?encountered a fatal error"
    r"|Scheduler hit an exception|"
    r"SIGQUIT|(?:server|engine(?: ?core)?|process|scheduler|worker"
    r"|executor)s? (?:\w+ ){0,3}"
    r"(?:dies|died|dead|exits|exited|killed|terminates|terminated|goes down"
    r"|shuts? down)|"
    r"kills the (?:\w+ ){0,2}(?:server|engine|scheduler|process)|segmentation fault"
    r"|segfault|"
    r"core dumped|RemoteDisconnected|Remote end closed|Connection refused"
    r"|server is gone|"
    r"Empty reply from server|died unexpectedly|"
    r"(?:服务|引擎|进程|服务器|服务端|程序)[^。\n]{0,8}(?:退出|挂掉|挂了|死掉|死亡|终止|宕机|中断)|宕机|段错误",
    re.IGNORECASE,
)
_CRASH: Final = re.compile(
    r"\bcrash(?:es|ed|ing)?\b|崩溃|クラッシュ|크래시", re.IGNORECASE
)
_HANG: Final = re.compile(
    r"\b(?:hangs?|hung|hanging|deadlocks?|freezes?|frozen|stuck|never (?:returns?"
    r"|responds?|"
    r"answers?|finish(?:es)?|completes?)|no response|livelocks?|infinite loop"
    r"|forever)\b|"
    r"卡死|卡住|没有响应|无响应|不响应|死锁|一直等待|阻塞|ハング",
    re.IGNORECASE,
)
_STATUS: Final = re.compile(
    r"(?:HTTP(?:/[\d.]+)?[\s:]*|status(?: code)?[\s:=]*|error(?: code)?[\s:=]*"
    r"|code[\"']?[\s:=]+|"
    r"returns?(?: an?)?(?: HTTP)?[\s`\"]*|response[\s:]*|[^\w.]|"
    r"(?:返回|报错?|状态码|错误码?|响应)[\s::为是]*(?:HTTP)?\s*)(?<![\d.A-Za-z_])([45]\d\d)"
    r"(?![\dA-Za-z_])"
    r"(?=[\s`\"',:;.)]*(?:Internal|Bad|Unprocessable|error|HTTP|status|response|Server"
    r"|Not Found|"
    r"Forbidden|$|instead|for|when|since|on|in|with|from|(?:and|but|then|after|while)\b"
    r"|"
    r"[\"}]|错误|内部|状态|响应))",
    re.IGNORECASE | re.MULTILINE,
)
_NAMED_STATUS: Final = {"internal server error": 500, "internalservererror": 500}
_WISHED: Final = re.compile(
    r"should|expect|instead of|rather than|ought|supposed|correct|appropriate|proper"
    r"|must|want|"
    r"would be|needs? to|valid status|\bnot an?\b|before|previously|clean|graceful|fix|"
    r"应该|应当|期望|预期|而不是|而非|应返回|希望",
    re.IGNORECASE,
)
_WISHED_CHARS: Final = 70
_EXCEPTION: Final = re.compile(
    r"(?:^|[\s:('\"`])(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt"
    r"|Fault))\b"
)
_ECHOES: Final = frozenset(
    {
        "EngineDeadError",
        "InternalServerError",
        "APIConnectionError",
        "HTTPError",
        "HTTPException",
        "RemoteProtocolError",
        "ConnectionError",
        "ConnectionResetError",
        "APIError",
        "URLError",
        "BadRequestError",
        "APIStatusError",
        "ConnectionRefusedError",
        "APITimeoutError",
        "CancelledError",
        "TimeoutError",
        "ReadTimeout",
        "RemoteDisconnected",
        "EngineGenerateError",
        "ClientConnectorError",
        "ServerDisconnectedError",
        "ChunkedEncodingError",
        "ReadError",
    }
)
"""Exceptions of clients, and what the rest of an engine says of its core's."""
_HARDWARE: Final = re.compile(
    r"CUDA error[^\n]{0,60}|CUDA out of memory|torch\.OutOfMemoryError"
    r"|illegal memory access|"
    r"device-side assert|NCCL (?:error|WARN)[^\n]{0,40}|ncclInternalError"
    r"|ncclSystemError|"
    r"cudaErrorIllegal\w*|CUBLAS_STATUS_\w+|cudnn\w* error|HIP error|hipError\w+|"
    r"no kernel image is available|triton\.(?:runtime|compiler)\.\w*(?:Error"
    r"|OutOfResources)\w*|"
    r"OutOfResources: out of resource|Xid\s*\(?[\w:.]*\)?:? ?\d+"
    r"|deep_?gemm[^\n]{0,30}error|"
    r"flashinfer[^\n]{0,60}(?:error|assert|fail)|GPU hang|uncorrectable ECC"
    r"|NVLink error|"
    r"cutlass[^\n]{0,40}(?:error|fail)|aiter[^\n]{0,40}(?:error|fail)",
    re.IGNORECASE,
)
_GPU_CODE: Final = re.compile(r"vllm/v1/worker/gpu/[\w/]+\.py")
"""Files of vLLM's second model runner, which asks for Triton."""
_START: Final = re.compile(
    r"(?:fail(?:s|ed)?|unable|refuses) to (?:start|launch|boot|initiali[sz]e)\b"
    r"|EngineCore failed "
    r"to start|Engine core initialization failed|(?:does not|doesn't|won't|cannot"
    r"|can't) "
    r"(?:start|launch)\b|(?:start-?up|launch|initiali[sz]ation) (?:fails|failed|failure"
    r"|crash)|"
    r"crash(?:es|ed|ing)? (?:on|at|during|while) (?:start|launch|load|boot|init)|"
    r"启动(?:失败|报错|不了|异常)|无法启动",
    re.IGNORECASE,
)
_SILENT: Final = (
    (
        r"wrong (?:answer|output|result)|garbage|gibberish|incorrect output|!!!!!|"
        r"乱码|(?:输出|结果)(?:错误|不正确|异常)",
        FindingClass.WRONG_ANSWER,
    ),
    (
        r"(?:memory|thread|file descriptor|fd|shm) leak|leaks? memory",
        FindingClass.RESIDUE,
    ),
    (
        r"cross-?talk|another (?:user|request)'s (?:answer|output)",
        FindingClass.CROSS_TALK,
    ),
    (
        r"\b(?:is|are|was|were|gets?|being) ignored\b|\bignores?\b|violat\w+|"
        r"(?:not|never|n't) (?:respect|honou?r|obey|appl|follow|enforce|adhere"
        r"|take effect)\w*|"
        r"(?:invalid|not valid|malformed|broken|incomplete) JSON|"
        r"stream\w* (?:\w+ ){0,3}(?:differ|mismatch|inconsist)|"
        r"(?:未|不|没有)(?:生效|遵守|起作用)|被忽略",
        FindingClass.PROTOCOL,
    ),
)
_ABOUT: Final = {
    "finish": r"finish[_ ]?reason",
    "calls": r"tool[ _-]?calls?\b|tool[ _-]?(?:call[ _-]?)?parser|function[ _-]?call",
    "reasoning": r"\breasoning|</?think|\bthinking\b",
    "stop": r"\bstop[ _-](?:string|word|sequence|token)s?\b|[`'\"]stop[`'\"]",
    "json": r"response_format|structured[ _-]output|json_(?:schema|object)|\bguided_",
    "text": r"\bcontent\b(?!-)|special tokens?|detokeni[sz]|\btags?\b",
}
"""Features of an answer, and how reports name them."""
_SHOWS: Final = {
    "finish": {
        "finish-reason",
        "finish-length",
        "finish-stop",
        "finish-tool-calls",
        "stream-finish",
        "script-finish",
    },
    "calls": {
        "script-calls",
        "script-tags",
        "tool-choice",
        "finish-tool-calls",
        "stream-parts",
    },
    "reasoning": {"script-reasoning", "script-tags", "stream-parts"},
    "stop": {"stop-text"},
    "json": {"schema"},
    "text": {"script-text", "script-tags", "stream-text"},
}
"""What is wrong with such a feature, as the oracles call it."""
_ENDPOINT: Final = re.compile(r"/v1/[a-z/_]*[a-z]|\bderender\b|/metrics\b")
"""What a title names where the report is about that."""
BY_EACH: Final = LOUD | {FindingClass.PROTOCOL, FindingClass.EXPECTATION}
"""Classes that each replay is judged by; the others take servers to compare with."""


def read_claim(title: str, text: str) -> Claim:
    """Read what a report observed, by its title and its text without commands and
    clients."""
    whole = f"{title}\n{text}"
    classes: list[FindingClass] = []
    status = _status(title) or _status(text)
    # A status of 500 beside a death is how a client sees it, and is not enough.
    if _DEATH.search(whole):
        classes += [FindingClass.DEATH, FindingClass.FAILING]
    elif status is not None and status >= 500:
        classes.append(FindingClass.SERVER_ERROR)

    if _CRASH.search(whole):
        classes += [FindingClass.DEATH, FindingClass.FAILING]
        if status is None:
            classes.append(FindingClass.SERVER_ERROR)

    if _HANG.search(whole) and not classes:
        classes.append(FindingClass.HANG)
    elif _HANG.search(title):
        classes.insert(0, FindingClass.HANG)

    if _START.search(whole):
        classes.insert(0, FindingClass.START_FAILURE)
    for pattern, kind in _SILENT:
        if not classes and re.search(pattern, whole, re.IGNORECASE):
            classes.append(kind)
    names = dict.fromkeys(_EXCEPTION.findall(text))
    exceptions = [name for name in names if name not in _ECHOES]
    hardware = _HARDWARE.search(whole) or _GPU_CODE.search(whole)
    return Claim(
        classes=list(dict.fromkeys(classes)),
        status=status,
        exceptions=exceptions[:20],
        hardware=" ".join(hardware[0].split())[:80] if hardware else "",
    )


def what_about(title: str, prose: str) -> list[str]:
    """Features of an answer that a report names, in its title or else in its words; and
    endpoints in its title."""
    endpoints = dict.fromkeys(_ENDPOINT.findall(title))
    return [*(_features(title) or _features(prose)), *list(endpoints)[:10]]


def _features(text: str) -> list[str]:
    features: list[str] = []
    for name, form in _ABOUT.items():
        if re.search(form, text, re.IGNORECASE):
            features.append(name)
        # Values of a finish reason are called as other features are.
        text = _FINISH_VALUE.sub(" ", text)
    return features


_FINISH_VALUE: Final = re.compile(
    r"finish[_ ]?reason\W{0,6}(?:tool_calls?|stop|length)\b", re.IGNORECASE
)


def claim_of(word: str) -> Claim:
    """Read ``--reported``: a status, or a class of findings. Raises UsageError: it is
    neither."""
    if re.fullmatch(r"[1-5]\d\d", word):
        status = int(word)
        kinds = [FindingClass.SERVER_ERROR] if status >= 500 else []
        return Claim(status=status, classes=kinds)

    named = {kind.value: kind for kind in FindingClass}
    named |= {
        "crash": FindingClass.DEATH,
        "dies": FindingClass.DEATH,
        "hangs": FindingClass.HANG,
    }
    kind = named.get(word)
    if kind is None:
        raise UsageError(
            f"--reported {word}: a status such as 500, or what is wrong.",
            hint=f"one of {', '.join(FindingClass)}",
        )

    # How a server that died looks depends on whether its API process lives on.
    if kind is FindingClass.DEATH:
        return Claim(classes=[FindingClass.DEATH, FindingClass.FAILING])
    return Claim(classes=[kind])


def _status(text: str) -> int | None:
    """The status that a text reports, and not one that it wishes for; the most frequent
    one."""
    seen: Counter[int] = Counter()
    for reported in _STATUS.finditer(text):
        place = reported.start(1)
        before = text[max(0, place - _WISHED_CHARS) : place]
        sentence = max(before.rfind(mark) for mark in ".\n;,") + 1
        if not _WISHED.search(before[sentence:]):
            seen[int(reported[1])] += 1

    lowered = text.lower()
    for words, status in _NAMED_STATUS.items():
        if words in lowered:
            seen[status] += 1
    if not seen:
        return None
    return max(seen, key=lambda status: (seen[status], status))


# -------------------------------------------------------------------------- the verdict

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
_MOST_TOKENS: Final = 300_000
"""No model has as many (Gemma 3: 262,208): a token id beyond is in no vocabulary."""
_VOCABULARIES: Final = (
    (r"llama-?3|llama-?guard-?3|hermes-3|nemotron-nano-8b", 128_256),
    (r"llama-?2|tinyllama|vicuna|codellama|yi-1?\.?5?-?(?:6|9|34)b", 64_000),
    (r"qwen-?3\.[5-9]", 250_000),
    (r"qwen(?:1\.5|2|2\.5|3)|qwq", 152_064),
    (r"mi[sx]tral|ministral|pixtral|magistral|devstral", 131_072),
    (r"gemma-?[23]", 262_208),
    (r"phi-?3", 100_352),
    (r"phi-?4", 200_064),
    (r"deepseek", 129_280),
    (r"gpt-oss", 201_088),
    (r"glm-?4", 151_552),
    (r"internlm", 128_512),
    (r"\bopt-", 50_272),
    (r"gpt-?2", 50_257),
)
"""Tokens of a family's largest vocabulary: ``vocab_size`` of their configurations."""


def _vocabulary(model: str) -> int:
    """How many tokens a model has at most, by its name."""
    found = (
        size for form, size in _VOCABULARIES if re.search(form, model, re.IGNORECASE)
    )
    return next(found, _MOST_TOKENS)


def _limit(words: str, tokens: int = _MOST_TOKENS) -> bool:
    """Whether a refusal is about the server's options or its stand-in. A token id that
    the real model, of ``tokens``, lacks as well is refused for itself."""
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
            return ReproVerdict.REPRODUCED, _reproduced(finding)
    real = next((item.what for item in report.replaced if item.model), "")
    tokens = _vocabulary(real)
    answer = _as_reported(replay.answers, claim, tokens)
    if answer is not None:
        words = f"{answer.operation} got {answer.words}, as in the report"
        return ReproVerdict.REPRODUCED, words
    if replay.untestable and not confirmed:
        return ReproVerdict.NEEDS_HARDWARE, replay.untestable[0]

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

    return _silent(replay, real, tokens)


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
        return True  # somebody wrote down what is right
    if kind is FindingClass.START_FAILURE and kind not in claim.classes:
        return False
    mine = _exceptions(shown)
    named = set(claim.exceptions)
    if not claim.classes and claim.status is None:
        if kind not in LOUD:
            return _is_about(shown, claim)
        return not (mine and named) or bool(mine & named)

    if kind not in LOUD:
        return kind in claim.classes
    # One exception in common is enough: a log holds those that follow from it as well.
    if mine & named:
        return True
    if mine and named and kind is not FindingClass.HANG:
        return False
    return kind in claim.classes


def _is_about(shown: Finding | Sighting, claim: Claim) -> bool:
    """Whether the feature that is wrong is one that the report is about."""
    if shown.finding_class is not FindingClass.PROTOCOL:
        return False
    kind = shown.bucket.rpartition("/")[2]
    return any(kind in _SHOWS.get(feature, ()) for feature in claim.about)


def _exceptions(shown: Finding | Sighting) -> set[str]:
    """Exceptions of the engine itself, in the first lines of its log and the
    sentence."""
    lines = shown.log_lines[:3] if isinstance(shown, Finding) else []
    names: set[str] = set()
    for line in [*lines, shown.said]:
        names.update(_EXCEPTION.findall(line))
    return names - _ECHOES


def _as_reported(answers: Sequence[Answer], claim: Claim, tokens: int) -> Answer | None:
    """An answer that is the refusal which the report complains of."""
    if claim.status is None or claim.status >= 500:
        return None
    for answer in answers:
        if answer.status == str(claim.status) and not _limit(answer.words, tokens):
            return answer
    return None


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
    if not answers:
        said = f"nothing was tested: {_not_sent(report)}"
        return ReproVerdict.NOTHING_TESTED, said
    refused = [answer for answer in answers if answer.refused]
    for answer in refused:
        if not _is_limit(answer, tokens):
            continue
        said = f"nothing was tested: {answer.operation} got {answer.words}"
        if "vocab" in answer.words.lower():
            said += f" (the tiny model has fewer tokens than {real or 'the real one'})"
        return _untold(replay, said)

    if len(refused) == len(answers) and not claim.words:
        return _untold(replay, replay.nothing_tested)
    never = _never_shown(replay, claim)
    if never:
        said = f"nothing was tested: {never}"
        return _untold(replay, said)
    if refused and claim.words:
        status, _, words = refused[0].words.partition(" ")
        said = f"{status}, not the {claim.words} of the report: {words}"
    else:
        said = _answered(replay, claim)

    verdict, why = _untold(replay, "")
    if verdict is ReproVerdict.NEEDS_HARDWARE:
        return verdict, f"{why}; here {said}"
    return ReproVerdict.NOT_REPRODUCED, said


def _never_shown(replay: Replay, claim: Claim) -> str:
    """What the report is about and no answer had, with the option that helps; "": it
    was there."""
    answers = replay.tested
    asked = [path for path in claim.about if "/" in path or path == "derender"]
    paths = {answer.path for answer in answers}
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
    if not relevant:
        return ""
    return (
        f"no answer had {' or '.join(relevant)} (--script FILE, with what the model "
        "said)"
    )


def _is_relevant(what: str, claim: Claim) -> bool:
    """Whether a report may be about a feature that never came. A report of a loud
    failure is only about those that it names."""
    if LOUD.isdisjoint(claim.classes):
        return True
    features = {A_CALL: "calls", A_THOUGHT: "reasoning", JSON_ANSWER: "json"}
    return features.get(what, "stop") in claim.about


def _not_sent(report: ReportFacts) -> str:
    """Why no request was sent, as far as the client's last line says."""
    said = "no request was sent"
    if not report.output.strip():
        return said
    # The verdict is pasted in public: none of the client's own words are in it.
    printed = report.output.strip().splitlines()[-1]
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


def _is_limit(answer: Answer, tokens: int) -> bool:
    """Whether a refusal is about the server and not about what the request asks for."""
    return answer.status in ("401", "403", "404", "405") or _limit(answer.words, tokens)


def _untold(replay: Replay, otherwise: str) -> tuple[ReproVerdict, str]:
    """Nothing can be said: for want of what is not here, or ``otherwise``."""
    report = replay.report
    assert report is not None
    missing = [item for item in report.replaced if item.essential]
    if report.claim.hardware:
        said = (
            f"not testable here: the report has {report.claim.hardware!r}, which needs "
            "a GPU"
        )
        return ReproVerdict.NEEDS_HARDWARE, said

    if missing:
        names = ", ".join(item.what for item in missing[:4])
        said = f"not testable here without {names}: {missing[0].why}"
        return ReproVerdict.NEEDS_HARDWARE, said

    return ReproVerdict.NOTHING_TESTED, otherwise
