"""The release or commit that a failure came in with, and the one that it went with."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.campaign.bisect.apart import (
        AnswerPipe as AnswerPipe,
        TestOrder as TestOrder,
        tested_apart as tested_apart,
    )
    from mmrepro.campaign.bisect.by_test import (
        TESTS_FILE as TESTS_FILE,
        UpstreamSubject as UpstreamSubject,
        newest_end as newest_end,
    )
    from mmrepro.campaign.bisect.by_test_session import BisectingTest as BisectingTest
    from mmrepro.campaign.bisect.clone import commit_of_release as commit_of_release
    from mmrepro.campaign.bisect.measured import (
        CERTAIN as CERTAIN_CHANGE,
        NOTHING as NO_CHANGE,
        MeanChange as MeanChange,
        differ as ends_differ,
        is_step as is_step,
        reading as mean_change,
    )
    from mmrepro.campaign.bisect.once import tested as tested_tree
    from mmrepro.campaign.bisect.options import (
        BisectCommand as BisectCommand,
        BisectRunCommand as BisectRunCommand,
        TreeTestCommand as TreeTestCommand,
    )
    from mmrepro.campaign.bisect.plan import (
        BisectionPlan as BisectionPlan,
        Field as Field,
        field_of as field_of,
        plan as bisection_plan,
    )
    from mmrepro.campaign.bisect.search import (
        CLEAR as CLEAR_SIDE,
        SearchOptions as SearchOptions,
        SideFinding as SideFinding,
    )
    from mmrepro.campaign.bisect.session import Bisecting as Bisecting
else:
    __getattr__ = lazily(__name__)
