"""vLLM: adapters that are loaded while the server runs, and answers with another one's
weights."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from mmrepro.base.machine import cache_root
from mmrepro.engines.models import MODELS_DIR, with_folders
from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    LiveFacts,
    Measured,
    Missing,
    Reproducers,
    RequestRecord,
    Requests,
    Scenario,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    answered,
    cause,
    claim,
    cure,
    endpoints_green,
    issue,
    lmdeploy,
    precondition,
    pull,
    quote,
    row,
    symptom,
    unmitigated,
    upgrade,
)
from mmrepro.scenario.more import TINY, Condition
from mmrepro.scenario.silent import as_in_a_run
from mmrepro.scenarios.lora_no_adapter import same, tokens

A, B, SWAPPED, THIRD = "lora-a", "lora-b", "lora-of-the-day", "lora-third"
REPRODUCER = "lora_runtime.py"
_PROMPT, _FOLDER = "what is this, and what was it before? " * 4, "/v1/{}_lora_adapter"


def _differs(mine: str, other: str) -> Callable[[Requests], Finding]:
    """A check: the two requests got whole answers, and not the same tokens."""

    def check(requests: Requests) -> Finding:
        alike = same(mine, other)(requests)
        whole = all(requests.first(label).answered for label in (mine, other))
        return Finding.of(whole and alike.truth is Truth.NOT_MET, alike.observed)

    return check


class LoadedWhileItRuns(Scenario):
    """What both have: two adapters from the start, and one that is loaded later."""

    model = TINY["qwen3-text"]
    server = (
        "--dtype=float32 --enable-lora --max-loras=4 --max-cpu-loras=8 "
        "--max-lora-rank=8 --max-num-seqs=8 --enable-prefix-caching "
        f"--enable-prompt-tokens-details --lora-modules {A}={{tiny:{A}}} "
        f"{B}={{tiny:{B}}}"
    )
    server_env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.CRITICAL
    reproducers = (REPRODUCER,)
    needs = ("--enable-lora",)

    async def ask(
        self, drive: Drive, label: str, model: str, **fields: Any
    ) -> RequestRecord:
        return await lmdeploy.complete(
            drive,
            label,
            _PROMPT,
            12,
            logprobs=3,
            model=model,
            skip_special_tokens=False,
            **fields,
        )

    async def change(self, drive: Drive, what: str, name: str, of: str = "") -> None:
        """Load or unload an adapter, by the server's own endpoint."""
        body = {"lora_name": name}
        if of:
            body["lora_path"] = with_folders(
                f"{{tiny:{of}}}", cache_root() / MODELS_DIR
            )
        await drive.traffic.raw(
            f"{what} {name}",
            path=_FOLDER.format(what),
            body=json.dumps(body).encode(),
            deadline_s=drive.deadline_s,
        )

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return as_in_a_run(self, facts)


OF_A, OF_B, AGAIN = f"gate: {A}", f"gate: {B}", f"gate: {B} again"
FIRST, RELOADED = f"{SWAPPED}, loaded of {A}", f"{SWAPPED}, loaded of {B}"
SALTED, AFTER = f"{RELOADED}, with a salt", f"{B} afterwards"
_RELOAD = issue(
    "vllm#42125",
    "Runtime LoRA same-name reload can reuse stale prefix-cache blocks from previous "
    "adapter version",
)
_SAME_NAME = issue(
    "vllm#30931",
    "Prefix Cache Corruption with LoRA with the same name but different id",
)


