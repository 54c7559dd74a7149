"""What scenarios of vLLM share: its two multimodal caches, and how they part ways."""

import re
from collections.abc import Callable, Collection, Sequence

from mmrepro.engines import Engine
from mmrepro.engines.vllm import VllmEngine
from mmrepro.failure.signature import (
    Condition,
    Finding,
    Logs,
    Metrics,
    Outcome,
    Processes,
    Requests,
    Truth,
    core_processes,
)
from mmrepro.failure.signature.checks import short_hash
from mmrepro.probes import LogLine, LogsData, MetricsData, StackSample, StacksData
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
from mmrepro.traffic import Drive, Picture
from mmrepro.traffic.evidence import Evidence, Missing
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

ASSERTION, _DRIFT = "cached-item-assertion", "cache-drift"
ARGUMENTS = "engine-args"
"""The options that differ from their defaults, as the API server has parsed them."""
_MM_HASH = re.compile(r"mm_hash(?:es)?=\[?'([0-9a-f]{16,128})'")

# ------------------------------------------------------- what the engine says of itself

CONFIG = "engine-config"
CONFIG_LINES = {CONFIG: r"Initializing a V\d LLM engine \(v\S+ with config: "}
"""For ``log_patterns``: EngineCore's line about its configuration
(v1/engine/core.py)."""
CACHE_CONFIG = "vllm:cache_config_info"
_BATCH, _GRAPH = "batch", "graph-batch"
BATCH_LINES = {
    _BATCH: r"Running batch with cudagraph_mode: \w+",
    _GRAPH: r"Running batch with cudagraph_mode: (?!NONE\b)\w+",
}
"""For ``log_patterns``: the model runner's line of each batch (DEBUG; 0.12.0 and 0.14.0
have it in v1/worker/gpu_model_runner.py, 0.11.0 does not)."""


def logged_config(logs: Logs, field: str) -> str:
    """Value of ``field`` in the configuration that EngineCore logged when it started.

    Raises Missing: no such line, no such field in what was kept of it, or several
    values."""
    pattern = rf"(?:, | config: ){re.escape(field)}=([^,]*),"
    values = [match[1] for match in logs.search(CONFIG, pattern)]
    return _only(values, f"EngineCore did not log its {field}")


def cache_config(evidence: Evidence, field: str) -> str:
    """Value of ``field`` of the cache's configuration, as the engine's metrics have
    it. Raises Missing: they do not, or have several values."""
    values: list[str] = []
    for _, data in evidence.results(MetricsData):
        for sample in data.samples:
            if sample.name == CACHE_CONFIG and field in sample.labels:
                values.append(sample.labels[field])
    why = evidence.why_missing("metrics")
    return _only(values, f"{why}: no {field} in {CACHE_CONFIG}")


def _only(values: Sequence[str], otherwise: str) -> str:
    """The one value. Raises Missing: there are several, or none."""
    distinct = sorted(set(values))
    if not distinct:
        raise Missing(otherwise)
    if len(distinct) > 1:
        raise Missing(f"several values: {', '.join(distinct)}")
    return distinct[0]


def config_says(field: str, value: str) -> Check:
    """EngineCore logged that its configuration has this value; needs
    ``CONFIG_LINES``."""

    def says(logs: Logs) -> Finding:
        logged = logged_config(logs, field)
        return Finding.of(logged == value, f"EngineCore runs with {field}={logged}")

    return says


def cache_says(field: str, value: str) -> Check:
    """The engine's metrics say that the cache's configuration has this value."""

    def says(evidence: Evidence) -> Finding:
        shown = cache_config(evidence, field)
        return Finding.of(shown == value, f"the engine's metrics say {field}={shown}")

    return says


def graphs_ran(logs: Logs) -> Finding:
    """Batches were run by a captured graph; needs ``BATCH_LINES``."""
    batches, by_graph = logs.count(_BATCH), logs.count(_GRAPH)
    if not batches:
        raise Missing("the engine logged no batch")
    return Finding.of(by_graph > 0, f"{by_graph} batches run by a graph, of {batches}")


def no_graph_ran(logs: Logs) -> Finding:
    """Batches were run, and none by a captured graph; needs ``BATCH_LINES``."""
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
        matches = logs.search(ARGUMENTS, rf"'{option}': ([^,}}]+)")
        logged = [match[1] for match in matches]
        if not logged:
            return Finding.unknown(f"the log does not tell {option}")
        observed = f"the API server logs {option} {', '.join(logged)}"
        return Finding.of(set(logged) == {value}, observed)

    return parsed


def _not_refused(requests: Requests) -> Finding:
    """The first request with the image was answered, and none was too long."""
    sent, refused = requests.first(SHORT), requests.evidence.labelled(TOO_LONG)
    return Finding.of(sent.answered and not refused, f"{SHORT}: {sent.reply}")


