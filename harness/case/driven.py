"""A case as the trigger of a scenario."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from mmrepro.case.files import read_case
from mmrepro.case.pictures import pictures
from mmrepro.case.sending import Sending
from mmrepro.traffic.drive import Drive

LOOK_S = 0.1


async def play_case(drive: Drive, folder: Path) -> bool:
    """Send the requests of the case in ``folder`` by its barriers, called by their ids.

    A request without an answer, while nothing else moves, ends it: the request waits on, as with
    ``Drive.ask``, and what would come later is not sent. Whether all of it was sent.

    Raises:
        UsageError: there is no case, or a picture of it is missing.
    """
    case, contents = read_case(folder)
    sending = Sending(drive.traffic, pictures(case, contents), drive.deadline_s, "fast")
    performing = asyncio.ensure_future(sending.perform(case.operations))
    try:
        while not (await asyncio.wait({performing}, timeout=LOOK_S))[0]:
            if sending.pending and time.monotonic() - sending.progressed > drive.suspect_s:
                sending.stop()
                sending.hold()
    finally:
        drive.pending += [task for task, _ in sending.pending.values()]
    await performing
    drive.fact("operations_unsent", len(sending.unsent))
    return not sending.unsent
