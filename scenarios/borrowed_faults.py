"""minivllm: failures of vLLM, SGLang and LMDeploy, in twenty lines each.

Each variant switches one of them on in the engine of ``reproducers/minivllm``, drives
it there over HTTP, and looks for the symptom of the original and for its reason. Small
and fast, so that the harness's own tests can have every kind of failure: a hang, a dead
loop, single errors, silence."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from mmrepro.failure.signature.checks import digest_in, same_digest, stays_in
from mmrepro.scenario import (
    Control,
    Drive,
    Evidence,
    FailureClass,
    Finding,
    Logs,
    Metrics,
    RequestRecord,
    Requests,
    Severity,
    Truth,
    cause,
    common,
    issue,
    minivllm as mini,
    precondition,
    pull,
    row,
    symptom,
    with_variants,
)
from mmrepro.scenario.more import (
    Failure,
    Picture,
    StackSample,
    StacksData,
    checks,
    crash,
)
from mmrepro.scenario.silent import PicturePair, explained, may_show, pairs
from mmrepro.scenario.vllm import MM_CACHE_ISSUE

if TYPE_CHECKING:
    from mmrepro.traffic.case import Operation

TOO_LONG, AGAIN = "image X, too long", "image X again"
FILLS = ("fill 1", "fill 2", "fill 3", "fill 4", "fill 5")
_MAKING_ROOM = ("put", "received", "<genexpr>", "add", "_take", "_loop")
"""The engine's thread where it makes room for an image, innermost first."""


def _ghosts(stacks: StacksData) -> list[str]:
    """The digests that pop_oldest looks at, from py-spy's locals."""
    digests = map(digest_in, stacks.texts("digest", frame="pop_oldest"))
    return [digest for digest in digests if digest]


class GhostKeyLru(mini.MinivllmFault):
    """The image cache's eviction never ends, while /health stays 200.

    What: After a request was refused for its length and its image was sent again, the
    next eviction never ends: the engine's thread spins, /health is green, nothing is
    answered.

    Why: `touch()` gives a missing key a place in the LRU order: a ghost. When it is the
    oldest, `pop_oldest()` removes nothing, and `put()` asks for room for ever."""

    name, variant = "borrowed-faults", "ghost-key-lru"
    failure_class, severity = FailureClass.SILENT_HANG, Severity.CRITICAL
    needs = ("images",)
    origin = "vllm#43941"
    real = "; see ghost-key-eviction"
    server = "--mm-cache-tokens 130"
    refused = (TOO_LONG,)
    references = (MM_CACHE_ISSUE,)
    log_patterns = {
        "cached-item-assertion": r"AssertionError: Expected a cached item for mm_hash="
    }
    key_log_patterns = ("cached-item-assertion",)

    async def trigger(self, drive: Drive) -> None:
        image = drive.picture("X", 777)
        await drive.ask(TOO_LONG, text="x" * (drive.max_model_len + 50), image=image)
        await drive.ask(AGAIN, image=image)
        for i, label in enumerate(FILLS, 1):
            if (
                await drive.ask(label, image=drive.picture(f"fill-{i}", 1000 + i))
                is None
            ):
                return
        await drive.ask(mini.AFTER)

    @precondition(
        "the image was refused for its request's length, and the engine took it in "
        "later"
    )
    def refused_then_taken(self, requests: Requests, logs: Logs) -> Finding:
        long, again = requests.first(TOO_LONG), requests.first(AGAIN)
        taken = any(sent is again for sent, _ in mini.admitted(requests, logs))
        refused = long.status == 400 and "maximum context length" in long.error
        digests = [image.sha256 for image in again.images]
        same = bool(digests) and [image.sha256 for image in long.images] == digests
        which = "the same" if same else "another"
        observed = f"{long.reply}; {which} image again: {again.reply}"
        return Finding.of(refused and same and taken, observed)

    @precondition(
        "room was made in the engine's image cache, for the refused image's place too"
    )
    def eviction_reached(self, requests: Requests, metrics: Metrics) -> Finding:
        older = {
            image.sha256 for sent in requests.within("gate") for image in sent.images
        }
        evicted = mini.told(metrics, "mm_cache_evictions_total")
        said = f"asked for room {evicted} times; {len(older)} images were there before"
        return Finding.of(evicted > len(older), said)

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        return bool(_ghosts(StacksData(samples=list(samples))))

    symptoms = (
        symptom("an image is not answered", checks.unanswered, id="image-unanswered"),
        common.not_answered(),
        common.endpoints_green(),
        common.nothing_queued(),
        common.tokens_stand_still(),
        common.core_burns_cpu(),
    )
    causes = (
        common.in_log(
            'the log holds "Expected a cached item for mm_hash=…"',
            "cached-item-assertion",
        ),
    )
    lasting_causes = ("cached-item-assertion",)

    @cause("in every stack sample the engine's loop is inside ImageCache.put")
    def eviction_stack(self, stacks: StacksData) -> Finding:
        return stays_in(stacks, "_loop", _MAKING_ROOM, "pop_oldest")

    @cause("the key that cannot be evicted is the mm_hash of that assertion")
    def ghost_is_the_key(self, stacks: StacksData, logs: Logs) -> Finding:
        named = {
            m[1]
            for m in logs.search("cached-item-assertion", r"mm_hash='([0-9a-f]{64})'")
        }
        return same_digest(_ghosts(stacks), named, "pop_oldest looks at")

    works_after = (common.answered(AGAIN, *FILLS, mini.AFTER),)