def cache_unused(metrics: Metrics, requests: Requests, engine: Engine) -> Finding:
    """Images were answered, and none of them was looked up."""
    queries = metrics.readings(
        engine.metrics["mm_cache_queries"], "gate", "check", least=1
    )
    images = 0
    for request in requests.within("gate", "trigger"):
        if request.answered:
            images += len(request.images)
    if not images:
        return Finding.unknown("no image was answered")
    observed = f"{images} images answered, {queries[-1]:g} looked up"
    return Finding.of(not any(queries), observed)


def _cache_off(metrics: Metrics, requests: Requests, engine: Engine) -> Finding:
    """The same; of a release that does not count lookups (0.11.0), what the API server
    logs."""
    try:
        return cache_unused(metrics, requests, engine)
    except Missing:
        logs = Logs(metrics.evidence)
        parsed = logs.search(ARGUMENTS, r"'mm_processor_cache_gb': ([\d.]+)")
        values = [float(match[1]) for match in parsed]
        if not values:
            raise
        observed = f"mm_processor_cache_gb is parsed as {values[-1]:g}"
        return Finding.of(not any(values), observed)


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
    """The first request with the image got HTTP 400, by whose words it is too long."""
    sent = requests.first(TOO_LONG)
    lengths = _LENGTH.search(sent.error)
    too_long = lengths is not None and int(lengths[1]) > int(lengths[2])
    refused = sent.status == 400 and too_long
    return Finding.of(refused, f"{TOO_LONG}: {sent.status} {sent.error[:120]}")


def cache_is_used(metrics: Metrics, engine: Engine) -> Finding:
    """An image of the gate was sent again, and the API server counts that it knew it."""
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
        _DRIFT: r"Multi-modal cache miss for request .*P0/P1 cache drift",
        ARGUMENTS: r"non-default args: ",
        "ghost_key_patch-loaded": r"mmrepro: LRUCache\.\w+ is patched",
    }
    """What EngineCore says of a promised image that it does not hold: an assertion up
    to 0.24.0 at least, by 0.32.0 a warning (v1/engine/core.py:2011), after which the
    API server forgets it."""
    key_log_patterns = (ASSERTION, _DRIFT)

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
        """The signature, and where the cache is to be off, that it is: only then is
        nothing to be found in it."""
        conditions = super().conditions(facts)
        if DISABLE_CACHE.name in facts.mitigations:
            conditions.insert(0, self._bound(_CACHE_OFF, facts))
        return conditions

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
    """The next request with the image gets HTTP 500."""
    return Finding.of(requests.first(AGAIN).status == 500, statuses(requests))


def image_survives(requests: Requests) -> Finding:
    """The requests with the image are answered; one that is not in time tells
    nothing."""
    again = requests.all(AGAIN)
    if any(r.status != 500 and not r.answered for r in again):
        return Finding.unknown(statuses(requests))
    return Finding.of(all(r.answered for r in again), statuses(requests))


def statuses(requests: Requests) -> str:
    """What came of the later requests with the image, for people."""
    replies = [str(request.status or "no answer") for request in requests.all(AGAIN)]
    return f"image X: {', '.join(replies)}"


def missing_item(logs: Logs, patterns: Sequence[str] = (ASSERTION, _DRIFT)) -> Finding:
    """EngineCore logged that the cached item which it was promised is not there.

    Of a log that knows the core that runs now by its process id, its lines alone count;
    in a container the ids are others."""
    own = _marks_of_core(logs)
    missed: list[tuple[str, int, Sequence[LogLine]]] = []
    for pattern in patterns:
        count, lines = logs.count(pattern), logs.lines(pattern)
        if own:
            lines = of_processes(lines, own)
            count = len(lines)
        missed.append((pattern, count, lines))
    return _missed(missed)


def _marks_of_core(logs: Logs) -> set[str]:
    """``pid=…`` of the cores that run now, as far as the log has lines of them."""
    logged: set[str] = set()
    for _, data in logs.evidence.results(LogsData):
        for process in data.last_by_process:
            logged.update(process.split())
    cores = core_processes(logs.evidence, VllmEngine.core_role, "check")
    return logged & {f"pid={core.pid}" for core in cores}


def of_processes(lines: Sequence[LogLine], marks: Collection[str]) -> list[LogLine]:
    """The lines of processes with one of these marks (``pid=…``) in their name."""
    return [line for line in lines if set(line.process.split()) & set(marks)]


def missed_in_run(logs: Logs, processes: Processes, engine: Engine) -> Finding:
    """The same, of the EngineCore that was measured: no line of another process
    counts."""
    own = lines_of_core(logs, processes, engine)
    return _missed([(name, len(lines), lines) for name, lines in own.items()])


def asserted_in_run(logs: Logs, processes: Processes, engine: Engine) -> Finding:
    """The measured EngineCore raised the assertion."""
    own = lines_of_core(logs, processes, engine)[ASSERTION]
    return _missed([(ASSERTION, len(own), own)])


def lines_of_core(
    logs: Logs, processes: Processes, engine: Engine
) -> dict[str, list[LogLine]]:
    """The lines of each pattern that this run's EngineCore logged, by its process id."""
    logged = {name: logs.lines(name) for name in (ASSERTION, _DRIFT)}
    marks = {f"pid={use.pid}" for use in processes.of(engine.core_role)}
    return {name: of_processes(lines, marks) for name, lines in logged.items()}


