"""For scenarios of SGLang: two pictures that a cache takes for one, and requests with
an id."""

from __future__ import annotations

import asyncio
import io
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from mmrepro.base.records import Fidelity, StandIn
from mmrepro.engines import Engine, Mitigation, Patch
from mmrepro.engines.models import MERGE, PATCH, TINY, QwenModel, smart_resize
from mmrepro.failure.signature import (
    CACHED_TOTAL,
    ComparedAnswers,
    Condition,
    Finding,
    Logs,
    first_difference,
    spelled,
)
from mmrepro.failure.signature.live_server import CORE_ALIVE, core_is_dead
from mmrepro.probes import HttpData
from mmrepro.scenario.common import server_gone
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import (
    Declared,
    LiveFacts,
    RunFacts,
    cause,
    cure,
    precondition,
    symptom,
)
from mmrepro.scenario.silent import PicturePair, as_in_a_run
from mmrepro.traffic import Drive, Picture, RequestWatch
from mmrepro.traffic.evidence import Evidence, Missing, RequestRecord

if TYPE_CHECKING:
    from mmrepro.failure.documents import Exhibit, Shown

CONTROL = "control"
OTHER = "gate: other picture after another"
"""It has nothing in common with the picture before it but the text before both."""
OFF = "disable-radix-cache"
TOKENS, TEXT = 12, "describe the image please"
_PACE_TOKENS, _TOKENS_FACT = 96, "tokens"
LONG_S = 120.0
"""Least deadline of a long answer."""
ABORTS = "sglang:num_aborted_requests_total"
"""Aborts that the tokenizer manager passed on to the scheduler."""
FLUSH, FLUSH_TRIES, FLUSH_PAUSE_S = "flush the prefix cache", 50, 0.1
_LEAST_PIXELS = 56 * 56
"""SGLang enlarges smaller pictures of a Qwen2-VL (0.5.6
utils/hf_transformers_utils.py)."""
_ORIENTATION = 0x0112
"""EXIF's tag."""


ENDED = "scheduler-exception"
ENDED_LOG = {ENDED: r"Scheduler hit an exception: Traceback"}
"""The scheduler's last word: it ends all processes of the server with itself."""


def lost(evidence: Evidence, logs: Logs, engine: Engine) -> Finding:
    """For an observer: no scheduler lives, or nobody answers where its processes cannot
    be seen; and the log says that it ended on an error."""
    if evidence.facts.get(CORE_ALIVE) is not None:
        return core_is_dead(evidence, logs, engine.core_role, ENDED)
    looks = [http.answers for _, http in evidence.results(HttpData, "check")]
    if not looks:
        raise Missing(evidence.why_missing("http", "check"))

    last = looks[-1]
    ended = logs.count(ENDED)
    answers = ", ".join(f"{a.path} {a.status or a.error[:40]}" for a in last)
    silent = bool(last) and all(a.status is None for a in last)
    return Finding.of(silent and ended > 0, f"{ended} × {ENDED} in the log; {answers}")


def server_lost() -> Declared:
    """The whole server died: by its exit, or for an observer by its log."""
    live = symptom(
        "it is gone, and the log says that the scheduler ended", lost, id="lost"
    )
    return server_gone(live=live)


_PATCHES = "sglang_patches"
PATCH_LOG = {
    f"{_PATCHES}-loaded": f"mmrepro stand-in {_PATCHES}: loaded",
    f"{_PATCHES}-called": f"mmrepro stand-in {_PATCHES}: called",
}
"""What the stand-in says of itself."""
_MENDED = "patch"
"""Name of the mitigation that is one."""
PATCHED_KEYS = ("extra-key-from-hash", "full-64-bit-hash")
"""Those that patch what a picture is cached under, as an analysis recommends."""


def mended(which: str, replaces: str, why: str, *, name: str = _MENDED) -> Mitigation:
    """One mistake of the engine, patched: ``which`` by its name in the stand-in."""
    stand_in = StandIn(name=_PATCHES, replaces=replaces, why=why)
    return cure(
        name,
        description=why,
        patch=Patch(_PATCHES, stand_in, env={"MMREPRO_SGLANG_PATCH": which}),
    )


def patch_worked(logs: Logs, facts: RunFacts) -> Finding:
    """For ``works_after``: where the patch was to help it made a difference; else
    unknown."""
    if not facts.mitigations & {_MENDED, *PATCHED_KEYS}:
        return Finding.of(True, "nothing is patched")
    loaded = logs.count(f"{_PATCHES}-loaded")
    called = logs.count(f"{_PATCHES}-called")
    text = f"the patch said {loaded} times that it is there, {called} times what it did"
    return Finding.of(True, text) if loaded and called else Finding.unknown(text)