LABELS = _FIRST, _SECOND, _OTHER = "picture A", "picture B", "picture C"
PAD_RANGE = 1 << 16
"""That of reproducers/minivllm/config.py."""
_NO_CACHE = "--no-prefix-caching"


def digest(picture: Picture) -> int:
    """The digest of reproducers/minivllm/sequence.py, Image.of: of the file, not of its
    pixels."""
    return int(hashlib.sha256(picture.png).hexdigest(), 16)


def _same_key(pair: PicturePair) -> bool:
    mine, other = digest(pair.mine), digest(pair.other)
    return mine != other and mine % PAD_RANGE == other % PAD_RANGE


def _images_first(op: Operation, pictures: Mapping[str, Picture]) -> list[object]:
    """minivllm puts all pictures before the text, and knows no salt."""
    return [pictures[name] for name in op.images]


def pictures(drive: Drive) -> list[Picture]:
    """A and B, whose digests agree modulo the pad range, and C, of which nothing else
    is known.

    By the birthday problem some three hundred pictures hold such a pair.
    """
    seen: dict[int, Picture] = {}
    for seed in count(5000):
        made = drive.picture(f"noise-{seed}", seed)
        pad = digest(made) % PAD_RANGE
        if pad in seen:
            break
        seen[pad] = made
    return [seen[pad], made, drive.picture("C", 4)]