def _missed(missed: Sequence[tuple[str, int, Sequence[LogLine]]]) -> Finding:
    """A finding of the first pattern that has lines: its name, their number, those
    that were kept."""
    for pattern, count, lines in missed:
        if not count:
            continue
        process = lines[0].process or "a process without a name"
        hashes = {short_hash(digest) for digest in hashes_in(lines)}
        return Finding.of(
            True,
            f"{count} × {pattern} in {process}, first at {lines[0].time}: mm_hash "
            f"{', '.join(sorted(hashes))}",
        )
    return Finding.of(False, "the log holds no line that says so")


def cached_item_assertion(logs: Logs) -> Finding:
    """EngineCore raised the assertion, whatever it warns of."""
    return missing_item(logs, (ASSERTION,))


def missing_hashes(
    logs: Logs, patterns: Sequence[str] = (ASSERTION, _DRIFT)
) -> list[str]:
    """Digests of the images that EngineCore did not hold."""
    lines: list[LogLine] = []
    for name in patterns:
        lines += logs.lines(name)
    return hashes_in(lines)


def hashes_in(lines: Sequence[LogLine]) -> list[str]:
    """The digest that each line names, where it names one."""
    matches = [_MM_HASH.search(line.text) for line in lines]
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
    """The numbers in the lines of a pattern; none, where no log was searched."""
    try:
        matches = Logs(evidence).search(name, ENCODER_CACHE_LINES[name])
    except Missing:
        return []
    return [int(match[1]) for match in matches]


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
    """Sizes in tokens: as the log tells it, else the scheduler's budget in each stack
    that shows it."""
    samples: list[StackSample] = []
    for _, data in evidence.results(StacksData, "check"):
        samples += data.samples
    stacks = StacksData(samples=samples)
    budgets = stacks.numbers("encoder_compute_budget", frame="schedule")
    return _logged(evidence, ENCODER_CACHE) or budgets


def item_above_the_budget(stacks: StacksData) -> Finding:
    """A full cache and an image that fits hang alike: of the item itself only the frame
    that asks for its room tells, where samples catch it."""
    caller = "_try_schedule_encoder_inputs"
    caught: list[tuple[int, int]] = []
    for thread in stacks.threads(caller):
        variables = thread.frame(caller).locals
        item = variables.get("num_encoder_tokens", "")
        budget = variables.get("encoder_compute_budget", "")
        if item.isdigit() and budget.isdigit():
            caught.append((int(item), int(budget)))

    text = ", ".join(f"{item} tokens of {budget}" for item, budget in caught)
    # A single sample may be torn.
    if len(caught) < _MIN_LOCALS:
        return Finding.unknown(
            f"{len(caught)} samples caught the image's size {text}".rstrip()
        )
    above = sum(item > budget for item, budget in caught)
    return Finding.of(above > len(caught) // 2, text)


# ------------------------------------------------------------------ the KV cache

BY_REASON = "vllm:num_requests_waiting_by_reason"


def gate_of_completions(evidence: Evidence) -> Finding:
    """For a ``gate_check``: a completion's record has no tokens, for it was sent as it
    is."""
    sent = evidence.requests_in("gate")
    bad = [request.label for request in sent if request.status != 200]
    observed = f"{len(sent)} requests; not answered: {', '.join(bad) or 'none'}"
    return Finding.of(len(sent) > 0 and not bad, observed)


def waiting_alone(metrics: Metrics, engine: Engine) -> Finding:
    """The scheduler counts requests as waiting and none as running, in two readings."""
    running = metrics.readings(engine.metrics["running"])
    waiting = metrics.readings(engine.metrics["waiting"])
    observed = f"waiting {waiting}, running {running}"
    return Finding.of(all(waiting) and not any(running), observed)


def waiting_for_capacity(evidence: Evidence) -> Finding:
    """Requests wait by reason capacity, none runs, and the KV cache is empty, in each
    reading.

    The counts are by reason since 0.14.0 at least (v1/metrics/loggers.py of 0.23.0).
    """
    met = True
    observed: list[str] = []
    for _, data in evidence.results(MetricsData, "check"):
        waiting = _waiting_by_capacity(data)
        running = data.total("vllm:num_requests_running")
        usage = data.total("vllm:kv_cache_usage_perc")
        met = met and waiting >= 1 and running == 0 and usage == 0
        observed.append(
            f"waiting by capacity {waiting:g}, running {running}, KV use {usage}"
        )
    if len(observed) < 2:
        raise Missing(f"{len(observed)} readings of {BY_REASON}")
    return Finding.of(met, "; ".join(observed))


def _waiting_by_capacity(data: MetricsData) -> float:
    """How many requests wait by reason capacity. Raises Missing: it is not counted."""
    counts: list[float] = []
    for sample in data.samples:
        if sample.name == BY_REASON and sample.labels.get("reason") == "capacity":
            counts.append(sample.value or 0.0)
    if not counts:
        raise Missing(f"the server does not tell {BY_REASON}")
    return sum(counts)
