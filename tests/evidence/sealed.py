"""Recordings as runs of today leave them: with the record of their hashes.

The recordings are older than that record. For tests they are written once more as a
run writes itself, in two steps, with raw files beside them."""

from pathlib import Path

from mmrepro.base.records import EVIDENCE_DIR
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.folder import Journal

RAW = {
    "engine.log": "INFO a line of the engine\n" * 40,
    "check-metrics-metrics.txt": "vllm:num_requests_running 1.0\n",
    "check-stacks-1.json": '[{"pid": 1, "frames": []}]\n',
}
"""Stand for the raw files of a run, which recordings do not hold."""


def seal(incident: Incident, folder: Path) -> Path:
    """Write ``incident`` as a run does: a part of its evidence, then all of it."""
    raw = folder / EVIDENCE_DIR
    raw.mkdir(parents=True)
    names = list(RAW)
    whole = incident.evidence
    journal = Journal(incident, folder)
    evidence = journal.recorder.evidence
    evidence.events += whole.events[:5]
    evidence.requests += whole.requests[:2]
    (raw / names[0]).write_text(RAW[names[0]][:100])
    journal.save()
    for name, text in RAW.items():
        (raw / name).write_text(f"{text}{incident.id}\n")
    incident.evidence = whole
    journal.save()
    return folder
