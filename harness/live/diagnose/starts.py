"""A start, from its log or while it is watched: ready, failed, or stuck, and why.

What a log's exceptions mean is the table in :mod:`mmrepro.engines.starts`; here are the
reading of a whole start, what this machine knows of the release, and the settings that
fit."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
from mmrepro.base import processes
from mmrepro.base.errors import MmreproError
from mmrepro.base.records import Document
from mmrepro.base.units import GIB, MIB, duration
from mmrepro.engines import ENGINES, Engine, Signs
from mmrepro.engines.environments import list_environments, site_packages
from mmrepro.engines.folders import folders
from mmrepro.engines.serving import serving
from mmrepro.engines.starts import (
    Asked,
    FailedStart,
    StartFault,
    raised,
    stage_of,
    start_cause,
)
from mmrepro.engines.supervise import EngineProcess, answers
from mmrepro.failure.documents import (
    Cause,
    CauseClass,
    Certainty,
    LogFacts,
    StartCause,
)
from mmrepro.live.diagnose import cause_rules
from mmrepro.live.diagnose.kernel import NOT_RESTARTED
from mmrepro.probes import (
    LineReader,
    LogLine,
    RaisedException,
    StacksProbe,
    exceptions_in,
    run_probe,
)
from mmrepro.probes.log_words import public_line
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

if TYPE_CHECKING:
    from mmrepro.kv_budget import MemoryPlan

# ------------------------------------------------------------------ as data


class StartState(StrEnum):
    """What came of a start. ``unknown``: neither its end nor its being ready is
    shown."""

    READY = "ready"
    FAILED = "failed"
    STUCK = "stuck"
    STARTING = "starting"
    UNKNOWN = "unknown"


class StartReading(Document, kind="start"):
    """What ``mmrepro why --json`` prints."""

    state: StartState
    sentence: Annotated[str, Field(description="for people")]
    cause: Cause | None = None
    engine: Annotated[str, Field(description="empty: not recognised")] = ""
    release: str = ""
    stage: Annotated[str, Field(description="what the start was at last")] = ""
    log: str = ""
    lines: Annotated[int, Field(description="of this start")] = 0
    last: Annotated[
        LogLine | None, Field(description="the log's last line with a text")
    ] = None
    ended_with: Annotated[
        int | None, Field(description="exit code of a watched start that ended")
    ] = None
    seconds: Annotated[float | None, Field(description="that it was watched")] = None
    url: str = ""
    pid: Annotated[
        int | None, Field(description="of a server that was left running")
    ] = None
    notes: list[str] = []
    facts: Annotated[
        LogFacts | None, Field(description="what the log carries; None: watched")
    ] = None


# --------------------------------------------------------------- the lines of one start


def engine_of(lines: Sequence[LogLine], command: Sequence[str] = ()) -> Engine | None:
    """By the command, else by the form of a line that one engine alone prints, else by
    the modules that its tracebacks name. Names of models and users count for
    nothing."""
    if command:
        known = [
            e for e in ENGINES.values() if e.recognise(Signs((" ".join(command),)))
        ]
        if len(known) == 1:
            return known[0]
    for engine in ENGINES.values():
        if any(engine.wrote(line.source, line.own_words) for line in lines):
            return engine
    forms = Counter(line.engine for line in lines if line.engine)
    if forms:
        return ENGINES.get(forms.most_common(1)[0][0])
    for engine in ENGINES.values():
        if engine.log_mark and any(
            re.search(engine.log_mark, line.own_words) for line in lines
        ):
            return engine
    by_usage = _engine_by_usage(lines)
    if by_usage is not None:
        return by_usage
    frames = _frames_by_engine(lines)
    roles = Counter(
        e.name
        for line in lines
        for e in ENGINES.values()
        if line.process.startswith(e.core_role)
        or line.process.startswith("APIServer pid")
    )
    best = (frames or roles).most_common(1)
    return ENGINES[best[0][0]] if best else None


def _frames_by_engine(lines: Sequence[LogLine]) -> Counter[str]:
    """How many frames of tracebacks are in each engine's code."""
    found = exceptions_in(lines)
    stacks = [*found.cut, *(raised.frames for raised in found.raised)]
    frames: Counter[str] = Counter()
    for stack in stacks:
        for frame in stack:
            frames.update(name for name in ENGINES if f"/{name}/" in frame.file)
    return frames


