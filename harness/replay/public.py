"""What is left of a case, with other words: does it fail as well?"""

from __future__ import annotations

from pathlib import Path

from mmrepro.campaign.search import Spent
from mmrepro.capture.anonymise import anonymise
from mmrepro.capture.messages import Captured
from mmrepro.case.files import read_contents, write_case
from mmrepro.case.model import IMAGES_DIR, Case
from mmrepro.errors import UsageError
from mmrepro.incident.replay import PUBLIC_DIR, Finding, FindingClass, Step
from mmrepro.machine.files import write_file
from mmrepro.replay.plays import Plays
from mmrepro.replay.store import Wanted

COMPARED = (FindingClass.CROSS_TALK, FindingClass.WRONG_ANSWER)
"""Classes that one play does not show."""
MOST_PLAYS = 3
"""Of a failure that comes and goes."""
WORDS = "texts and images are random ones of the same shape"


def play_publicly(plays: Plays, finding: Finding, case: Case, folder: Path, seed: int) -> None:
    """Plays ``case``, what is left of a confirmed and unknown finding, without what people wrote;
    if it fails likewise it is kept below the finding's folder, for what leaves the machine.

    ``folder``: the replay's, with the pictures. Without a start that is left nothing is played.
    """
    told = finding.known is not None or not finding.confirmed  # there is nothing to report
    random = case.origin.anonymised or not case.operations
    if told or random or finding.finding_class in COMPARED or plays.left < 1:
        return
    try:
        changed = anonymise(Captured(case, read_contents(case, folder)), seed, _tokenizer(case))
    except UsageError as error:
        finding.limits.append(f"not played with random texts: {error.message.rstrip('.')}")
        return
    for sha256, data in changed.contents.items():
        (folder / IMAGES_DIR).mkdir(exist_ok=True)
        write_file(folder / IMAGES_DIR / sha256, data)
    rate, failed, made = finding.rate, 0, 0
    try:
        for number in range(1, 1 + (1 if rate.failed == rate.plays else MOST_PLAYS)):
            what = f"{finding.id}: with random texts and images"
            seen = plays.play(Wanted(changed.case, "confirm", number, what))
            failed, made = failed + seen.has(finding.bucket), number
            if failed:
                break
    except Spent:
        pass
    if not made:
        return
    finding.starts += made
    finding.steps.append(
        Step(
            what=WORDS,
            kept=bool(failed),
            requests=len(case.operations),
            failed=failed,
            plays=made,
            why="for what leaves this machine",
        )
    )
    if failed:
        write_case(changed.case, folder / finding.folder / PUBLIC_DIR, changed.contents)
    else:
        finding.limits.append(
            f"with random texts and images of the same shape it did not show in {made} "
            f"play{'s' * (made > 1)}: what leaves this machine may not fail"
        )


def _tokenizer(case: Case) -> Path | None:
    """The folder of the model whose tokens count; None: a tiny one's."""
    folder = Path(case.server.model)
    return folder if (folder / "tokenizer.json").is_file() else None
