"""Minimal reproducer of SGLang's abort by prefix, with the installed engine's own
scheduler.

``python abort_by_prefix.py``, with the interpreter of an SGLang environment. No server,
no GPU.

``Scheduler.abort_request`` is called for one request id, over running requests that are
plain objects, on a scheduler that has nothing else. Prints one JSON object of facts.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

_ASKED = "user1"
_RUNNING = (_ASKED, "user10-b", "user2", "other-user1")


class Request:
    """What the scheduler reads of a running request, and writes to end it."""

    def __init__(self, rid: str) -> None:
        self.rid, self.to_abort, self.to_finish = rid, False, None

    def finished(self) -> bool:
        return False


def ended(asked: str) -> list[str]:
    """Of ``_RUNNING``, those that an abort of ``asked`` ends."""
    requests = [Request(rid) for rid in _RUNNING]
    scheduler: Any = MagicMock(
        chunked_req=None, waiting_queue=[], mm_receiver=None, cur_batch=None
    )
    scheduler.grammar_queue, scheduler.dllm_config, scheduler.last_batch = (
        [],
        None,
        None,
    )
    scheduler.running_batch.reqs = requests
    scheduler.collect_inflight_reqs.return_value = set(requests)
    modes = import_module("sglang.srt.disaggregation.utils").DisaggregationMode
    scheduler.disaggregation_mode = modes.NULL
    asking = MagicMock(
        rid=asked, abort_all=False, abort_message=None, finished_reason=None
    )
    import_module("sglang.srt.managers.scheduler").Scheduler.abort_request(
        scheduler, asking
    )
    return [one.rid for one in requests if one.to_abort or one.to_finish is not None]


def main() -> None:
    found, whole = ended(_ASKED), ended(_RUNNING[1])
    facts = {
        "ended": ", ".join(found),
        "ends_its_own": _ASKED in found,
        "ends_a_longer_one": _RUNNING[1] in found,
        "ends_others": bool({"user2", "other-user1"} & set(found)),
        "the_whole_id_ends": ", ".join(whole),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
