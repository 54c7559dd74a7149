"""Edits of recorded runs, by a generator: none is judged without a word."""

from pathlib import Path

import pytest
from edited_runs import (
    EDITS as EVERY_KIND,
    SILENT,
    TOLD,
    Sealed,
    edited,
    outcome,
    sealed_runs,
    the_record_removed,
)

EDITS, SEED = 200, 7


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Sealed]:
    return sealed_runs(tmp_path_factory.mktemp("runs"), most=4)


def test_no_edit_is_judged_without_a_word(runs: list[Sealed], tmp_path: Path) -> None:
    """2,000 in ``benchmarks/edited_runs.py``."""
    assert all(outcome(run.folder) == SILENT for run in runs), "untouched: judged"
    made = list(edited(runs, EDITS, SEED, tmp_path))
    assert len(made) == EDITS
    assert not [(kind, done) for kind, done, came in made if came == SILENT]
    told = {kind for kind, _, came in made if came == TOLD}
    assert told <= {the_record_removed.__name__}
    assert {kind for kind, _, _ in made} == {kind.__name__ for kind, _ in EVERY_KIND}
