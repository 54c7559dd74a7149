"""A GPU's words of a device-side assert, held against this scenario's rules.

    python reproducers/device_assert.py --device cuda --json |
        python -m mmrepro.scenarios.chunked_mm_prefill.device_assert

Prints the rules' claims; the exit code is 1 if one is refuted, 3 if one was not
tested."""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from mmrepro.base.errors import ExitCode
from mmrepro.engines import get_engine
from mmrepro.probes import AnyProbeResult, LogsProbe, run_probe
from mmrepro.scenario import Finding, Logs, Truth
from mmrepro.scenarios.chunked_mm_prefill import report
from mmrepro.traffic.evidence import Evidence

_ENGINE = get_engine("vllm")
_FROM_PYTHON = f"({_ENGINE.core_role} pid=7) ERROR 01-01 00:00:00 [core.py:1] "
"""vLLM puts it before each line of its own; what the device prints goes past it."""


def judged(output: str, folder: Path) -> Finding:
    """Whether a log with ``output``, as vLLM would have written it, is this scenario's
    crash.

    Args:
        output: what a process printed that a device-side assert ended.
        folder: for the log.
    """
    log = folder / "engine.log"
    printed, traceback, raised = output.partition("Traceback (most recent call last):")
    own = "".join(
        _FROM_PYTHON + line for line in (traceback + raised).splitlines(keepends=True)
    )
    log.write_text(printed + own)
    result = cast(
        "AnyProbeResult", run_probe(LogsProbe(log, report.LOG_PATTERNS), folder, 30)
    )
    return report.too_many(Logs(Evidence(probes=[result])), _ENGINE)


def claims(document: Mapping[str, Any], folder: Path) -> Iterator[dict[str, str]]:
    """Of what ``device_assert.py`` printed on a GPU; in the form of its own claims."""
    tests = {
        "scatter": (
            "masked_scatter's device-side assert is told by the rules",
            Truth.MET,
        ),
        "index": ("an index out of range is not taken for it", Truth.NOT_MET),
    }
    refusals = {one["cause"]: one for one in document.get("refusals", [])}
    for name, (text, wanted) in tests.items():
        finding = judged(str(refusals.get(name, {}).get("output", "")), folder)
        status = "confirmed" if finding.truth is wanted else "refuted"
        if document.get("device") != "cuda":
            status = "not-tested"
        yield {
            "id": f"rules-{name}",
            "text": text,
            "status": status,
            "observed": finding.observed[:300],
        }


def main() -> int:
    document = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="mmrepro-device-assert-") as folder:
        rules = list(claims(document, Path(folder)))
    print(json.dumps({"claims": rules}, indent=1))
    statuses = {rule["status"] for rule in rules}
    if "refuted" in statuses:
        return ExitCode.NOT_AS_EXPECTED
    return ExitCode.INCONCLUSIVE if "not-tested" in statuses else ExitCode.AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main())
