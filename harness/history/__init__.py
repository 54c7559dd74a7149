"""What follows from many runs: the state of a cell, flakiness, what changed since the
night before.

Pure functions over the records of the ledger (``failure/documents``), and the file that
keeps them."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.history.concerns import (
        Quarantine as Quarantine,
        load_quarantine as load_quarantine,
    )
    from mmrepro.history.events import (
        ALARMS as ALARMS,
        diff as diff_nights,
        events as events_between,
    )
    from mmrepro.history.fixed_later import (
        BRANCHED_DAYS as BRANCHED_DAYS,
        TABLE_OF_FIXES as TABLE_OF_FIXES,
        FixTable as FixTable,
        LaterFix as LaterFix,
        TableFix as TableFix,
        TableFunction as TableFunction,
        TracedFailure as TracedFailure,
        later_fixes as later_fixes,
        package_path as package_path,
        write_table as write_fix_table,
    )
    from mmrepro.history.ledger import (
        History as History,
        Ledger as Ledger,
        NightRuns as NightRuns,
        chosen_night as chosen_night,
        read as read_history,
    )
    from mmrepro.history.merge import merge as merge_ledgers
    from mmrepro.history.nightly import (
        NIGHT_WORDS as NIGHT_WORDS,
        DiffDocument as DiffDocument,
        NightView as NightView,
        history_document as history_document,
        night_document as night_document,
        strips_of as strips_of,
    )
    from mmrepro.history.squares import (
        EVENTS as SQUARE_EVENTS,
        LOOKS as SQUARE_LOOKS,
        Grid as Grid,
        ReleaseColumn as ReleaseColumn,
        ScenarioRow as ScenarioRow,
        Square as Square,
        SquareStanding as SquareStanding,
        TrendPoint as TrendPoint,
        affects as affects,
        importance as importance,
        state_words as state_words,
    )
    from mmrepro.history.states import (
        VERDICTS as VERDICTS,
        JobState as JobState,
        Settled as Settled,
        fisher as fisher,
        settle as settle_cell,
        surprise as surprise_of,
    )
else:
    __getattr__ = lazily(__name__)