async def stream(
    drive: Drive,
    label: str,
    rid: str,
    tokens: int,
    *,
    leave_at: int | None = None,
    started: asyncio.Event | None = None,
) -> RequestRecord:
    """A long answer, streamed, under the caller's request id.

    Args:
        leave_at: the client goes away at so many pieces; None: it stays.
        started: set when the first piece has come, or the request has ended.
    """
    body = {
        "model": drive.traffic.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "rid": rid,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first = started or asyncio.Event()
    watch = RequestWatch(lambda: None, lambda _: first.set(), leave_at)
    try:
        return await drive.traffic.send(
            label,
            json.dumps(body).encode(),
            watch,
            stream=True,
            max_tokens=tokens,
            deadline_s=max(drive.deadline_s, LONG_S),
        )
    finally:
        # Whoever waits for its first piece waits no longer, also if none came.
        first.set()


async def measure_pace(drive: Drive, seconds: float, most: int) -> None:
    """Fact ``tokens``: about so many as are decoded in ``seconds`` on this machine,
    now."""
    timed = await stream(drive, "gate: pace", "gate-1", _PACE_TOKENS)
    rate = _PACE_TOKENS / max(timed.latency_s - (timed.ttft_s or 0.0), 0.01)
    drive.fact(_TOKENS_FACT, min(most, max(_PACE_TOKENS, int(seconds * rate))))


def paced(drive: Drive) -> int:
    """The tokens that :func:`measure_pace` noted."""
    return int(drive.recorder.evidence.facts.get(_TOKENS_FACT) or _PACE_TOKENS)


async def abort(drive: Drive, rid: str) -> None:
    """Ask the server to abort the request with that id."""
    body = json.dumps({"rid": rid}).encode()
    await drive.traffic.raw(
        f"abort {rid}", path="/abort_request", body=body, deadline_s=drive.deadline_s
    )


async def flush(drive: Drive) -> None:
    """Empty the prefix cache; SGLang refuses while a request is just being taken off
    its books."""
    for _ in range(FLUSH_TRIES):
        record = await drive.traffic.raw(
            FLUSH, path="/flush_cache", deadline_s=drive.deadline_s
        )
        if record.status == 200 or record.timed_out:
            return
        await asyncio.sleep(FLUSH_PAUSE_S)


def prefix_cache_at_work(
    text: str, one: str, other: str, apart: tuple[str, ...] = ()
) -> tuple[Declared, ...]:
    """What two pictures need to share KV cache: that the cache holds pictures, and is
    not emptied between the two.

    Args:
        text: the request that shared with the picture before it only the text before
            both.
        apart: mitigations that keep requests apart in that cache.
    """

    def holds_pictures(answers: ComparedAnswers) -> Finding:
        return answers.more_than_text(
            text, f"gate: {one} again", f"gate: {other} again"
        )

    def text_shared(answers: ComparedAnswers) -> Finding:
        victims = (f"{other} after {one}", f"{one} after {other}")
        before = answers.cached(text)
        shared = before > 0 and all(answers.cached(v) >= before for v in victims)
        observed = f"{answers.from_cache(*victims)}; the text has {before}"
        return Finding.of(shared, observed)

    return (
        precondition(
            "each picture of the pair, sent again, is taken from the prefix cache",
            holds_pictures,
            id="cache-on",
            removed_by=(OFF,),
        ),
        precondition(
            "each, sent after the other, shares at least the text before the picture "
            "with it",
            text_shared,
            removed_by=(OFF, *apart),
        ),
    )


def no_pretended_kernel(logs: Logs) -> Finding:
    """The log has to show as well that it would have counted calls."""
    loaded = logs.count("sgl_kernel_stub-loaded")
    calls = logs.count("sgl_kernel_stub-called") + logs.count("vllm_names-called")
    if not loaded:
        return Finding.unknown("the log does not show that the stand-in was loaded")
    if calls:
        return Finding.unknown(
            f"{calls} calls of kernels that are only pretended: the answers may not be "
            "the engine's"
        )
    return Finding.of(True, f"it reported itself {loaded} times, 0 calls")


def engines_own(evidence: Evidence, facts: RunFacts) -> Finding:
    """For ``works_after``, and ``given`` of a claim: answers are the engine's own, not
    made of kernels that are only pretended."""
    if facts.fidelity is not Fidelity.CPU_STAND_IN:
        return Finding.of(True, "no stand-in")
    return no_pretended_kernel(Logs(evidence))


class PictureAlias(Scenario):
    """Two pictures, each sent after the other, and a control that is like neither of
    them.

    ``pair`` names the two; ``pictures`` holds them and the control.
    """

    engine = "sglang"
    max_model_len = 4096
    pair: ClassVar[tuple[str, str]]
    prefix_cached: ClassVar[bool] = True
    """Whether an answer may be computed on a cached prefix, which may round in another
    way."""
    exhibit: ClassVar[tuple[str, str]]
    """Title of the comparison in the report, and what there is to see."""

    @property
    def orders(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The pair in both orders."""
        first, second = self.pair
        return (first, second), (second, first)

    @abstractmethod
    def pictures(self, drive: Drive) -> Mapping[str, Picture]:
        """The pictures by name."""

    def fields(self, drive: Drive, picture: str) -> Mapping[str, object]:
        """Further fields of a request with the picture of that name."""
        return {}

    async def between(self, drive: Drive) -> None:
        """Make the next answers independent of those before."""
        await flush(drive)

    async def gate(self, drive: Drive) -> None:
        pictures = self.pictures(drive)
        for name, picture in pictures.items():
            drive.attach(f"{name}.png", picture.png)
        drive.reproducer_env["MMREPRO_PAIR"] = str(drive.recorder.dir)
        if drive.model is not None:
            drive.reproducer_env["MMREPRO_MODEL"] = str(drive.model)
        size = (pictures[CONTROL].width, pictures[CONTROL].height)
        another = drive.picture("other-1", 11, size)
        await self.ask(drive, "gate: warm-up", drive.picture("warm-up", 10, size))
        if self.prefix_cached:
            await self.between(drive)
            await self.ask(drive, "gate: another picture", another)
            other = drive.picture("other-2", 12, size)
            await self.ask(drive, OTHER, other)
        for name, picture in pictures.items():
            await self.between(drive)
            await self.ask(drive, f"gate: {name} alone", picture)
            await self.ask(drive, f"gate: {name} again", picture)
            if self.prefix_cached:
                await self.between(drive)
                await self.ask(drive, "gate: another picture", another)
                await self.ask(drive, f"gate: {name} after others", picture)
        await self._read_counter(drive)

    async def trigger(self, drive: Drive) -> None:
        pictures = self.pictures(drive)
        for first, second in self.orders:
            await self.between(drive)
            await self.ask(drive, f"{first} first", pictures[first])
            await self.ask(drive, f"{second} after {first}", pictures[second])
            await self.ask(drive, f"{CONTROL} after {first}", pictures[CONTROL])
        await self._read_counter(drive)

    async def ask(self, drive: Drive, label: str, picture: Picture) -> None:
        """One request with the picture before the text, with logprobs."""
        await self.question(drive, label, picture)

    async def question(
        self,
        drive: Drive,
        label: str,
        picture: Picture,
        text: str = TEXT,
        more: Mapping[str, object] | None = None,
    ) -> None:
        """The same with another text; ``more``: further fields of its body."""
        fields = {**self.fields(drive, picture.name), **(more or {})}
        extra = {"logprobs": True, "top_logprobs": 1, **fields}
        await drive.chat(
            label, text=text, images=[picture], max_tokens=TOKENS, extra=extra
        )

    async def _read_counter(self, drive: Drive) -> None:
        """The server's own; it appears with its first cached token, and is zero
        before."""
        total = await drive.metric(f"sglang:{CACHED_TOTAL}")
        prompt = await drive.metric("sglang:prompt_tokens_total")
        drive.fact(CACHED_TOTAL, total if total is not None or prompt is None else 0.0)

    def gate_check(self, evidence: Evidence) -> Finding:
        """Each picture has an answer of its own, and the same one each time."""
        for request in evidence.requests_in("gate"):
            if request.label != FLUSH and not request.answered:
                why = request.error or f"HTTP {request.status}"
                return Finding.of(False, f"{request.label}: {why}")

        flushes = [r.status for r in evidence.requests if r.label == FLUSH]
        if self.prefix_cached and flushes[-1:] != [200]:
            status = flushes[-1] if flushes else "not asked for"
            return Finding.of(False, f"/flush_cache: {status}")
        return ComparedAnswers(evidence).differ(*self.pair, CONTROL)

    @precondition(
        "the first picture of each order is computed whole, and gets its own answer"
    )
    def starts_anew(self, answers: ComparedAnswers) -> Finding:
        observed: list[str] = []
        for first in self.pair:
            label = f"{first} first"
            if answers.cached(label) or answers.whose(label, first) != first:
                own = first_difference(answers.to(label), answers.alone(first)[0])
                return Finding.of(
                    False, f"{answers.from_cache(label)} from the cache; {own}"
                )
            observed.append(f"{first} first: its own answer")
        return Finding.of(True, "; ".join(observed))

    def off_as_told(self, answers: ComparedAnswers, facts: RunFacts) -> Finding:
        """For ``works_after``: where the prefix cache was to be off, it was; else
        unknown."""
        if OFF not in facts.mitigations:
            return Finding.of(True, "the prefix cache was left on")
        again = [f"gate: {picture} again" for picture in self.pair]
        text = f"{OFF}: {answers.from_cache(*again)} from the cache"
        if any(answers.cached(label) for label in again):
            return Finding.unknown(f"{text}, which is not off")
        return Finding.of(True, text)

    @cause("no kernel that the stand-in only pretends to have was called")
    def no_pretended_kernel(self, logs: Logs) -> Finding:
        return no_pretended_kernel(logs)

    def conditions(self, facts: RunFacts) -> list[Condition]:
        """The conditions of a run: on a GPU there is no stand-in of which anything
        could be asked."""
        conditions = super().conditions(facts)
        if facts.fidelity is Fidelity.CPU_STAND_IN:
            return conditions
        return [known for known in conditions if known.id != "no-pretended-kernel"]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return as_in_a_run(self, facts)

    def exhibits(self, evidence: Evidence, facts: RunFacts) -> list[Exhibit]:
        from mmrepro.failure.documents import Exhibit

        first, second = self.pair
        alone = [f"gate: {first} alone", f"gate: {second} alone"]
        labels = [*alone, f"{second} after {first}", f"{CONTROL} after {first}"]
        title, note = self.exhibit
        note += (
            " The weights are random: an answer is not sense, but it is the "
            "picture's own."
        )
        answers = ComparedAnswers(evidence)
        return [
            Exhibit(
                title=title,
                note=note,
                shown=[shown(answers, label) for label in labels],
            )
        ]


def own_answer(picture: str) -> Callable[[ComparedAnswers], str]:
    """For a row of the table: what the picture was answered in the gate."""

    def spelled_answer(answers: ComparedAnswers) -> str:
        return spelled(answers.alone(picture)[0])

    return spelled_answer


def shown(answers: ComparedAnswers, label: str) -> Shown:
    """One column of the comparison; the label begins with the picture's name."""
    from mmrepro.failure.documents import Shown

    caption = label.removeprefix("gate: ")
    name = caption.split()[0]
    column = Shown(caption=caption, file=f"{name}.png", text="no answer")
    # Where something is missing, the column shows what there is up to it.
    with suppress(Missing):
        answer, own = answers.to(label), answers.alone(name)[0]
        column.text = spelled(answer)
        logprobs = ", ".join(f"{logprob:.3f}" for logprob in answer.logprobs[:5])
        column.facts["logprobs"] = f"{logprobs} …"
        if answer is not own:
            column.facts["against its own"] = first_difference(answer, own)
        cached = answers.cached(label)
        column.facts["from the cache"] = (
            f"{cached} of {answer.prompt_tokens} prompt tokens"
        )
    return column


class PicturePatches(NamedTuple):
    """A picture as Qwen2-VL's image processor lays it out: rows and columns of patches,
    and their values in one buffer."""

    grid: tuple[int, int]
    values: bytes


def patches(picture: Picture, model: str) -> PicturePatches | None:
    """The values before they are rescaled, which keeps equal ones equal and others
    apart.

    ``model``: as a case has it. None where it cannot be told without the engine: the
    picture would be resized, is turned by its EXIF data or none at all, or the model is
    no tiny one."""
    import numpy as np
    from PIL import Image

    tiny = TINY.get(model)
    if not isinstance(tiny, QwenModel):
        return None
    sides = (picture.height, picture.width)
    try:
        resized = smart_resize(
            *sides, min_pixels=_LEAST_PIXELS, max_pixels=tiny.max_pixels
        )
        if resized != sides:
            return None
        with Image.open(io.BytesIO(picture.png)) as opened:
            if opened.getexif().get(_ORIENTATION, 1) != 1:
                return None
            pixels = np.asarray(opened.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None

    rows, columns = picture.height // PATCH, picture.width // PATCH
    # transformers models/qwen2_vl/image_processing_qwen2_vl.py, _preprocess: MERGE x
    # MERGE patches that become one token are beside each other, and in each patch the
    # channels come first.
    blocks = pixels.reshape(
        rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3
    )
    values = blocks.transpose(0, 3, 1, 4, 6, 2, 5).tobytes()
    return PicturePatches((rows, columns), values)


def same_bytes(pair: PicturePair, model: str) -> bool:
    """Whether both pictures are the same bytes to the engine, on two grids."""
    mine, other = patches(pair.mine, model), patches(pair.other, model)
    if mine is None or other is None:
        return False
    return mine.values == other.values and mine.grid != other.grid