class PadValueKey(mini.MinivllmFault):
    """A picture is answered with another one's keys and values, silently.

    What: Two pictures whose digests agree modulo 65536 share KV cache: the second is
    answered as the first, token for token, with HTTP 200 and no word in the log.

    Why: A prefix key holds, in the place of a picture, its digest modulo 65536. Two
    pictures with one such value are one prefix, and the second one's embeddings are
    never used. SGLang takes 30 bits, which 38 582 pictures exhaust by the birthday
    problem; here 300 do."""

    name, variant = "borrowed-faults", "pad-value-key"
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.CRITICAL
    needs = ("images",)
    origin = "sglang#2151"
    real = "; see pad-value-collision"
    control_server = Control("the same server without prefix caching", (_NO_CACHE,))
    references = (
        issue(
            "sglang#2151",
            "llava use image hash as token, leading to cache bug",
            "the first report; the real thing is the scenario pad-value-collision",
        ),
    )
    rows = (
        *mini.MinivllmFault.rows,
        row("the answer to B", "wrong-answer", "as by the control server"),
    )

    async def trigger(self, drive: Drive) -> None:
        for label, picture in zip(LABELS, pictures(drive), strict=True):
            await drive.ask(
                label, image=picture, max_tokens=16, extra={"ignore_eos": True}
            )

    control = trigger

    def gate_check(self, evidence: Evidence) -> Finding:
        """The pictures of the pair are told apart by a server that shares nothing."""
        texts = {r.label: r.text for r in evidence.requests_in("control") if r.answered}
        if silent := [label for label in LABELS if label not in texts]:
            return Finding.of(False, f"the control server did not answer {silent[0]}")
        if texts[_FIRST] == texts[_SECOND]:
            return Finding.of(
                False, "the control server answers A and B alike: nothing to see"
            )
        return super().gate_check(evidence)

    @precondition("an image that is sent again is taken from the KV cache")
    def prefix_cached(self, requests: Requests) -> Finding:
        first, again = (
            requests.first(label).cached_tokens for label in self.gate_images
        )
        text = f"cached tokens in the gate: {first}, then {again}"
        if first is None or again is None:
            return Finding.unknown(text)
        return Finding.of(first < self.model.image_tokens <= again, text)

    @symptom(
        "B gets A's answer, HTTP 200, where the control server answers otherwise",
        live=True,
    )
    def wrong_answer(self, requests: Requests) -> Finding:
        first, (second, right) = requests.pair(_FIRST)[0], requests.pair(_SECOND)
        text = (
            f"A: {first.text!r}; B: {second.text!r}; B by the control server: "
            f"{right.text!r}"
        )
        return Finding.of(second.text == first.text != right.text, text)

    @symptom("A and C are answered as by the control server", live=True)
    def others_right(self, requests: Requests) -> Finding:
        return common.as_by_control(_FIRST, _OTHER)(requests)

    @precondition(
        f"the digests of A and B agree modulo {PAD_RANGE}, that of C does not"
    )
    def one_key(self, requests: Requests) -> Finding:
        digests = [requests.pair(label)[0].images[0].sha256 for label in LABELS]
        pad_a, pad_b, pad_c = (int(digest, 16) % PAD_RANGE for digest in digests)
        differ = len(set(digests)) == len(LABELS)
        observed = f"digests modulo it: {pad_a}, {pad_b}, {pad_c}"
        return Finding.of(differ and pad_a == pad_b != pad_c, observed)

    @cause(
        "all of B, never sent before, comes from the KV cache; nothing of A and C does",
        live=True,
    )
    def taken_from_cache(self, requests: Requests) -> Finding:
        cached = [requests.pair(label)[0].cached_tokens for label in LABELS]
        tokens = self.model.image_tokens
        text = f"cached tokens of A, B and C: {cached}; a picture has {tokens}"
        if None in cached:
            return Finding.unknown(text)
        first, second, other = (share or 0 for share in cached)
        return Finding.of(first == other == 0 and second >= tokens, text)

    def recognises(self, failure: Failure) -> Finding:
        able = may_show(self, failure)
        if able.truth is not Truth.MET:
            return able
        if _NO_CACHE in failure.case.server.args:
            return Finding.of(False, f"the server runs with {_NO_CACHE}")
        what = f"one digest modulo {PAD_RANGE}, and another digest"
        return explained(pairs(failure, _images_first), _same_key, what)

    works_after = (common.answered(*LABELS), common.as_by_control(*LABELS))


PROMPT, GROWS = "a prompt of 300 characters", "an answer of 300 tokens"


def _configured(metrics: Metrics) -> int:
    """Tokens that the cache should hold, as the engine was configured. Raises
    Missing."""
    return mini.told(metrics, "kv_cache_blocks_configured") * mini.BLOCK_SIZE


def _tenth(metrics: Metrics) -> int:
    """Tokens of a tenth of that, in whole blocks."""
    return _configured(metrics) // mini.BLOCK_SIZE // 10 * mini.BLOCK_SIZE