def _engine_by_usage(lines: Sequence[LogLine]) -> Engine | None:
    """By what argparse calls the program, where a start ends before it logs
    anything."""
    for line in lines:
        if not line.own_words.startswith("usage: "):
            continue
        for name in folders():
            program = serving(name).usage
            if program and re.match(rf"usage: (?:{program})", line.own_words):
                return ENGINES[name]
    return None


def _last_start(lines: Sequence[LogLine], engine: Engine | None) -> list[LogLine]:
    """From the last line with which a start of that engine begins."""
    for line_form in engine.start_lines[:1] if engine else ():
        form = re.compile(line_form)
        begins = [at for at, line in enumerate(lines) if form.search(line.own_words)]
        if begins and len(begins) > 1:
            return list(lines[begins[-1] :])
    return list(lines)


_RELEASE = re.compile(
    r"\bversion (?P<api>\d+\.\d+[\w.+]*)|\bLLM engine \(v(?P<core>[\w.+]+?)\)|"
    r"/(?:sglang|lmdeploy|vllm)-(?P<folder>\d+\.\d+\.\d+)[-/]"
)


def _release_of(lines: Sequence[LogLine], engine: Engine | None) -> str:
    """As the log says it; "": it does not."""
    if engine is None:
        return ""
    word = engine.release_word
    for line in lines:
        words = line.own_words
        said = bool(word) and word in words[:200]
        if (said or "LLM engine (v" in words) and (match := _RELEASE.search(words)):
            found = match["api"] or match["core"] or match["folder"]
            return str(found).partition("+")[0]
    return ""


# -------------------------------------------------------------- what this machine knows


def _installed_for(command: Sequence[str]) -> list[Path]:
    """The site-packages that the programs in ``command`` belong to:
    ``/venv/bin/vllm``."""
    found = []
    for word in command[:8]:
        program = shutil.which(word) if "=" not in word else None
        if program:
            found += sorted(
                Path(program).absolute().parent.parent.glob("lib/python*/site-packages")
            )
    return list(dict.fromkeys(found))


