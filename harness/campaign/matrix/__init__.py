"""Many cells: which ones, in what order, each a `mmrepro run` of its own, within time
and disk."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.campaign.matrix.options import (
        DEFAULT_OUT as DEFAULT_OUT,
        Device as Device,
        MatrixFile as MatrixFile,
        MatrixRunCommand as MatrixRunCommand,
        Seconds as Seconds,
        Texts as Texts,
        load as load_matrix,
    )
    from mmrepro.campaign.matrix.plan import (
        DryRun as DryRun,
        dry_run_of as dry_run_of,
        night_of as night_of,
        plan as matrix_plan,
        planned as planned,
        planned_of as planned_of,
    )
    from mmrepro.campaign.matrix.session import (
        EnvironmentCosts as EnvironmentCosts,
        Nightly as Nightly,
        Slicing as Slicing,
        begin as begin_night,
        exit_code as night_exit_code,
        night_options as night_options,
        unfinished as unfinished_night,
    )
else:
    __getattr__ = lazily(__name__)
