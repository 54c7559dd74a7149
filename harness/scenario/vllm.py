"""What scenarios of vLLM share: its two multimodal caches, and how they part ways."""

import re
from collections.abc import Callable, Collection, Sequence

from mmrepro.engines import Engine
from mmrepro.engines.vllm import VllmEngine
from mmrepro.failure.signature import Condition, Finding, Outcome, Truth
from mmrepro.failure.signature.checks import short_hash
from mmrepro.failure.signature.views import (
    Logs,
    Metrics,
    Processes,
    Requests,
    core_processes,
)
from mmrepro.probes.data import LogLine, LogsData, MetricsData, StacksData
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import (
    Check,
    Factor,
    LiveFacts,
    RunFacts,
    cure,
    issue,
    precondition,
    pull,
    quote,
)
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence import Evidence, Missing
from mmrepro.traffic.pictures import Picture
from packaging.version import Version

CACHE_GB = 0.02
"""Small, so that a dozen images fill it. Both caches get it; the failure does not
depend on it."""

TEXT_MARGIN = 150
"""Tokens that the long text leaves free: enough for the chat template, too few for an
image."""

TOO_LONG, AGAIN = "image X, too long", "image X again, short"
"""The request that is refused, and the one after it with the same image."""
SHORT = "image X, short"
"""In the place of the refused one, where the factor ``refusal`` is flipped."""
_LENGTH = re.compile(
    r"length \(?(\d+)\b.*?maximum (?:model|context) length \D{0,4}(\d+)"
)
"""Tokens of the prompt, and those that the model takes: the refusal's text, 0.11.0 to
0.32.0."""

_HANDLER = Version("0.14.0")
"""First release whose EngineCore survives the assertion (_handle_request_preproc_error
in v1/engine/core.py; absent in 0.13.0)."""

ASSERTION, DRIFT = "cached-item-assertion", "cache-drift"
ARGUMENTS = "engine-args"
"""The options that differ from their defaults, as the API server has parsed them."""
_MM_HASH = re.compile(r"mm_hash(?:es)?=\[?'([0-9a-f]{16,128})'")

# ------------------------------------------------------- what the engine says of itself

CONFIG = "engine-config"
CONFIG_LINES = {CONFIG: r"Initializing a V\d LLM engine \(v\S+ with config: "}
"""For ``log_patterns``: EngineCore's line about its configuration
(v1/engine/core.py)."""
CACHE_CONFIG = "vllm:cache_config_info"
BATCH, GRAPH = "batch", "graph-batch"
BATCH_LINES = {
    BATCH: r"Running batch with cudagraph_mode: \w+",
    GRAPH: r"Running batch with cudagraph_mode: (?!NONE\b)\w+",
}
"""For ``log_patterns``: the model runner's line of each batch (DEBUG; 0.12.0 and 0.14.0
have it in v1/worker/gpu_model_runner.py, 0.11.0 does not)."""


def logged_config(logs: Logs, field: str) -> str:
    """Value of ``field`` in the configuration that EngineCore logged when it started.

    Raises Missing: no such line, no such field in what was kept of it, or several
    values."""
    pattern = rf"(?:, | config: ){re.escape(field)}=([^,]*),"
    told = [match[1] for match in logs.search(CONFIG, pattern)]
    return _only(told, f"EngineCore did not log its {field}")


def cache_config(evidence: Evidence, field: str) -> str:
    """Value of ``field`` of the cache's configuration, as the engine's metrics have
    it."""
    told = [
        sample.labels[field]
        for _, data in evidence.results(MetricsData)
        for sample in data.samples
        if sample.name == CACHE_CONFIG and field in sample.labels
    ]
    return _only(
        told, f"{evidence.why_missing('metrics')}: no {field} in {CACHE_CONFIG}"
    )


def _only(told: Sequence[str], otherwise: str) -> str:
    if len(set(told)) == 1:
        return told[0]
    raise Missing(
        f"several values: {', '.join(sorted(set(told)))}" if told else otherwise
    )


def config_says(field: str, value: str) -> Check:
    """EngineCore logged that its configuration has this value; needs
    ``CONFIG_LINES``."""

    def says(logs: Logs) -> Finding:
        told = logged_config(logs, field)
        return Finding.of(told == value, f"EngineCore runs with {field}={told}")

    return says


