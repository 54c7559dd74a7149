"""LMDeploy: /v1/completions gives the prompts of every list the session ids 1, 2, 3
…"""

import asyncio
from functools import partial

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Measured,
    Requests,
    Scenario,
    Severity,
    Upstream,
    UpstreamState,
    cause,
    claim,
    cure,
    endpoints_green,
    issue,
    lmdeploy,
    precondition,
    pull,
    quote,
    some_requests_fail,
    symptom,
    unmitigated,
    upgrade,
)
from mmrepro.scenario.more import TinyText, answers, fails_in_server, in_log

TOKENS, OWN_ID, _DEADLINE_S, _ONE_EACH = 16, 77, 480.0, "text-prompts"
LONG, _TWO = "a long list of two", "a list of two beside its second prompt"
BESIDE, NAMED, TEXT = (
    "a list beside it",
    f"a list of session {OWN_ID} beside it",
    "a text beside",
)
LISTS, _TEXT_AFTER = ("list 1 afterwards", "list 2 afterwards"), "a text afterwards"
_LEFT, LAST = "a text whose client leaves", "a text after that"
_REPORT = issue(
    "lmdeploy#4773", "The list-prompt path ignores request.session_id", "the report"
)
_STOP = issue(
    "lmdeploy#4776", "A disconnect calls AsyncEngine.stop_session, which does not exist"
)
_FIX = pull(
    "lmdeploy#4774", "The sessions of a list get ids of their own", release="0.15.0"
)


class CompletionsSession(Scenario):
    """LMDeploy's /v1/completions fails lists of prompts that come at the same time.

    What: While a completion with a list of prompts is answered, every other one with a
    list gets HTTP 500, whatever session it names; texts are answered. A list that fails
    at its second prompt keeps the first one's id: from then on all lists fail until the
    server is started again.

    Why: A list's prompts become the sessions 1, 2, 3 … (`create_session(i + 1)`),
    whatever the request says. An id that is in use is refused with a ValueError that
    nobody catches. It is raised in a loop, before anything would clean up: the ids that
    the loop took before stay taken."""

    name, engine = "completions-session", "lmdeploy"
    # 0.12.3, by source: no ids of users.
    release, affected = (
        "0.14.0",
        ">=0.13.0,<0.15.0",
    )
    failure_class, severity = FailureClass.REQUESTS_FAIL, Severity.HIGH
    upstream = Upstream(UpstreamState.FIXED, _FIX, "2026-11-24", "0.15.0")
    model = TinyText()
    references = (_REPORT, _STOP, _FIX)
    sources = (
        quote(
            "lmdeploy/serve/openai/api_server.py",
            "completions_v1",
            "a list's prompts are numbered; a client that left is stopped by a method "
            "that is not there",
            "create_session(i + 1)",
            "stop_session",
        ),
    )
    log_patterns = {
        "id-taken": r"ValueError: User session id \d+ already exists",
        "numbered": r"create_session\(i \+ 1\)",
        "no-stop": r"has no attribute 'stop_session'",
    }
    key_log_patterns = tuple(log_patterns)
    mitigations = (
        cure(
            _ONE_EACH, description="send each prompt as a text, in a request of its own"
        ),
        upgrade("0.15.0", "0.15.0, which has lmdeploy#4774"),
    )

    async def gate(self, drive: Drive) -> None:
        await lmdeploy.complete(drive, "gate: a text", "hi")
        await lmdeploy.complete(drive, "gate: a list", ["hi"])
        await lmdeploy.complete(drive, "gate: a list of two", ["hi", "ho"])

    async def trigger(self, drive: Drive) -> None:
        drive.deadline_s = max(drive.deadline_s, _DEADLINE_S)
        send = partial(lmdeploy.complete, drive)
        # A list takes the ids of its places; where each text is sent for itself, none is.
        single: str | list[str] = ["hi"]
        pair: str | list[str] = ["hi", "ho"]
        long: str | list[str] = ["7", "8"]
        tokens = TOKENS
        if _ONE_EACH in drive.mitigations:
            single, pair, long = "hi", "hi", "7"
            tokens = 2 * TOKENS

        pieces: asyncio.Queue[int] = asyncio.Queue()
        answer = send(LONG, long, tokens, stream=True, piece=pieces.put_nowait)
        answering = asyncio.ensure_future(answer)
        drive.pending.append(answering)
        drive.fact("pieces_at_one", await lmdeploy.reached(1, pieces, answering))
        await send(BESIDE, single)
        await send(NAMED, single, session_id=OWN_ID)
        drive.pending.append(asyncio.ensure_future(send(TEXT, "hi")))
        at_two = await lmdeploy.reached(TOKENS + 2, pieces, answering)
        drive.fact("pieces_at_two", at_two)
        await send(_TWO, pair)

        await asyncio.gather(*drive.pending)
        await send(_TEXT_AFTER, "hi")
        for label in LISTS:
            await send(label, single)
        await send(_LEFT, "7", TOKENS, leave=True)
        await send(LAST, "hi")

    @precondition("the others came while the long one was answered, each at its prompt")
    def under_way(self, requests: Requests, seen: Measured) -> Finding:
        first, second = seen.number("pieces_at_one"), seen.number("pieces_at_two")
        sent = requests.first(LONG)
        met = sent.answered and 1 <= first <= TOKENS < second < sent.pieces
        return Finding.of(
            met, f"after {first:g} and {second:g} of {sent.pieces} pieces; {sent.reply}"
        )

    symptoms = (
        fails_in_server(BESIDE, NAMED, id="beside-fails"),
        symptom(
            "texts are answered, beside it and afterwards",
            answers.given(TEXT, _TEXT_AFTER),
            id="texts-answered",
            abnormal=False,
        ),
        fails_in_server(_TWO, *LISTS, id="lists-lost"),
        endpoints_green(),
    )
    live_only = some_requests_fail()
    causes = (
        in_log(
            "the ids were asked for by create_session(i + 1), as tracebacks show",
            "numbered",
        ),
        in_log(
            "a client that left was to be stopped by stop_session, which is not there",
            "no-stop",
            required=False,
            live=False,
        ),
    )

    @cause("id 1 was in use, and the id that a list named was never asked for")
    def id_of_place(self, logs: Logs) -> Finding:
        ids = {int(found[1]) for found in logs.search("id-taken", r"session id (\d+) ")}
        return Finding.of(1 in ids and OWN_ID not in ids, f"in use: {sorted(ids)}")

    works_after = (answers.given(BESIDE, NAMED, TEXT, _TWO, _TEXT_AFTER, *LISTS, LAST),)
    ours = partial(claim, given=("under-way", unmitigated), refutable_on=affected)
    claims = (
        ours(
            "second-fails", "the second of two lists gets HTTP 500", by="beside-fails"
        ),
        ours(
            "own-id-ignored",
            "the session that a list names is ignored",
            by=("beside-fails", "id-of-place"),
        ),
        ours("texts-spared", "texts get a session of their own", by="texts-answered"),
        ours(
            "lost-for-good",
            "one that fails half-way ends all lists",
            "observation in the lab",
            by="lists-lost",
        ),
        claim(
            "no-stop",
            "a client that leaves makes AttributeError of stop_session",
            _STOP,
            by="no-stop",
            given=answers.given(LAST),
            refutable_on=affected,
        ),
        claim(
            "fixed",
            "with it lists are answered at the same time",
            _FIX,
            releases=">=0.15.0",
            by=answers.given(BESIDE, NAMED, _TWO, *LISTS),
            given="under-way",
        ),
    )


SCENARIO = CompletionsSession()