def _metadata(engine: str, places: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Release and metadata of each ``engine`` that is installed in one of
    ``places``."""
    own = re.compile(rf"{engine}(?:_cpu)?-(\d[\w.]*?)(?:\+\w+)?\.dist-info")
    for place in places:
        for folder in sorted(place.glob(f"{engine}*.dist-info")):
            if match := own.fullmatch(folder.name):
                yield match[1], folder / "METADATA"


def asked_ranges(
    engine: str, release: str, folders: Sequence[Path] = ()
) -> dict[str, str]:
    """What the release's wheel asks for, by package: from metadata on this machine, no
    network.

    ``folders``: site-packages to look into first.
    """
    places = [
        *folders,
        *(
            site_packages(one.path / "venv")
            for one in list_environments(sizes=False)
            if one.manifest.engine == engine and one.manifest.release == release
        ),
    ]
    for version, metadata in _metadata(engine, places):
        with contextlib.suppress(OSError):
            ranges = _ranges(metadata.read_text("utf-8", "replace"))
            if ranges and version == release:
                return ranges
    return {}


def _ranges(metadata: str) -> dict[str, str]:
    from mmrepro.engines.environments import requirements_of

    found: dict[str, str] = {}
    for line in requirements_of(metadata):
        with contextlib.suppress(InvalidRequirement):
            one = Requirement(line)
            if one.marker is None or (
                "extra" not in str(one.marker) and one.marker.evaluate()
            ):
                found.setdefault(canonicalize_name(one.name), str(one.specifier))
    return found


def _looked(cause: FailedStart) -> FailedStart:
    """A file that cannot be opened, looked for here: safetensors reports every refusal
    as “No such file or directory”."""
    path = cause.numbers.get("path", "")
    if cause.fault is not StartFault.WEIGHTS_MISSING or not path.startswith("/"):
        return cause
    try:
        there = Path(path).stat()
    except FileNotFoundError:
        words = f"A file of weights is not there: {path}."
        return replace(cause, sentence=words, certain=True)
    except OSError:
        return cause
    mode = f"{there.st_mode & 0o7777:04o}"
    return replace(
        cause,
        fault=StartFault.PERMISSION,
        sentence=f"The server may not read {path}: it is there, with mode {mode}.",
        why=(*cause.why, f"{path} is here, with mode {mode} and owner {there.st_uid}"),
        advice=(f"chmod a+r {path}, or run the server as its owner",),
    )


# ---------------------------------------------------------------- the setting that fits

_VLLM_SHARE = re.compile(r"'gpu_memory_utilization': (?P<share>[\d.]+)")
_TOTAL = re.compile(
    r"/(?P<total>[\d.]+) GiB\) on startup|total capacity of (?P<other>[\d.]+) GiB"
)
_SGLANG = re.compile(
    r"Load weight (?P<which>begin|end)\..*?avail mem=(?P<gb>[\d.]+) GB"
)
_SEVERAL = re.compile(
    r"[Hh]ybrid KV cache manager|attention page size is >= mamba page size"
)
"""vllm/v1/core/kv_cache_utils.py; models/config.py or, since 0.19,
platforms/interface.py."""
_PATH = re.compile(r"model_path='(?P<path>/[^']+)'|'model': '(?P<other>/[^']+)'")


def fitting(
    cause: FailedStart,
    lines: Sequence[LogLine],
    engine: str,
    release: str,
    total_bytes: int = 0,
) -> str:
    """The memory setting with which the failed length fits, by
    :mod:`mmrepro.kv_budget`; "": the log lacks what that takes.

    Args:
        total_bytes: of the device; 0: as the log says.
    """
    from mmrepro.kv_budget import smallest

    length = int(cause.numbers.get("length") or 0)
    with contextlib.suppress(MmreproError, ValueError, ArithmeticError, OSError):
        plan = _plan(cause, lines, engine, release, total_bytes)
        if plan is None:
            return ""
        found = smallest(plan, max(length - 1, 1))
        if found.setting is None:
            most = found.best.max_tokens if found.best else 0
            return (
                f"no value of {plan.engine.option} is enough here; at best "
                f"{most} tokens fit"
            )
        tokens = found.setting.max_tokens
        return f"{plan.engine.option} {found.setting.setting}: then {tokens} tokens fit"
    return ""


def one_group(numbers: Mapping[str, str]) -> bool:
    """Whether the cache grows in proportion with the length, as one group of full
    attention does, by the two lengths of vLLM's message: windows and states take a part
    that does not grow. Both sizes have two decimals, and the estimate is of whole
    blocks."""
    if not numbers.get("most"):
        return False
    length, most = int(numbers["length"]), int(numbers["most"])
    needed, available = float(numbers["needed"]), float(numbers["available"])
    if min(needed, available, most) <= 0:
        return False
    block = min(most & -most, 128)
    rough = 0.005 / needed + 0.005 / available
    there = length * available / needed
    return abs(most - there) <= 2 * block + rough * there


def _plan(
    cause: FailedStart,
    lines: Sequence[LogLine],
    engine: str,
    release: str,
    total_bytes: int,
) -> MemoryPlan | None:
    from mmrepro.kv_budget import SGLANG, VLLM, SglangPlan, VllmPlan

    text = "\n".join(line.text for line in lines)
    numbers = cause.numbers
    if engine == VLLM.name and {"length", "needed", "available"} <= numbers.keys():
        match = _TOTAL.search(text)
        total = (
            float(match["total"] or match["other"]) * GIB
            if match
            else float(total_bytes)
        )
        share = _VLLM_SHARE.search(text)
        used = (
            float(share["share"])
            if share
            else float(VLLM.default(release or VLLM.release) or 0)
        )
        blocks = -(-int(numbers["length"]) // VLLM.block_size)
        block = round(float(numbers["needed"]) * GIB / blocks)
        if not total or not block or _SEVERAL.search(text) or not one_group(numbers):
            return None
        return VllmPlan(
            release or VLLM.release,
            bytes_per_block=block,
            max_model_len=int(numbers["length"]),
            total=int(total),
            free=int(total),
            non_kv=int(total * used - float(numbers["available"]) * GIB),
        )
    if engine == SGLANG.name and cause.fault is StartFault.KV_CACHE_TOO_SMALL:
        from mmrepro.kv_budget import read_model

        memory = {m["which"]: float(m["gb"]) for m in _SGLANG.finditer(text)}
        where = _PATH.search(text)
        if {"begin", "end"} <= memory.keys() and where and Path(where["path"]).is_dir():
            model = read_model(Path(where["path"]))
            if model.geometry.mixed:
                return None  # layers of several kinds share the pool: mmrepro kv-budget divides it
            return SglangPlan(
                release or SGLANG.release,
                before=int(memory["begin"] * GIB),
                free=int(memory["end"] * GIB),
                bytes_per_block=model.geometry.token_bytes(SGLANG),
            )
    return None


# ------------------------------------------------------------------ a log, read


def read_start(
    lines: Sequence[LogLine],
    *,
    engine: Engine | None = None,
    release: str = "",
    command: Sequence[str] = (),
    exit_code: int | None = None,
    gone: bool = False,
    local: bool = False,
    total_bytes: int = 0,
) -> StartReading:
    """What came of the start that ``lines`` are the log of.

    Args:
        engine: None: recognised.
        exit_code: of its first process, if that is known to have ended; then it is
            ``gone``.
        local: it is this machine's: the files that the log names may be looked at.
        total_bytes: of the device's memory; 0: as the log says.
    """
    engine = engine or engine_of(lines, command)
    lines = _last_start(lines, engine)
    name = engine.name if engine else ""
    places = _installed_for(command)
    there = next(iter(_metadata(name, places)), None) if name else None
    release = release or _release_of(lines, engine) or (there[0] if there else "")
    stage = stage_of(lines, engine)
    ready = _ready_line(lines, engine)
    last = next((line for line in reversed(lines) if line.text.strip()), None)
    answer = StartReading(
        state=StartState.UNKNOWN,
        sentence="",
        engine=name,
        release=release,
        stage=stage,
        lines=len(lines),
        last=last,
        ended_with=exit_code,
    )
    if ready is not None and not gone:
        words = f"The server started: line {ready.number} says so."
        return answer.model_copy(update={"state": StartState.READY, "sentence": words})
    if (own := cause_rules.own_cause(lines)) is not None and ready is None:
        update = {"state": StartState.FAILED, "sentence": own.sentence, "cause": own}
        return answer.model_copy(update=update)
    ranges = asked_ranges(name, release, places) if name else {}
    asked = Asked(name, release, stage, ranges, exit_code)
    cause = start_cause(lines, asked)
    if ready is not None and exit_code is not None:
        words = (
            f"The server started (line {ready.number}) and ended with "
            f"{exit_code} later."
        )
        died = cause is not None or raised(lines)
        notes = [NOT_RESTARTED] if exit_code == 0 and died else []
        update = {"state": StartState.READY, "sentence": words, "notes": notes}
        return answer.model_copy(update=update)
    if cause is None:
        return _no_cause(answer, lines, gone, exit_code)
    if local:
        cause = _looked(cause)
    fits = fitting(cause, lines, name, release, total_bytes)
    advice = [fits] if fits else []
    if exit_code == 0:
        advice.append(NOT_RESTARTED)
    failed = replace(cause, advice=(*advice, *cause.advice))
    update = {
        "state": StartState.FAILED,
        "sentence": cause.sentence,
        "cause": _as_cause(failed),
    }
    return answer.model_copy(update=update)


def _as_cause(failed: FailedStart) -> Cause:
    """The class ``failed-start`` with what is below it."""
    line = failed.line
    return Cause(
        name=CauseClass.FAILED_START,
        certainty=Certainty.CERTAIN if failed.certain else Certainty.LIKELY,
        sentence=failed.sentence,
        exception=failed.exception,
        process=line.process if line else "",
        time=line.time if line else "",
        line=line.number if line else None,
        file=line.file if line else "",
        why=list(failed.why),
        advice=list(failed.advice),
        start=_below_of(failed),
    )


def below(
    lines: Sequence[LogLine], one: RaisedException | None, engine: str
) -> StartCause | None:
    """What is below ``failed-start``, for the judge of whole logs.

    Args:
        lines: of one server; those that a reading kept.
        one: the first exception; its message may have lines that are not among
            ``lines``.
        engine: "": not known.
    """
    known = ENGINES[engine] if engine else None
    release = _release_of(lines, known)
    ranges = asked_ranges(engine, release) if engine and release else {}
    asked = Asked(engine, release, stage_of(lines, known), ranges)
    failed = start_cause(lines, asked)
    if failed is None and one is not None:
        whole = one.line.model_copy(
            update={"text": one.text, "level": "", "quoted": []}
        )
        failed = start_cause([whole], asked)
    return _below_of(failed) if failed else None


def _below_of(failed: FailedStart) -> StartCause:
    return StartCause(
        name=failed.fault,
        sentence=failed.sentence,
        numbers=dict(failed.numbers),
        why=list(failed.why),
        advice=list(failed.advice),
    )


def _no_cause(
    answer: StartReading, lines: Sequence[LogLine], gone: bool, exit_code: int | None
) -> StartReading:
    first = next((e for e in raised(lines) if e.kind not in ("hint", "error")), None)
    ended = gone or exit_code is not None
    if first is not None:
        words = (
            f"It failed, and the table has no rule for this exception: {first.shown}"
        )
        state, notes = StartState.FAILED, [f"line {first.line.number}: {first.shown}"]
    elif ended:
        words = (
            f"It ended with {exit_code} {answer.stage}, and its log holds no exception."
        )
        state, notes = StartState.FAILED, []
    else:
        at = f" {answer.stage}" if answer.stage else ""
        words = (
            f"The log ends{at}, without a ready line and without an error: the start "
            "goes on, hangs, or was killed."
        )
        state, notes = StartState.UNKNOWN, ["watch it: mmrepro why -- COMMAND"]
    return answer.model_copy(update={"state": state, "sentence": words, "notes": notes})


_NO_PORT = re.compile(r"\[Errno 98\] error while attempting to bind on address")
"""uvicorn, which is up by then: SGLang 0.5.23 says that it is ready all the same."""


def _ready_line(lines: Sequence[LogLine], engine: Engine | None) -> LogLine | None:
    """The line with which the engine says that it is ready; None where it got no
    port."""
    marks = [engine.ready_mark] if engine else [e.ready_mark for e in ENGINES.values()]
    form = re.compile("|".join(marks))
    if any(_NO_PORT.match(line.own_words) for line in lines):
        return None
    return next((line for line in lines if form.search(line.own_words)), None)


# ------------------------------------------------------------------ a start, watched

POLL_S = 0.2
QUIET_S = 20.0
"""Without a line and without CPU time for so long, at the deadline: it hangs."""
_SAMPLE_S = 2.0
_IDLE_SHARE = 0.05
"""Of one processor: less is a wait."""
_MOST_LOG = 256 * MIB
"""Of the server's output; a start that writes more is ended."""


class _Follower:
    """The lines of a log that is being written; only what is new is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[LogLine] = []
        self.bytes = 0
        self._reader = LineReader()

    def look(self) -> list[LogLine]:
        """The new lines."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.bytes)
                data = stream.read(8 * MIB)
        except OSError:
            return []
        self.bytes += len(data)
        new = self._reader.take(data)
        self.lines += new
        return new


def port_of(command: Sequence[str], engine: Engine | None) -> int | None:
    """The port that the command asks for; the engine's default where it names none."""
    for word, following in pairwise((*command, "")):
        for name in ("--port", "--server-port"):
            text = following if word == name else word.removeprefix(f"{name}=")
            if (word == name or word.startswith(f"{name}=")) and text.isdecimal():
                return int(text)
    return serving(engine.name).port if engine else None


def watch_start(
    process: EngineProcess,
    command: Sequence[str],
    deadline_s: float,
    *,
    engine: Engine | None = None,
    show: Callable[[LogLine], None] = lambda _: None,
    total_bytes: int = 0,
) -> StartReading:
    """Watch a start until it is ready, gone, or ``deadline_s`` seconds are over; or
    until its log names a cause and nothing moves any more: an API server may wait for
    ever for a dead engine.

    Ready is: the engine's own ready line; or a process of this start listens on the
    port of its command, and ``/health`` answers there.

    Args:
        show: gets each new line.
    """
    began = time.monotonic()
    follower = _Follower(process.log)
    moved, used, judged = began, 0.0, 0
    url = ""
    while True:
        for line in follower.look():
            moved, used = time.monotonic(), _cpu(process)
            show(line)
        engine = engine or engine_of(follower.lines[:400], command)
        port = port_of(command, engine)
        url = f"http://127.0.0.1:{port}" if port else ""
        code = process.exit_code
        ready = _ready_line(follower.lines, engine) is not None or _answers(
            process, url, engine
        )
        over = time.monotonic() - began >= deadline_s or follower.bytes > _MOST_LOG
        if code is not None or ready or over:
            break
        quiet = time.monotonic() - moved
        idle = quiet >= QUIET_S and _cpu(process) - used < _IDLE_SHARE * quiet
        if idle and len(follower.lines) != judged:
            judged = len(follower.lines)
            cause = start_cause(follower.lines, Asked(engine.name if engine else ""))
            if cause is not None and cause.certain:
                break  # it failed, and does not end
        time.sleep(POLL_S)
    if code is None and not ready:  # silent for less than it takes to call that a hang?
        time.sleep(max(0.0, QUIET_S - (time.monotonic() - moved)))
    if follower.look():
        moved = time.monotonic()
    quiet, share = time.monotonic() - moved, 0.0
    if code is None and not ready:
        before = _cpu(process)
        time.sleep(_SAMPLE_S)
        share = (_cpu(process) - before) / _SAMPLE_S
        code = process.exit_code
    answer = read_start(
        follower.lines,
        engine=engine,
        command=command,
        exit_code=code,
        gone=code is not None,
        local=True,
        total_bytes=total_bytes,
    )
    seconds = round(time.monotonic() - began, 1)
    answer = answer.model_copy(
        update={
            "seconds": seconds,
            "log": str(process.log),
            "url": url if ready else "",
        }
    )
    if ready and code is None:
        words = f"The server is ready after {duration(seconds)}" + (
            f" at {url}." if url else "."
        )
        return answer.model_copy(
            update={
                "state": StartState.READY,
                "sentence": words,
                "cause": None,
                "notes": [],
            }
        )
    if code is not None or answer.state is StartState.FAILED:
        return answer
    if follower.bytes > _MOST_LOG:
        words = f"The start wrote {_MOST_LOG // MIB} MiB of log and is not ready."
        return answer.model_copy(
            update={"state": StartState.UNKNOWN, "sentence": words}
        )
    return _late(answer, seconds, quiet, share, process)


def _late(
    answer: StartReading,
    seconds: float,
    quiet: float,
    share: float,
    process: EngineProcess,
) -> StartReading:
    """Not ready at the deadline: it hangs, or it still works."""
    busy = f"its processes use {share * 100:.0f} % of a processor"
    silence = f"no line for {duration(quiet)}"
    if quiet < QUIET_S or share > _IDLE_SHARE:
        words = (
            f"It is not ready after {duration(seconds)} {answer.stage}, and still "
            f"works: {silence}, {busy}."
        )
        notes = ["--deadline gives it longer"]
        return answer.model_copy(
            update={"state": StartState.STARTING, "sentence": words, "notes": notes}
        )
    where = _stacks(process)
    last = (
        f"last line: {public_line(answer.last, 160)}"
        if answer.last
        else "its log is empty"
    )
    words = f"The start hangs {answer.stage}: {silence}, and {busy}."
    failed = FailedStart(
        fault=StartFault.HANG,
        sentence=words,
        line=answer.last,
        why=(last, f"{silence}; {busy}", *where),
        advice=(
            "a download waits so too (HF_HUB_OFFLINE=1 rules it out), and a rank of "
            "another machine that never comes",
            (
                "the next lines of the log with VLLM_LOGGING_LEVEL=DEBUG or "
                "--log-level debug"
            ),
        ),
    )
    update = {"state": StartState.STUCK, "sentence": words, "cause": _as_cause(failed)}
    return answer.model_copy(update=update)


def _cpu(process: EngineProcess) -> float:
    """Seconds of CPU time of all its processes."""
    total = 0.0
    for pid in process.process_ids():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def _answers(process: EngineProcess, url: str, engine: Engine | None) -> bool:
    """Whether the server itself answers: a process of this start listens on the
    port."""
    if not url or engine is None:
        return False
    port = int(url.rpartition(":")[2])
    inodes = {
        s.inode for s in processes.sockets() or () if s.port == port and s.state == "0A"
    }
    if not inodes:
        return False
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in process.process_ids():
        with contextlib.suppress(OSError):
            if any(target in wanted for _, target in processes.files(pid)):
                return answers(url + engine.ready_path)
    return False


_MOST_STACKS = 4
STACKS_S = 20.0


def _stacks(process: EngineProcess) -> list[str]:
    """What the main thread of each of its Python processes stands in, innermost
    first."""
    pids = process.process_ids()
    with tempfile.TemporaryDirectory(prefix="mmrepro-why-") as folder:
        probe = StacksProbe(pids, samples=1, locals=False)
        result = run_probe(probe, Path(folder), STACKS_S)
    found = []
    for sample in result.data.samples if result.data else ():
        if sample.threads:
            frames = sample.threads[0].frames[:3]
            place = " < ".join(
                f"{f.function} ({Path(f.file).name}:{f.line})" for f in frames
            )
            found.append(f"{processes.label(sample.pid)[:60]}: {place}")
    return found[:_MOST_STACKS]