def cache_says(field: str, value: str) -> Check:
    def says(evidence: Evidence) -> Finding:
        told = cache_config(evidence, field)
        return Finding.of(told == value, f"the engine's metrics say {field}={told}")

    return says


def graphs_ran(logs: Logs) -> Finding:
    """Batches were run by a captured graph; needs ``BATCH_LINES``."""
    batches, by_graph = logs.count(BATCH), logs.count(GRAPH)
    if not batches:
        raise Missing("the engine logged no batch")
    return Finding.of(by_graph > 0, f"{by_graph} batches run by a graph, of {batches}")


def no_graph_ran(logs: Logs) -> Finding:
    ran = graphs_ran(logs)
    return Finding.of(ran.truth is Truth.NOT_MET, ran.observed)


# ------------------------------------------------------------ its two multimodal caches

MM_CACHE_ISSUE = issue(
    "vllm#43941",
    "Infinite loop in EngineCore during multimodal cache eviction after 400/500 "
    "sequence with reused image",
    "the report; its steps 1 and 2 are this desynchronisation",
)
LRU_FIX = pull(
    "vllm#43595",
    "fix: prevent MM cache hang from stale LRU order keys",
    release="0.24.0",
)
DISABLE_CACHE = cure(
    "disable-mm-cache",
    "--mm-processor-cache-gb 0",
    "turn the multimodal processor cache off (costs re-processing of repeated images)",
)


# -------------------------------------------------------------- did a flip take effect?


def parsed_as(option: str, value: str) -> Callable[[Logs], Finding]:
    """Each time that the API server logs how it parsed ``option``, it is ``value``."""

    def parsed(logs: Logs) -> Finding:
        said = [m[1] for m in logs.search(ARGUMENTS, rf"'{option}': ([^,}}]+)")]
        if not said:
            return Finding.unknown(f"the log does not tell {option}")
        return Finding.of(
            set(said) == {value}, f"the API server logs {option} {', '.join(said)}"
        )

    return parsed


def _not_refused(requests: Requests) -> Finding:
    """The first request with the image was answered, and none was too long."""
    sent, refused = requests.first(SHORT), requests.evidence.labelled(TOO_LONG)
    return Finding.of(sent.answered and not refused, f"{SHORT}: {sent.reply}")


def cache_unused(metrics: Metrics, requests: Requests, engine: Engine) -> Finding:
    """Images were answered, and none of them was looked up."""
    asked = metrics.readings(
        engine.metrics["mm_cache_queries"], "gate", "check", least=1
    )
    images = sum(
        len(r.images) for r in requests.within("gate", "trigger") if r.answered
    )
    if not images:
        return Finding.unknown("no image was answered")
    return Finding.of(
        not any(asked), f"{images} images answered, {asked[-1]:g} looked up"
    )


def _cache_off(metrics: Metrics, requests: Requests, engine: Engine) -> Finding:
    """The same; of a release that does not count lookups (0.11.0), what the API server
    logs."""
    try:
        return cache_unused(metrics, requests, engine)
    except Missing:
        said = Logs(metrics.evidence).search(
            ARGUMENTS, r"'mm_processor_cache_gb': ([\d.]+)"
        )
        values = [float(match[1]) for match in said]
        if not values:
            raise
        return Finding.of(
            not any(values), f"mm_processor_cache_gb is parsed as {values[-1]:g}"
        )


PREFIX_CACHING = Factor(
    "prefix-caching",
    "whether equal beginnings of prompts share their KV cache",
    "--enable-prefix-caching",
    server_args=("--no-enable-prefix-caching",),
    claim="another cache that knows images by their hash",
    took_effect=cache_says("enable_prefix_caching", "False"),
)
REFUSAL = Factor(
    "refusal",
    "whether the first request with the image is refused for its length",
    "first request too long",
    "first request short",
    claim="vllm#43941: it takes a refused request",
    took_effect=_not_refused,
)
MM_CACHE = Factor(
    "mm-cache",
    "whether there is a multimodal processor cache at all",
    f"--mm-processor-cache-gb {CACHE_GB}",
    server_args=DISABLE_CACHE.server_args,
    claim="vllm#43941: turning it off avoids it",
    took_effect=cache_unused,
)
RECEIVER = quote(
    "vllm/multimodal/cache.py",
    "MultiModalReceiverCache.get_and_update_item",
    "EngineCore's side: no data came with the hash, and the hash is not cached here",
    "assert mm_item is not None",
)