class LoraReload(LoadedWhileItRuns):
    """An adapter that is replaced under its name answers from the KV cache of the one
    before.

    What: An adapter is unloaded, and another one is loaded under its name. A prompt
    that was asked before gets an answer that is neither adapter's, with HTTP 200 and no
    word in the log. The same prompt with a `cache_salt` gets the new adapter's answer.

    Why: Blocks of the prefix cache are found by the hash of their tokens and of the
    adapter's name. The name stays, so the new adapter goes on from keys and values that
    the old one's weights have made."""

    name, release, affected = "lora-reload", "0.25.0", ">=0.12.0,<0.32.0"
    # Run: 0.25.0, and 0.32.0, which hashes the adapter's path as well. By source
    # (v1/core/kv_cache_utils.py): 0.12.0 to 0.25.0 hash the name alone, 0.11.0 a number
    # that is new with each load; 0.26.0 to 0.31.0 were not looked at. A path whose
    # weights are replaced in place is as before in 0.33.0, with a warning.
    upstream = Upstream(
        UpstreamState.OPEN,
        _RELOAD,
        "2026-11-26",
        note="closed as stale; by runs it is gone in "
        "0.32.0 where the path is another one",
    )
    references = (_RELOAD, _SAME_NAME)
    sources = (
        quote(
            "vllm/v1/core/kv_cache_utils.py",
            "_gen_lora_extra_hash_keys",
            "of an adapter its name alone is in the hash",
            "lora_request.lora_name",
        ),
    )
    mitigations = (
        cure("no-prefix-caching", "--no-enable-prefix-caching", "no prefix cache"),
        upgrade(
            "0.32.0", "upgrade to 0.32.0, and load changed weights from another path"
        ),
    )

    async def gate(self, drive: Drive) -> None:
        for label, model in ((OF_A, A), (OF_B, B), (AGAIN, B)):
            await self.ask(drive, label, model)

    async def trigger(self, drive: Drive) -> None:
        await self.change(drive, "load", SWAPPED, A)
        await self.ask(drive, FIRST, SWAPPED)
        await self.change(drive, "unload", SWAPPED)
        await self.change(drive, "load", SWAPPED, B)
        await self.ask(drive, RELOADED, SWAPPED)
        await self.ask(drive, SALTED, SWAPPED, cache_salt="another")
        await self.ask(drive, AFTER, B)

    @precondition("one adapter was replaced by the other under its name")
    def replaced(self, requests: Requests) -> Finding:
        """And the first one had answered the prompt."""
        changes = requests.all(f"load {SWAPPED}") + requests.all(f"unload {SWAPPED}")
        first = same(FIRST, OF_A)(requests)
        statuses = [change.status for change in changes]
        observed = f"{', '.join(map(str, statuses))}; {first.observed}"
        met = statuses == [200, 200, 200] and first.truth is Truth.MET
        return Finding.of(met, observed)

    @precondition(
        "the two answer differently, and a prompt from the cache is answered alike"
    )
    def tell_apart(self, requests: Requests) -> Finding:
        of_a, of_b = tokens(requests, OF_A), tokens(requests, OF_B)
        again = tokens(requests, AGAIN)
        return Finding.of(of_a != of_b == again, f"{A} {of_a[:4]}, {B} {of_b[:4]}")

    symptoms = (
        symptom(
            "under the old name the new adapter does not give its answer",
            _differs(RELOADED, OF_B),
            id="stale-answer",
        ),
        symptom(
            "with a salt, which keeps it from the cache, it does",
            same(SALTED, OF_B),
            id="salted",
            abnormal=False,
        ),
        symptom(
            "under its own name it gives its answer all the time",
            same(AFTER, OF_B),
            id="own-name",
            abnormal=False,
        ),
        endpoints_green(),
    )

    @cause(
        "the prompt's tokens came from the prefix cache, and the salted one's did not"
    )
    def from_the_cache(self, requests: Requests) -> Finding:
        told, stale, salted = (
            requests.first(n).cached_tokens for n in (AGAIN, RELOADED, SALTED)
        )
        if not told:
            raise Missing("the server tells of no prompt that it came from the cache")
        stale, salted = stale or 0, salted or 0
        return Finding.of(stale > 0 == salted, f"{stale} of it; {salted} with a salt")

    @cause(
        "by the engine's own function an adapter of this name and another path is the "
        "same"
    )
    def hashed_by_name(self, reproducers: Reproducers) -> Finding:
        facts = reproducers.facts(REPRODUCER)
        met = facts["another_path_same_key"] and not facts["another_name_same_key"]
        return Finding.of(bool(met), f"hashed: {facts['key']}")

    works_after = (
        answered(RELOADED, SALTED, AFTER),
        same(RELOADED, OF_B),
        same(AFTER, OF_B),
    )
    rows = (
        row("under the old name", "stale-answer", "the new adapter's answer"),
        row(
            "under the old name, with a salt",
            "salted",
            "the new adapter's",
            abnormal_if=False,
        ),
    )
    said = partial(
        claim, given=("replaced", "tell-apart", unmitigated), refutable_on=affected
    )
    claims = (
        said(
            "stale",
            "a reload under the same name reuses prefix-cache blocks of the adapter "
            "before",
            by=("stale-answer", "from-the-cache"),
        ),
        said(
            "key",
            "block hashes have the adapter's name and nothing else of it",
            _SAME_NAME,
            by="hashed-by-name",
        ),
        said("salt", "a cache_salt keeps them apart", by="salted"),
    )


