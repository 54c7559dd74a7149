"""Which setting is really the cause: flip factors of a failing run, alone and together.

``search`` judges runs and decides what to flip next and what follows (pure functions),
``cells`` knows what runs show and keeps them, and ``session`` is the policy of a
campaign that makes them."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.campaign.ablate.options import AblateCommand as AblateCommand
    from mmrepro.campaign.ablate.session import (
        Ablating as Ablating,
        AblationPlan as AblationPlan,
        plan as ablation_plan,
    )
else:
    __getattr__ = lazily(__name__)
