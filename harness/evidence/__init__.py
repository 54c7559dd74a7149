"""What was seen: the model of evidence, the recorder that collects it, the running sampler."""

from mmrepro.evidence.model import (
    Event,
    Evidence,
    ImageSent,
    Phase,
    ReproducerResult,
    RequestRecord,
    SeriesPoint,
)

__all__ = [
    "Event",
    "Evidence",
    "ImageSent",
    "Phase",
    "ReproducerResult",
    "RequestRecord",
    "SeriesPoint",
]
