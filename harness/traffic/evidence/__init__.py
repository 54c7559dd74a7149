"""What was seen: the model of evidence, the recorder that collects it, the running
sampler."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily
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

if TYPE_CHECKING:
    from mmrepro.traffic.evidence.model import (
        BUILD as BUILD,
        BUILD_NOTICE as BUILD_NOTICE,
    )
    from mmrepro.traffic.evidence.recorder import (
        GpuSampler as GpuSampler,
        Listener as Listener,
        Recorder as Recorder,
        Sampler as Sampler,
    )
else:
    __getattr__ = lazily(__name__)
