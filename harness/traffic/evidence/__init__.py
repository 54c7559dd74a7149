"""What was seen: the model of evidence, the recorder that collects it, the running
sampler."""

from mmrepro.traffic.evidence.model import (
    ChoiceSeen as ChoiceSeen,
    Event as Event,
    Evidence as Evidence,
    Held as Held,
    ImageSent as ImageSent,
    Missing as Missing,
    Phase as Phase,
    ReproducerResult as ReproducerResult,
    RequestRecord as RequestRecord,
    SeriesPoint as SeriesPoint,
    ToolCall as ToolCall,
    doubts_read as doubts_read,
    files_read as files_read,
)
