"""All that is written of a run: ``incident.json``, its folder, and what lies beside
it."""

from mmrepro.base.records import (
    EVIDENCE_DIR as EVIDENCE_DIR,
    ClaimStatus as ClaimStatus,
    Fidelity as Fidelity,
    HostFacts as HostFacts,
    Reference as Reference,
    Setting as Setting,
    StandIn as StandIn,
    WheelFacts as WheelFacts,
)
from mmrepro.failure.documents.model import (
    INCIDENT_FILE as INCIDENT_FILE,
    Birthday as Birthday,
    ClaimResult as ClaimResult,
    EngineFacts as EngineFacts,
    Exhibit as Exhibit,
    GateFacts as GateFacts,
    HashHead as HashHead,
    Incident as Incident,
    KeyFrame as KeyFrame,
    KeyStack as KeyStack,
    LogExcerpt as LogExcerpt,
    MitigationFacts as MitigationFacts,
    ModelFacts as ModelFacts,
    Pool as Pool,
    ScenarioFacts as ScenarioFacts,
    ServerFacts as ServerFacts,
    Shown as Shown,
    SourceExcerpt as SourceExcerpt,
    SymptomRow as SymptomRow,
    WarmParentFacts as WarmParentFacts,
)
