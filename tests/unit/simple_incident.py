"""The smallest incident that is one."""

from typing import Any

from made_up import at
from mmrepro.base.records import Fidelity, HostFacts
from mmrepro.failure.documents import EngineFacts, Incident, ScenarioFacts


def incident(**more: Any) -> Incident:
    fields: dict[str, Any] = {
        "mmrepro_version": "0",
        "id": "abc",
        "created": at(0),
        "state": "complete",
        "command": "mmrepro run ghost-key-eviction",
        "scenario": ScenarioFacts(
            name="ghost-key-eviction",
            title="t",
            summary="s",
            affected="<0.24.0",
            explanation="e",
        ),
        "engine": EngineFacts(name="vllm", release="0.23.0"),
        "host": HostFacts(
            os="", kernel="", cpu="", cores=2, memory_bytes=1, python="3.11"
        ),
        "fidelity": Fidelity.CPU,
    }
    return Incident(**fields | more)
