"""What a bug report says that it saw. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import chain
from typing import Final

from mmrepro.base.errors import UsageError
from mmrepro.base.records import FindingClass
from mmrepro.engines.folders import published
from mmrepro.failure.documents.replay import Claim
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
    r"|(?<!retry )(?<!retries )(?<!retrying )forever)\b|"
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
_COMES: Final = re.compile(
    r"\bHTTP(?:/[\d.]+)?[ :]{1,3}([45]\d\d) (?:comes|came|is (?:returned|sent|given)|was|"
    r"instead of an answer)\b",
    re.IGNORECASE,
)
_ANSWERS_WITH: Final = re.compile(
    r"\b(?:responds?|answers?|replies|returns?|fails?"
    r"|(?:is|was|are|were|gets?) (?:rejected|refused))"
    r" (?:with )?(?:an? )?(?:HTTP )?(?:status )?(?:code )?[`\"]?([45]\d\d)\b",
    re.IGNORECASE,
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
EXCEPTION: Final = re.compile(
    r"(?:^|[\s:('\"`])(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt"
    r"|Fault))\b"
)
ECHOES: Final = frozenset(
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
_CUT_SHORT: Final = re.compile(
    r"transfer closed with outstanding read data|incomplete chunked read|\bIncompleteRead\b"
    r"|[Rr]esponse ended prematurely|[Rr]esponse payload is not completed",
)
"""How clients say that an answer broke off."""
_HARDWARE: Final = re.compile(
    r"CUDA (?:runtime )?error[^\n]{0,60}|CUDA out of memory|torch\.OutOfMemoryError"
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
    r"cutlass[^\n]{0,40}(?:error|fail)|aiter[^\n]{0,40}(?:error|fail)"
    r"|\bturbomind/[\w/]{1,80}\.(?:cc|cu|h)\b",
    re.IGNORECASE,
)
ASSERTED: Final = re.compile(r"device-side assert")
"""A GPU's words for an index that is out of range, which is an exception on a CPU."""
_GPU_CODE: Final = re.compile(r"vllm/v1/worker/gpu/[\w/]+\.py")
"""Files of vLLM's second model runner, which asks for Triton."""
_RARE: Final = re.compile(
    r"\b(?:after (?:a few|some|several|many|about|around|\d+)?\s?(?:minutes?|hours?|days?)"
    r"|(?:under|with) (?:heavy|high|production|sustained) (?:load|concurrency|traffic)"
    r"|intermittent(?:ly)?|random(?:ly)? (?:hangs?|crash\w*|stops?|fails?|dies)|sporadic\w*"
    r"|occasional(?:ly)?|hard to reproduce|not always|non-?deterministic(?:ally)?)\b|"
    r"偶发|偶尔|随机(?:出现|崩溃)|运行一段时间",
    re.IGNORECASE,
)
"""How reports say that a failure comes and goes."""
_MODEL_CODE: Final = re.compile(
    r'File "[^"\n]{0,300}?/((?:model_executor/(?:models|layers)|srt/(?:models|layers)'
    r"|pytorch/(?:models|kernels|backends)|attention|quantization|kernels)/[\w/]{1,120}\.py)"
)
_MESSAGE: Final = re.compile(r'"(?:message|detail)": ?"((?:[^"\\\n]|\\.){8,600})"')
_RAISED: Final = re.compile(
    r"\b[A-Z]\w{2,60}(?:Error|Exception): ([^\n]{8,300}?)(?:\n|$)"
)
_FOLLOWS: Final = re.compile(
    r"[Ee]ngine core initialization failed|See (?:root cause|stack trace) above|EngineDead"
)
"""What an engine says after the error that ended it."""
_START: Final = re.compile(
    r"(?:fail(?:s|ed)?|unable|refuses) to (?:start|launch|boot|initiali[sz]e)\b"
    r"|EngineCore failed "
    r"to start|Engine core initialization failed|(?:does not|doesn't|won't|cannot"
    r"|can't) "
    r"(?:start|launch)\b|(?:start-?up|launch|initiali[sz]ation) (?:fails|failed|failure"
    r"|crash)|"
    r"crash(?:es|ed|ing)? (?:on|at|during|while) (?:start|launch|load|boot|init)|"
    r"启动(?:失败|报错|不了|异常)|无法启动|"
    # An option that the parser of the command refuses.
    r"^.{0,200}\busage: [\w./-]+(?: [\w-]+){0,4} \[-h\]"
    r"|\berror: (?:unrecognized arguments|argument -{0,2}\w|the following arguments are)",
    re.IGNORECASE | re.MULTILINE,
)
_FROM_COMMAND: Final = re.compile(
    r'File "[^"\n]{0,300}/cli/\w{1,40}\.py", line \d+, in (?:run|main|cmd|serve|api_server)\b'
)
"""A traceback that begins at the command: no request brought it about, if nothing else
is told."""
_AT_START: Final = (
    # What runs before a server listens.
    re.compile(
        r", in (?:run_mp_engine|from_vllm_config|from_engine_args|create_engine_config"
        r"|create_model_config|init_device|load_model|load_weights|_init_executor"
        r"|initialize_from_config|_initialize_kv_caches|determine_available_memory"
        r"|profile_run|capture_model|compile_or_warm_up_model|build_async_engine_client"
        r"|build_async_clients|init_cuda_graphs|init_memory_pool|run_scheduler_process"
        r"|launch_subprocesses|_launch_subprocesses|init_torch_distributed"
        r"|_build_model|init_tokenizer|from_pretrained)\b"
    ),
    re.compile(
        r"validation errors? for (?:\w{1,40}Config|EngineArgs)\b|input_value=ArgsKwargs"
    ),
    re.compile(
        r"\b(?:at|on|during|while) (?:the )?(?:engine |server |model )?"
        r"(?:start-?up|boot|loading|initiali[sz]ation|graph capture|CUDA[- ]graph capture)"
        r"\b|\bbefore (?:becoming|it becomes|it is) (?:healthy|ready)\b"
        r"|architectures? .{0,80}(?:is|are) not supported",
        re.IGNORECASE,
    ),
)
_PARSER_FRAME: Final = re.compile(
    r'File "[^"\n]{0,300}/(?:tool_parsers|reasoning|function_call|parser)/\w'
)
_SILENT: Final = (
    (
        r"(?:wrong|incorrect|random|nonsensical|inaccurate|meaningless)"
        r" (?:answer|output|result|text|response|ranking|order)s?\b"
        r"|garbage|gibberish|garbled|nonsense|!!!!!"
        r"|\b(?:only|solely|endless(?:ly)?|repeated(?:ly)?)(?: of)? [`\"'“‘]!"
        r"|\baccuracy (?:drop|loss|issue|degrad|regress)\w*"
        r"|\b(?:endless(?:ly)?|infinite(?:ly)?) repe(?:ats?|at?ing|tition)\w*"
        r"|乱码|(?:输出|结果|回答|排序)[^。\n]{0,6}(?:错误|不正确|异常|不精准|不准确|重复)",
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
    "calls": r"tool[ _-]?(?:calls?|use)\b|tool[ _-]?(?:call[ _-]?)?parser|function[ _-]?call",
    "reasoning": r"\breasoning|</?think|\bthinking\b",
    "stop": r"\bstop[ _-](?:string|word|sequence|token)s?\b|[`'\"]stop[`'\"]",
    "json": r"response_format|structured[ _-]output|json_(?:schema|object)|\bguided_",
    "text": r"\bcontent\b(?!-)|special tokens?|detokeni[sz]|\btags?\b",
    "metrics": (
        r"/metrics\b|\bprometheus\b|\b(?:vllm|sglang|lmdeploy):\w+|\bcounters?\b"
        r"|\bgauges?\b"
    ),
}
"""Features of an answer, and how reports name them."""
SHOWS: Final = {
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
        "one-call",
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

    if not classes and status is None and _CUT_SHORT.search(whole):
        classes.append(FindingClass.SERVER_ERROR)

    if _HANG.search(whole) and not classes:
        classes.append(FindingClass.HANG)
    elif _HANG.search(title):
        classes.insert(0, FindingClass.HANG)

    starts = _START.search(whole) or (not classes and _FROM_COMMAND.search(whole))
    if starts:
        classes.insert(0, FindingClass.START_FAILURE)
    for pattern, kind in _SILENT:
        if not classes and re.search(pattern, whole, re.IGNORECASE):
            classes.append(kind)
    names = dict.fromkeys(EXCEPTION.findall(text))
    exceptions = [name for name in names if name not in ECHOES]
    # No status stands beside an exception of the engine: no request that raises it is
    # answered, unless a parser of answers does, which only logs it.
    is_raised = _engine_frame().search(text) and not _PARSER_FRAME.search(text)
    if is_raised and exceptions and not classes and status is None:
        classes.append(FindingClass.SERVER_ERROR)
    hardware = _HARDWARE.search(whole) or _GPU_CODE.search(whole)
    return Claim(
        classes=list(dict.fromkeys(classes)),
        status=status,
        exceptions=exceptions[:20],
        hardware=" ".join(hardware[0].split())[:80] if hardware else "",
        rare=_first(_RARE, whole),
        model_code=_first(_MODEL_CODE, text),
        messages=_messages(text),
    )


@cache
def _engine_frame() -> re.Pattern[str]:
    """The form of a traceback's frame in an engine's own code."""
    engines = "|".join(published())
    return re.compile(
        rf'File "[^"\n]{{0,300}}/(?:{engines})/[^"\n]{{1,200}}\.py", line \d+'
    )


def fails_at_start(title: str, text: str) -> bool:
    """Whether a report that shows no request is of a server that does not start."""
    whole = f"{title}\n{text}"
    return any(form.search(whole) for form in _AT_START)


def needs_a_gpu(claim: Claim) -> bool:
    """Whether a report has what only a GPU shows, whatever is sent."""
    hardware = claim.hardware
    is_asserted = ASSERTED.search(hardware) or _GPU_CODE.fullmatch(hardware)
    return bool(hardware) and not is_asserted


def _messages(text: str) -> list[str]:
    """What errors say in a text: those of an API, and exceptions."""
    told = [*_MESSAGE.findall(text)[:5], *_RAISED.findall(text)[:40]]
    kept = [message for message in told if not _FOLLOWS.search(message)]
    return [message[:200] for message in dict.fromkeys(kept)][:15]


def _first(form: re.Pattern[str], text: str) -> str:
    """The first match, on one line; of a form with a group that; "": there is none."""
    found = form.search(text)
    if found is None:
        return ""
    return " ".join(found[found.lastindex or 0].split())[:80]


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
    forms = (_STATUS, _COMES, _ANSWERS_WITH)
    for reported in chain.from_iterable(form.finditer(text) for form in forms):
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
