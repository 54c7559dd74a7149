"""What was seen: the model of evidence, the recorder that collects it, the running sampler."""

from mmrepro.evidence.model import (
    Event,
    Evidence,
    ImageSent,
    Missing,
    Phase,
    ReproducerResult,
    RequestRecord,
    SeriesPoint,
    files_read,
)

__all__ = [
    "Event",
    "Evidence",
    "ImageSent",
    "Missing",
    "Phase",
    "ReproducerResult",
    "RequestRecord",
    "SeriesPoint",
    "files_read",
]