LORA_RELOAD = LoraReload()

_LONG_TOKENS, _BEFORE = 16, 2
LONG = {A: f"a long answer of {A}", B: f"a long answer of {B}"}
ALONE = {name: f"gate: {label}, both at once" for name, label in LONG.items()}
LATER = {A: f"{A} afterwards, again", B: f"{B} afterwards, again"}
_FLIGHT = issue(
    "vllm#47724",
    "After a runtime add_lora(), one user's in-flight LoRA request is silently served "
    "with another user's adapter",
)
_FLIGHT_FIX = pull(
    "vllm#47725", "Refresh punica metadata when LoRA slots are reassigned"
)


def _parted(answer: list[str], other: list[str]) -> int:
    """The first place at which two answers differ; ``_LONG_TOKENS``: they do not."""
    for place, (token, other_token) in enumerate(zip(answer, other, strict=False)):
        if token != other_token:
            return place
    return _LONG_TOKENS


def _as_at_first(labels: dict[str, str]) -> Callable[[Requests], Finding]:
    """A check: both adapters' answers are those of the gate, whole."""

    def check(requests: Requests) -> Finding:
        alike = True
        observed: list[str] = []
        for name, label in labels.items():
            place = _parted(tokens(requests, label), tokens(requests, ALONE[name]))
            alike = alike and place == _LONG_TOKENS
            observed.append(f"{name}: {place} tokens alike")
        return Finding.of(alike, ", ".join(observed))

    return check


