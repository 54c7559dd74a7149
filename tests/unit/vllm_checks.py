"""A check, asked of made-up evidence as a scenario of vLLM asks it."""

from typing import Any

from made_up import probed, run_facts
from mmrepro.failure.signature.decide import guarded
from mmrepro.scenario import Check, Finding, Truth
from mmrepro.scenario.definition import bind
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence

VLLM = load_scenario("ghost-key-eviction")


def finding_of(check: Check, evidence: Evidence) -> Finding:
    """Ask the check; an error of its own is a finding too."""
    return guarded(bind(check, VLLM, run_facts(VLLM)), evidence)


def truth_of(check: Check, *probes: Any, **more: Any) -> Truth:
    """Ask the check of what these probes saw, and of ``more`` of the evidence."""
    evidence = Evidence(probes=[probed(data) for data in probes], **more)
    return finding_of(check, evidence).truth