class KvBudget(mini.MinivllmFault):
    """A KV cache of a tenth of its budget: an opaque 500, then a dead loop.

    What: A prompt that the settings have room for gets 'internal error happened'; an
    answer that outgrows the cache ends the engine's loop, and every later request
    fails.

    Why: The cache gets a tenth of the blocks that were asked for, and nobody checks
    what fits. A prompt that never will is given up without a reason; where one sequence
    alone outgrows the cache, nothing is left to preempt, and the scheduler's assertion
    ends its thread."""

    name, variant = "borrowed-faults", "kv-budget"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    origin = "LMDeploy 0.6.4 and 0.7.0.post3"
    real = "; see undersized-kv-budget and kv-growth-crash"
    server = "--num-blocks 81 --no-prefix-caching"
    references = (
        pull(
            "lmdeploy#2981",
            "the error as a finish reason (0.7.0)",
            "the real things are undersized-kv-budget and kv-growth-crash",
        ),
    )
    log_patterns = {
        "nothing-to-preempt": r"AssertionError: len\(running\) > 0: nothing is left to preempt",
        "raised-in-decode": mini.place("scheduler.py:_decode"),
        "added-with-tokens": r"Added request \S+: \d+ tokens",
    }
    key_log_patterns = ("nothing-to-preempt",)

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(PROMPT, text="x" * 300)
        await drive.ask(GROWS, max_tokens=300, extra={"ignore_eos": True})
        await drive.ask(mini.AFTER)

    @precondition(
        "the prompt has room in the cache as configured, and not in a tenth of it"
    )
    def prompt_outgrows(
        self, requests: Requests, logs: Logs, metrics: Metrics
    ) -> Finding:
        tokens, least, most = (
            mini.counted(requests, logs, PROMPT),
            _tenth(metrics),
            _configured(metrics),
        )
        return Finding.of(
            least < tokens <= most, f"{tokens} tokens; {most} of room, a tenth {least}"
        )

    @precondition("the answer was on its way past a tenth of the cache")
    def answer_outgrows(
        self, requests: Requests, logs: Logs, metrics: Metrics
    ) -> Finding:
        """Of an answer that failed: by the tokens that no other request got."""
        grows = requests.first(GROWS)
        before = mini.counted(requests, logs, GROWS)
        tokens = grows.completion_tokens
        if tokens is None:
            generated = mini.told(metrics, "generation_tokens_total")
            for other in requests.within("gate", "trigger"):
                generated -= other.completion_tokens or 0
            tokens = generated
        text = f"{before} + {tokens} tokens; a tenth is {_tenth(metrics)}"
        return Finding.of(before + tokens > _tenth(metrics), text)

    def opaque_500(self, requests: Requests) -> Finding:
        return requests.failed(PROMPT, "internal error happened")

    def loop_ends(self, requests: Requests) -> Finding:
        return requests.failed(GROWS, "the engine is dead")

    symptoms = (
        symptom(
            "a prompt gets HTTP 500 that names no limit: 'internal error happened'",
            opaque_500,
        ),
        symptom("an answer that grows gets HTTP 500: the engine is dead", loop_ends),
        common.every_request_fails(),
    )
    causes = (
        common.in_log(
            (
                "the scheduler's assertion that something is left to preempt ended "
                "the loop"
            ),
            "nothing-to-preempt",
            "raised-in-decode",
        ),
    )

    @cause(
        "the cache holds less than that prompt, and --num-blocks asked for more",
        live=False,
    )
    def budget_too_small(self, metrics: Metrics, logs: Logs) -> Finding:
        prompts = [
            int(m[1]) for m in logs.search("added-with-tokens", r": (\d+) tokens")
        ]
        if not prompts:
            return Finding.unknown("the log names no prompt")
        has, asked = (
            mini.told(metrics, "kv_cache_blocks") * mini.BLOCK_SIZE,
            _configured(metrics),
        )
        largest = max(prompts)
        text = f"the cache holds {has} tokens of the {asked} asked for"
        return Finding.of(
            has < largest <= asked, f"{text}; the longest prompt has {largest}"
        )

    works_after = (common.answered(PROMPT, GROWS, mini.AFTER),)


TOGETHER = tuple(f"image {n} and a long text" for n in "1234")
_TEXT = "x" * 1820
"""In steps of 96 a request's last one has room for a few rows of the next image, of
64."""
SCATTER = "Number of elements of source < number of ones in mask"
"""On a CPU; a GPU prints the words of ``masked_scatter_size_check`` and fails all that
follows."""


def _lost(sent: RequestRecord) -> bool:
    """It failed by a device-side assert, its own or an earlier one."""
    return sent.status == 500 and crash.ASSERT_TRIGGERED in sent.error