# -------------------------------------------------------------- did the trigger arrive?


def refused_for_length(requests: Requests) -> Finding:
    sent = requests.first(TOO_LONG)
    lengths = _LENGTH.search(sent.error)
    too_long = lengths is not None and int(lengths[1]) > int(lengths[2])
    refused = sent.status == 400 and too_long
    return Finding.of(refused, f"{TOO_LONG}: {sent.status} {sent.error[:120]}")


def cache_is_used(metrics: Metrics, engine: Engine) -> Finding:
    """Of the gate's images one was sent again: the API server counts that it knew
    it."""
    hits = metrics.readings(engine.metrics["mm_cache_hits"], "gate", least=1)[-1]
    return Finding.of(hits >= 1, f"hits in the gate, which repeats an image: {hits:g}")


REFUSED = precondition(
    "the first request with image X is refused with HTTP 400 for its length",
    refused_for_length,
    removed_by=(REFUSAL.name,),
)
CACHE_ON = precondition(
    "the API server knows a repeated image from its multimodal cache",
    cache_is_used,
    id="cache-on",
    removed_by=(DISABLE_CACHE.name, MM_CACHE.name),
)
_CACHE_OFF = precondition(
    (
        "the mitigation took effect: of the images answered none is looked up in the "
        "multimodal cache"
    ),
    _cache_off,
    id="cache-off",
)


