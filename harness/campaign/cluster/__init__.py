"""A night on the machines of a Ray cluster.

Only ``machines`` imports Ray, and only when a night is run there.
"""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.campaign.cluster.where import Where as Where, placed as placed_runs
else:
    __getattr__ = lazily(__name__)
