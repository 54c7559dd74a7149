"""The known failures beside the runs that were recorded of them: which are alive,
where."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.tools.catalogue.claims import (
        Claims as Claims,
        JudgedClaim as JudgedClaim,
        load as load_claims,
        words as claim_words,
    )
    from mmrepro.tools.catalogue.documents import (
        AliveDocument as AliveDocument,
        ListDocument as ListDocument,
        card_of as card_of,
        counts_of as counts_of,
        default_conditions as default_conditions,
        listed as listed,
        listed_as_declared as listed_as_declared,
        shown as shown,
        shown_as_declared as shown_as_declared,
    )
    from mmrepro.tools.catalogue.find import (
        ECHO as ECHO,
        INDEX as FIND_INDEX,
        FailureCard as FailureCard,
        IndexEntry as IndexEntry,
        IndexHit as IndexHit,
        Matched as Matched,
        Pattern as Pattern,
        entries as index_entries,
        find as find_failures,
        foreign as foreign_scenarios,
        is_echo as is_echo,
        is_reference as is_reference,
    )
    from mmrepro.tools.catalogue.recorded import (
        RecordedRun as RecordedRun,
        load as load_recorded,
        of_history as of_history,
    )
    from mmrepro.tools.catalogue.standing import (
        INDEX as CATALOGUE_PAGE,
        Newest as Newest,
        RecordedScenario as RecordedScenario,
        Standing as Standing,
        known as known_standings,
        newest_of as newest_of,
        page as catalogue_page,
        standings as standings,
        strangers as strangers,
    )
else:
    __getattr__ = lazily(__name__)