class MmCacheScenario(Scenario):
    """Server, gate and older releases of the scenarios in which the two caches part
    ways."""

    server = (
        f"--max-num-seqs 8 --enable-prefix-caching --mm-processor-cache-gb {CACHE_GB} "
        """--limit-mm-per-prompt '{"image":4,"video":0}' --enable-log-requests"""
    )
    log_patterns = {
        ASSERTION: r"AssertionError: Expected a cached item for mm_hash=",
        DRIFT: r"Multi-modal cache miss for request .*P0/P1 cache drift",
        ARGUMENTS: r"non-default args: ",
        "ghost_key_patch-loaded": r"mmrepro: LRUCache\.\w+ is patched",
    }
    """What EngineCore says of a promised image that it does not hold: an assertion up
    to 0.24.0 at least, by 0.32.0 a warning (v1/engine/core.py:2011), after which the
    API server forgets it."""
    key_log_patterns = (ASSERTION, DRIFT)

    def expected(
        self, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        if Version(release) >= _HANDLER or DISABLE_CACHE.name in mitigations:
            return super().expected(release, mitigations)
        return Outcome.DIFFERENT_FAILURE, (
            f"before {_HANDLER} the assertion ends the thread that receives requests: "
            "the server hangs at once, without an eviction"
        )

    def conditions(self, facts: RunFacts) -> list[Condition]:
        """Where the cache is to be off, that it is: only then is nothing to be found in
        it."""
        cured = [_CACHE_OFF] if DISABLE_CACHE.name in facts.mitigations else []
        return [*(self._bound(one, facts) for one in cured), *super().conditions(facts)]

    def exposure(self, facts: LiveFacts) -> Finding:
        if facts.option("--mm-processor-cache-gb") in ("0", "0.0"):
            return Finding.of(
                False, "the multimodal processor cache is off on this server"
            )
        return super().exposure(facts)

    async def gate(self, drive: Drive) -> None:
        """A repeated image is answered from the cache as well."""
        await super().gate(drive)
        first = drive.picture("gate-1", 11)
        await drive.chat("gate: image 1 again", images=[first])
        await drive.chat("gate: image 1, streamed", images=[first], stream=True)

    def gate_check(self, evidence: Evidence) -> Finding:
        """The cached image gives one and the same answer each time (greedy, fixed
        weights).

        The first, uncached answer is not compared: with prefix caching the later ones
        compute less of the prompt at once, and rounding may differ between the two
        ways."""
        answered = super().gate_check(evidence)
        if answered.truth is not Truth.MET:
            return answered
        labels = ("gate: image 1 again", "gate: image 1, streamed")
        texts = {r.text for r in evidence.requests_in("gate") if r.label in labels}
        if len(texts) != 1:
            return Finding.of(
                False, f"image 1 was answered in {len(texts)} ways: {sorted(texts)}"
            )
        return Finding.of(
            True, "every request answered; the cached image alike, also streamed"
        )


async def desynchronise(drive: Drive, image: Picture) -> None:
    """A request refused for its length with ``image``, then a short one with it.

    With the factor ``refusal`` flipped, the first one is short as well.
    """
    if REFUSAL.name in drive.flips:
        await drive.ask(SHORT, image=image)
    else:
        text = await drive.text_of_tokens(drive.max_model_len - TEXT_MARGIN)
        await drive.ask(TOO_LONG, text=text, image=image)
    await drive.ask(AGAIN, image=image)


def image_fails(requests: Requests) -> Finding:
    return Finding.of(requests.first(AGAIN).status == 500, statuses(requests))


def image_survives(requests: Requests) -> Finding:
    """The requests with the image are answered; one that is not in time tells
    nothing."""
    again = requests.all(AGAIN)
    if any(r.status != 500 and not r.answered for r in again):
        return Finding.unknown(statuses(requests))
    return Finding.of(all(r.answered for r in again), statuses(requests))


def statuses(requests: Requests) -> str:
    told = (str(r.status or "no answer") for r in requests.all(AGAIN))
    return f"image X: {', '.join(told)}"


def missing_item(logs: Logs, patterns: Sequence[str] = (ASSERTION, DRIFT)) -> Finding:
    """EngineCore logged that the cached item which it was promised is not there.

    Of a log that knows the core that runs now by its process id, its lines alone count;
    in a container the ids are others."""
    found = {name: (logs.count(name), logs.lines(name)) for name in patterns}
    read = (data for _, data in logs.evidence.results(LogsData))
    known = {
        word
        for data in read
        for process in data.last_by_process
        for word in process.split()
    }
    uses = core_processes(logs.evidence, VllmEngine.core_role, "check")
    if own := known & {f"pid={use.pid}" for use in uses}:
        kept = {name: of_processes(lines, own) for name, (_, lines) in found.items()}
        found = {name: (len(lines), lines) for name, lines in kept.items()}
    return _missed([(name, *one) for name, one in found.items()])


def of_processes(lines: Sequence[LogLine], marks: Collection[str]) -> list[LogLine]:
    return [line for line in lines if set(line.process.split()) & set(marks)]


def missed_in_run(logs: Logs, processes: Processes, engine: Engine) -> Finding:
    """The same, of the EngineCore that was measured: no line of another process
    counts."""
    own = lines_of_core(logs, processes, engine)
    return _missed([(name, len(lines), lines) for name, lines in own.items()])


def asserted_in_run(logs: Logs, processes: Processes, engine: Engine) -> Finding:
    own = lines_of_core(logs, processes, engine)[ASSERTION]
    return _missed([(ASSERTION, len(own), own)])


def lines_of_core(
    logs: Logs, processes: Processes, engine: Engine
) -> dict[str, list[LogLine]]:
    """Of each pattern the lines that this run's EngineCore logged, by its process
    id."""
    logged = {name: logs.lines(name) for name in (ASSERTION, DRIFT)}
    marks = {f"pid={use.pid}" for use in processes.of(engine.core_role)}
    return {name: of_processes(lines, marks) for name, lines in logged.items()}


def _missed(found: Sequence[tuple[str, int, Sequence[LogLine]]]) -> Finding:
    for pattern, count, lines in found:
        if count:
            where = (
                f"{lines[0].process or 'a process without a name'}, first at "
                f"{lines[0].time}"
            )
            named = ", ".join(sorted({short_hash(h) for h in hashes_in(lines)}))
            return Finding.of(True, f"{count} × {pattern} in {where}: mm_hash {named}")
    return Finding.of(False, "the log holds no line that says so")


def cached_item_assertion(logs: Logs) -> Finding:
    return missing_item(logs, (ASSERTION,))


def missing_hashes(
    logs: Logs, patterns: Sequence[str] = (ASSERTION, DRIFT)
) -> list[str]:
    return hashes_in([line for name in patterns for line in logs.lines(name)])


def hashes_in(lines: Sequence[LogLine]) -> list[str]:
    matches = (_MM_HASH.search(line.text) for line in lines)
    return [match[1] for match in matches if match]


# ------------------------------------------------------------------ the encoder's cache

ENCODER_CACHE, STEP = "encoder-cache-size", "step-budget"
ENCODER_CACHE_LINES = {
    # 0.14.0 does not say it on a CPU
    ENCODER_CACHE: r"Encoder cache will be initialized with a budget of (\d+)",
    STEP: r"max_num_batched_tokens=(\d+)",
    ARGUMENTS: r"non-default args: ",
}
_MIN_LOCALS = 2


def _logged(evidence: Evidence, name: str) -> list[int]:
    try:
        return [
            int(m[1]) for m in Logs(evidence).search(name, ENCODER_CACHE_LINES[name])
        ]
    except Missing:
        return []


def step_budgets(evidence: Evidence) -> list[int]:
    """Tokens of a step, which size the encoder's cache where no image of the model's
    own is larger (v1/core/encoder_cache_manager.py): none, where the server is told of
    larger ones."""
    try:
        lines = Logs(evidence).lines(ARGUMENTS)
    except Missing:
        return []
    if not lines or any("mm_processor_kwargs" in line.text for line in lines):
        return []
    return _logged(evidence, STEP)


def encoder_cache_sizes(evidence: Evidence) -> list[int]:
    """In tokens: as the log tells it, else the scheduler's budget in each stack that
    shows it."""
    samples = [s for _, d in evidence.results(StacksData, "check") for s in d.samples]
    stacks = StacksData(samples=samples)
    budgets = stacks.numbers("encoder_compute_budget", frame="schedule")
    return _logged(evidence, ENCODER_CACHE) or budgets


def item_above_the_budget(stacks: StacksData) -> Finding:
    """A full cache and an image that fits hang alike: of the item itself only the frame
    that asks for its room tells, where samples catch it."""
    caller = "_try_schedule_encoder_inputs"
    frames = [thread.frame(caller).locals for thread in stacks.threads(caller)]
    shown = [
        (f.get("num_encoder_tokens", ""), f.get("encoder_compute_budget", ""))
        for f in frames
    ]
    seen = [(int(i), int(b)) for i, b in shown if i.isdigit() and b.isdigit()]
    text = ", ".join(f"{item} tokens of {budget}" for item, budget in seen)
    if len(seen) < _MIN_LOCALS:  # one may be torn
        return Finding.unknown(
            f"{len(seen)} samples caught the image's size {text}".rstrip()
        )
    above = sum(item > budget for item, budget in seen)
    return Finding.of(above > len(seen) // 2, text)


# ------------------------------------------------------------------ the KV cache

BY_REASON = "vllm:num_requests_waiting_by_reason"


def gate_of_completions(evidence: Evidence) -> Finding:
    """For a ``gate_check``: a completion's record has no tokens, for it was sent as it
    is."""
    sent = evidence.requests_in("gate")
    bad = [r.label for r in sent if r.status != 200]
    told = f"{len(sent)} requests; not answered: {', '.join(bad) or 'none'}"
    return Finding.of(len(sent) > 0 and not bad, told)


def waiting_alone(metrics: Metrics, engine: Engine) -> Finding:
    """The scheduler counts requests as waiting and none as running, in two readings."""
    running, waiting = (
        metrics.readings(engine.metrics[name]) for name in ("running", "waiting")
    )
    return Finding.of(
        all(waiting) and not any(running), f"waiting {waiting}, running {running}"
    )


def waiting_for_capacity(evidence: Evidence) -> Finding:
    """In each reading: requests wait by reason capacity, none runs, the KV cache is
    empty.

    The counts are by reason since 0.14.0 at least (v1/metrics/loggers.py of 0.23.0).
    """
    readings = [data for _, data in evidence.results(MetricsData, "check")]
    told = []
    for data in readings:
        waiting = [
            s.value or 0.0
            for s in data.samples
            if s.name == BY_REASON and s.labels.get("reason") == "capacity"
        ]
        if not waiting:
            raise Missing(f"the server does not tell {BY_REASON}")
        running, usage = (
            data.total(name)
            for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc")
        )
        told.append((sum(waiting), running, usage))
    if len(told) < 2:
        raise Missing(f"{len(told)} readings of {BY_REASON}")
    text = "; ".join(
        f"waiting by capacity {w:g}, running {r}, KV use {u}" for w, r, u in told
    )
    return Finding.of(all(w >= 1 and r == 0 and u == 0 for w, r, u in told), text)
