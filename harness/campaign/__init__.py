"""A campaign of any kind: what it asks for, the places that do it, and what is written
down."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.campaign.campaign import (
        Campaign as Campaign,
        CampaignState as CampaignState,
        Policy as Policy,
    )
    from mmrepro.campaign.events import (
        CampaignBegan as CampaignBegan,
        CampaignEnded as CampaignEnded,
        CampaignEvent as CampaignEvent,
        Established as Established,
        Note as Note,
        RunBegan as RunBegan,
        RunEnded as RunEnded,
        json_lines as json_lines,
    )
    from mmrepro.campaign.measure import (
        MeasuredBlock as MeasuredBlock,
        MeasureRun as MeasureRun,
    )
    from mmrepro.campaign.provisions import (
        Bound as Bound,
        Provisions as Provisions,
        Say as Say,
    )
    from mmrepro.campaign.schedule import (
        CONFIRM as CONFIRM,
        REPEAT as REPEAT,
        EnvironmentGroup as EnvironmentGroup,
        Estimates as Estimates,
        groups_of as groups_of,
    )
    from mmrepro.campaign.search import Search as Search, Spent as Spent
    from mmrepro.campaign.trial import (
        TIMEOUT_S as RUN_TIMEOUT_S,
        ByRun as ByRun,
        Making as Making,
        TrialOptions as TrialOptions,
        Trials as Trials,
        cell_of as cell_of,
        incident_in as incident_in,
        spawn as spawn,
    )
    from mmrepro.campaign.work import (
        INCIDENTS as INCIDENTS,
        CellsUntilWhole as CellsUntilWhole,
        LocalPlaces as LocalPlaces,
        OnServers as OnServers,
        Order as Order,
        Places as Places,
        StartedRun as StartedRun,
        Working as Working,
        Workplace as Workplace,
    )
else:
    __getattr__ = lazily(__name__)