class ReusedMask(mini.MinivllmFault):
    """The next step is prepared in the mask that this step still reads.

    What: Requests with images that are prefilled in chunks beside each other end in
    masked_scatter or get wrong embeddings; alone, in one step, they are answered.

    Why: With asynchronous scheduling the next prefill step is prepared before this one
    has run. There is one mask buffer for both: this step scatters its embeddings by the
    next one's mask. Where that marks more tokens, masked_scatter refuses; else nobody
    notices. On a GPU the buffer is pinned memory, its copy waits behind the vision
    tower, and the host is there before it; a CPU, which is never late, is given the
    order of a GPU that is."""

    name, variant = "borrowed-faults", "reused-mask"
    failure_class, severity = FailureClass.REQUESTS_FAIL, Severity.HIGH
    needs = ("images",)
    origin = "vllm#30624"
    real = "; see chunked-mm-prefill --variant async-race"
    server = """--max-batched-tokens 96 --num-blocks 600 --no-prefix-caching --check-contract=log
        --vision-ms 40"""
    references = (
        issue(
            "vllm#30624",
            "`masked_scatter_size_check` failed when running Qwen3VLMoE",
            "the real thing is chunked-mm-prefill, variant async-race",
        ),
        pull("vllm#31841", "Two buffers for is_mm_embed", release="0.14.0"),
    )
    log_patterns = {
        "scatter-error": r"RuntimeError: .*"
        + SCATTER
        + r"|masked_scatter_size_check: block: ",
        "mask-rows": r"contract violated: mask-rows: ",
    }
    key_log_patterns = ("mask-rows", "scatter-error")
    live_only = common.some_requests_fail()

    async def trigger(self, drive: Drive) -> None:
        asked = (
            drive.ask(label, text=_TEXT, image=drive.picture(label, i))
            for i, label in enumerate(TOGETHER, 1)
        )
        await asyncio.gather(*asked)
        await drive.ask(mini.AFTER)

    @precondition(
        "a step that an image begins in was prepared while one with images had not run"
    )
    def prepared_ahead(self, metrics: Metrics) -> Finding:
        names = ["minivllm:image_steps_ahead_total"]
        before, *_, after = metrics.readings(names, "gate", "check")
        return Finding.of(after > before, f"such steps: {after - before:.0f}")

    def image_500(self, requests: Requests) -> Finding:
        scattered = False
        observed: list[str] = []
        for label in TOGETHER:
            sent = requests.first(label)
            by_the_mask = SCATTER in sent.error or _lost(sent)
            scattered = scattered or (sent.status == 500 and by_the_mask)
            observed.append(f"{sent.label}: {sent.reply}")
        return Finding.of(scattered, "; ".join(observed))

    def text_after(self, requests: Requests) -> Finding:
        """A device-side assert ends what CUDA can do in a process: then no text is
        answered."""
        text = requests.first(mini.AFTER)
        if any(_lost(requests.first(label)) for label in TOGETHER):
            return Finding.of(
                _lost(text), f"the device is lost; {mini.AFTER}: {text.reply}"
            )
        return common.answered(mini.AFTER)(requests)

    symptoms = (
        symptom("requests with an image get HTTP 500 from masked_scatter", image_500),
        symptom(
            "text is answered afterwards, unless it was a device-side assert",
            text_after,
            id="text-answered",
        ),
        common.endpoints_green(),
    )
    causes = (common.in_log("the log holds masked_scatter's refusal", "scatter-error"),)

    # The contract's words are there only with --check-contract.
    @cause(
        "the contract names a step whose mask marks more tokens than it has embeddings",
        live="optional",
    )
    def mask_of_another_step(self, logs: Logs) -> Finding:
        steps = logs.search("mask-rows", r"(\d+) tokens are marked for (\d+) rows")
        beyond = [step[0] for step in steps if int(step[1]) > int(step[2])]
        text = f"{len(steps)} steps whose mask does not fit its rows"
        return Finding.of(bool(beyond), "; ".join([text, *beyond[:1]]))

    works_after = (
        common.answered(*TOGETHER, mini.AFTER),
        common.not_logged("contract-violated"),
    )


SCENARIO = with_variants(GhostKeyLru(), PadValueKey(), KvBudget(), ReusedMask())
