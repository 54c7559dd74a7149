"""All that is written of a run: ``incident.json``, its folder, and what lies beside
it."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.failure.documents.cause import (
        CAUSE_WORDS as CAUSE_WORDS,
        STATE_OF_LOG_WORDS as STATE_OF_LOG_WORDS,
        Cause as Cause,
        CauseClass as CauseClass,
        Certainty as Certainty,
        FirstFailure as FirstFailure,
        KnownFailure as KnownFailure,
        LogFacts as LogFacts,
        LoggedState as LoggedState,
        LogReading as LogReading,
        ServerInLog as ServerInLog,
        StartCause as StartCause,
    )
    from mmrepro.failure.documents.diagnosis import (
        CLASS_WORDS as CLASS_WORDS,
        COULD_NOT_TELL as COULD_NOT_TELL,
        FIT_WORDS as FIT_WORDS,
        STATE_WORDS as STATE_WORDS,
        Assessment as Assessment,
        Diagnosis as Diagnosis,
        Effect as Effect,
        Fit as Fit,
        LiveClass as LiveClass,
        Match as Match,
        NamedClass as NamedClass,
        Rank as Rank,
        RankEdge as RankEdge,
        RankLook as RankLook,
        ServerState as ServerState,
        Stand as Stand,
        TargetFacts as TargetFacts,
        TargetProcess as TargetProcess,
    )
    from mmrepro.failure.documents.dumps import (
        DumpFile as DumpFile,
        DumpReading as DumpReading,
        KnownFailure as DumpedFailure,
        ProcessStand as ProcessStand,
        Resemblance as Resemblance,
    )
    from mmrepro.failure.documents.fall import (
        FALL_FILE as FALL_FILE,
        FallRecord as FallRecord,
        RequestShape as RequestShape,
        read_fall as read_fall,
    )
    from mmrepro.failure.documents.finding import (
        LoadedFinding as LoadedFinding,
        finding_of as finding_of,
        load as load_finding,
    )
    from mmrepro.failure.documents.fleet import (
        FLEET_FILE as FLEET_FILE,
        FLEET_WORDS as FLEET_WORDS,
        Finding as FleetFinding,
        Fleet as Fleet,
        FleetState as FleetState,
        Member as Member,
        Part as FleetPart,
        Scraped as Scraped,
    )
    from mmrepro.failure.documents.folder import (
        DEFAULT_ROOT as DEFAULT_ROOT,
        Journal as Journal,
        discard as discard_folder,
        made_here as made_here,
        make_folders as make_folders,
        make_run_dir as make_run_dir,
        new_folder as new_folder,
        prepared as prepared_folder,
        refuse_taken as refuse_taken,
        remember_made as remember_made,
        remove_made as remove_made,
        unused as unused_folder,
        write_incident as write_incident,
    )
    from mmrepro.failure.documents.hashes import (
        HASHES_FILE as HASHES_FILE,
        SIGNATURE_FILE as SIGNATURE_FILE,
        FileHash as FileHash,
        HashCheck as HashCheck,
        checked as check_hashes,
        hash_of as hash_of,
        packed_chain as packed_chain,
        signed_by as signed_by,
    )
    from mmrepro.failure.documents.head import (
        IncidentHead as IncidentHead,
        ListedCampaign as ListedCampaign,
    )
    from mmrepro.failure.documents.here import (
        FINDING as FINDING_ID,
        LAST as LAST_HERE,
        Here as Here,
        names as names_here,
        place as place_here,
        places_of as places_of,
    )
    from mmrepro.failure.documents.ledger import (
        LEDGER_FILE as LEDGER_FILE,
        LEDGER_VERSION as LEDGER_VERSION,
        Attempt as Attempt,
        Cell as Cell,
        Event as Event,
        EventKind as EventKind,
        Line as Line,
        Lost as Lost,
        Measured as Measured,
        Night as Night,
        NightState as NightState,
        Planned as Planned,
        Role as Role,
    )
    from mmrepro.failure.documents.listing import (
        Listing as Listing,
        RecordFilter as RecordFilter,
        campaign_facts as campaign_facts,
        find as find_incidents,
        resume_words as resume_words,
    )
    from mmrepro.failure.documents.model import (
        INCIDENT_FILE as INCIDENT_FILE,
        Birthday as Birthday,
        ClaimResult as ClaimResult,
        EngineFacts as EngineFacts,
        Exhibit as Exhibit,
        GateFacts as GateFacts,
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
        collision_probability as collision_probability,
        cross_probability as cross_probability,
        images_for as images_for,
    )
    from mmrepro.failure.documents.public import (
        NotPublic as NotPublic,
        public as as_public,
        public_text as public_text,
        register as register_words,
    )
    from mmrepro.failure.documents.published import (
        Public as Public,
        published as as_published,
        shown_here as shown_here,
    )
    from mmrepro.failure.documents.signed import sign_head as sign_head
    from mmrepro.failure.documents.stored import (
        MANIFEST_FILE as MANIFEST_FILE,
        BundledFile as BundledFile,
        BundleManifest as BundleManifest,
        LeftOut as LeftOut,
        document_json as document_json,
        is_bundle as is_bundle,
        listed_names as listed_names,
        load_document as load_document,
        read_listed as read_listed,
        replace_file as replace_file,
    )
    from mmrepro.failure.documents.upgrade import (
        RUNS_FILE as UPGRADE_RUNS_FILE,
        UPGRADE_FILE as UPGRADE_FILE,
        Area as Area,
        Block as Block,
        Difference as Difference,
        OptionSeen as OptionSeen,
        Outcome as UpgradeOutcome,
        Side as UpgradeSide,
        SideRun as SideRun,
        Upgrade as Upgrade,
    )
else:
    __getattr__ = lazily(__name__)