class LoraAdded(LoadedWhileItRuns):
    """An adapter that is loaded while others answer has them go on with the wrong
    weights.

    What: Two adapters answer, and the server has two slots. A third one is loaded. From
    there on the answers that are under way are not those of their adapters, with HTTP
    200 and no word in the log. Asked again, both adapters give their own answers.

    Why: The worker remembers the batch's mapping of tokens to adapters, and works out
    which slot each one has only where that mapping has changed. A load moves adapters
    between slots, and the mapping, by adapters, is the same: tokens keep the numbers of
    the slots as they were."""

    name, release, affected = "lora-added", "0.25.0", ">=0.11.0,<0.32.0"
    # Run: 0.25.0, and 0.32.0, which has the fix. By source (lora/models.py, by 0.14.0
    # lora/model_manager.py): 0.11.0 to 0.25.0; 0.26.0 to 0.31.0 were not looked at.
    upstream = Upstream(
        UpstreamState.FIXED, _FLIGHT_FIX, "2026-11-26", "0.32.0", note="by runs"
    )
    references = (_FLIGHT, _FLIGHT_FIX)
    server = LoadedWhileItRuns.server.replace("--max-loras=4", "--max-loras=2")
    sources = (
        quote(
            "vllm/lora/model_manager.py",
            "LoRAModelManager.set_adapter_mapping",
            "nothing is done where the mapping by adapters is as before",
            "self._last_mapping != mapping",
        ),
    )
    mitigations = (
        cure(
            "spare-slots",
            "--max-loras=4",
            "slots for all adapters: no load moves another one",
        ),
        upgrade("0.32.0", "upgrade to 0.32.0, which has vllm#47725"),
    )

    async def both(self, drive: Drive, labels: dict[str, str], third: str = "") -> None:
        """Both adapters answer at once; with ``third``, that is loaded in the middle of
        it."""
        pieces: dict[str, asyncio.Queue[int]] = {}
        answers: dict[str, asyncio.Task[Any]] = {}
        for name, label in labels.items():
            pieces[name] = asyncio.Queue()
            answer = lmdeploy.complete(
                drive,
                label,
                "go on",
                _LONG_TOKENS,
                stream=True,
                logprobs=3,
                model=name,
                skip_special_tokens=False,
                stream_options={"include_usage": True},
                piece=pieces[name].put_nowait,
            )
            answers[name] = asyncio.ensure_future(answer)
        drive.pending.extend(answers.values())

        if third:
            least = _LONG_TOKENS
            for name in labels:
                reached = await lmdeploy.reached(_BEFORE, pieces[name], answers[name])
                least = min(least, reached)
            drive.fact("pieces_before", least)
            await self.change(drive, "load", third, B)
        await asyncio.gather(*answers.values())

    async def gate(self, drive: Drive) -> None:
        await self.both(drive, ALONE)

    async def trigger(self, drive: Drive) -> None:
        await self.both(drive, LONG, THIRD)
        await self.both(drive, LATER)

    @precondition("a third adapter was loaded while both answered")
    def loaded(self, requests: Requests, seen: Measured) -> Finding:
        load, before = requests.first(f"load {THIRD}"), seen.number("pieces_before")
        ended = load.sent.mono + load.latency_s
        under_way = True
        for label in LONG.values():
            sent = requests.first(label)
            later = ended < sent.sent.mono + sent.latency_s
            under_way = under_way and sent.answered and later
        met = load.status == 200 and under_way and before >= _BEFORE
        return Finding.of(
            met, f"after {before:g} pieces of {_LONG_TOKENS}: {load.reply}"
        )

    @precondition("the two answer differently, and alike each time")
    def tell_apart(self, requests: Requests) -> Finding:
        of_a, of_b = tokens(requests, ALONE[A]), tokens(requests, ALONE[B])
        alike = all(
            tokens(requests, LATER[name]) == tokens(requests, ALONE[name])
            for name in LATER
        )
        return Finding.of(alike and of_a != of_b, f"{A} {of_a[:4]}, {B} {of_b[:4]}")

    @symptom("from the load on an answer that was under way is not its adapter's")
    def answers_turn(self, requests: Requests, seen: Measured) -> Finding:
        turned: dict[str, int] = {}
        for name, label in LONG.items():
            place = _parted(tokens(requests, label), tokens(requests, ALONE[name]))
            if place < _LONG_TOKENS:
                turned[name] = place
        if not turned:
            return Finding.of(False, "none")
        observed = ", ".join(f"{name} from token {at}" for name, at in turned.items())
        since_load = min(turned.values()) >= seen.number("pieces_before")
        return Finding.of(since_load, observed)

    symptoms = (
        symptom(
            "asked again, both give their own answers",
            _as_at_first(LATER),
            id="own-again",
            abnormal=False,
        ),
        endpoints_green(),
    )

    @cause("by the engine's own function a move between slots is not noticed")
    def slots_remembered(self, reproducers: Reproducers) -> Finding:
        facts = reproducers.facts(REPRODUCER)
        met = facts["refreshed_at_first"] == 1 and facts["refreshed_after_a_move"] == 0
        text = (
            "worked out {refreshed_at_first} × at first, "
            "{refreshed_after_a_move} × after a move"
        )
        return Finding.of(met, text.format_map(facts))

    works_after = (answered(*LONG.values()), _as_at_first(LONG))
    rows = (
        row(
            "answers under way as an adapter is loaded",
            "answers-turn",
            "their adapters'",
        ),
        row("the same, asked again", "own-again", "their adapters'", abnormal_if=False),
    )
    said = partial(
        claim, given=("loaded", "tell-apart", unmitigated), refutable_on=affected
    )
    claims = (
        said(
            "swapped",
            "requests in flight go on with another adapter's weights, silently",
            by=("answers-turn", "slots-remembered"),
        ),
        said("passes", "later requests to the same adapters are right", by="own-again"),
        claim(
            "fixed",
            "with it the answers are their adapters'",
            _FLIGHT_FIX,
            releases=">=0.32.0",
            by=_as_at_first(LONG),
            given=("loaded", "tell-apart"),
        ),
    )


LORA_ADDED = LoraAdded()
