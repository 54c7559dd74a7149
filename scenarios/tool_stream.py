"""vLLM: a streamed tool call loses its arguments where another one before it has
none."""

import json
from collections.abc import Callable
from functools import partial

from mmrepro.reproducers.tool_parser_stream import CALLS, SECOND
from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    LiveFacts,
    Missing,
    Reproducers,
    RequestRecord,
    Requests,
    Scenario,
    Severity,
    Upstream,
    UpstreamState,
    answered,
    cause,
    claim,
    cure,
    endpoints_green,
    issue,
    precondition,
    quote,
    row,
    symptom,
    unmitigated,
)
from mmrepro.scenario.more import Condition
from mmrepro.scenario.silent import as_in_a_run
from mmrepro.traffic import RequestWatch

REPRODUCER, _NOT_STREAMED = "tool_parser_stream.py", "not-streamed"
WHOLE, STREAMED, ALONE = (
    "both calls, whole",
    "both calls, streamed",
    "the second alone, streamed",
)
_GIVEN = json.loads(CALLS)
_TOOLS = [
    {
        "type": "function",
        "function": {"name": call["name"], "parameters": {"type": "object"}},
    }
    for call in _GIVEN
]
_REPORT = issue(
    "vllm#47901",
    "xlam and hunyuan_a13b tool parsers drop the arguments of any tool call that "
    "follows an empty-argument call (streaming)",
)


def _calls(requests: Requests, label: str) -> list[tuple[str, object]]:
    """Name and arguments of the calls in an answer; arguments that are no JSON as they
    came.

    Raises Missing: they are not numbered as they came.
    """
    made = [
        call for choice in requests.first(label).choices for call in choice.tool_calls
    ]
    if [call.index for call in made] != list(range(len(made))):
        raise Missing(f"{label}: the calls are not numbered")
    calls: list[tuple[str, object]] = []
    for call in made:
        try:
            calls.append((call.name, json.loads(call.arguments)))
        except ValueError:
            calls.append((call.name, call.arguments))
    return calls


_WANTED = [(call["name"], call["arguments"]) for call in _GIVEN]


def _called(
    label: str, wanted: list[tuple[str, object]]
) -> Callable[[Requests], Finding]:
    """A check: these are the calls in an answer, with their arguments."""

    def check(requests: Requests) -> Finding:
        found = _calls(requests, label)
        return Finding.of(found == wanted, f"{found}")

    return check


def _hunyuan_drops(reproducers: Reproducers) -> Finding:
    streamed = reproducers.facts(REPRODUCER)["hunyuan_a13b_streamed"]
    return Finding.of(streamed == "{}", f"streamed {streamed}")


class ToolArgumentsDropped(Scenario):
    """A streamed tool call loses its arguments where another one before it has none.

    What: The model calls two tools, the first without arguments. Streamed, the second
    call comes with `{}` for its arguments, and `finish_reason` is `tool_calls` as ever:
    the client runs the tool with nothing. The same text in an answer that is not
    streamed has them.

    Why: The parser looks for an empty `arguments` anywhere in the text so far, and
    takes what it finds for the call that it is at. Once any call was empty, so are all
    that follow."""

    name, release, affected = "tool-arguments-dropped", "0.33.0", ">=0.25.0"
    # Run: 0.33.0, the newest there is, and 0.25.0.
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.HIGH
    needs = ("--tool-call-parser=xlam and a stream and tools",)
    upstream = Upstream(UpstreamState.OPEN, _REPORT, "2026-11-26")
    references = (_REPORT,)
    server = "--max-num-seqs 8 --enable-auto-tool-choice --tool-call-parser xlam"
    reproducers = (REPRODUCER,)
    mitigations = (
        cure(_NOT_STREAMED, description="ask for tool calls without a stream"),
    )
    sources = (
        quote(
            "vllm/tool_parsers/xlam_tool_parser.py",
            "xLAMToolParser.extract_tool_calls_streaming",
            "the first call without arguments is found, whichever the parser is at",
            "empty_args_match = re.search",
            "if i == current_idx",
        ),
    )

    async def ask(
        self, drive: Drive, label: str, text: str, stream: bool
    ) -> RequestRecord:
        """The model can say nothing else: its answer has one choice."""
        body = {
            "model": drive.traffic.model,
            "messages": [{"role": "user", "content": "hello"}],
            "tools": _TOOLS,
            "tool_choice": "auto",
            "structured_outputs": {"choice": [text]},
            "max_tokens": 2 * len(CALLS),
            "temperature": 0,
            "stream": stream,
        }
        return await drive.traffic.send(
            label,
            json.dumps(body).encode(),
            RequestWatch(lambda: None, lambda _: None),
            stream=stream,
            text="hello",
            max_tokens=2 * len(CALLS),
            deadline_s=drive.deadline_s,
        )

    async def trigger(self, drive: Drive) -> None:
        await self.ask(drive, WHOLE, CALLS, stream=False)
        await self.ask(drive, ALONE, json.dumps(_GIVEN[SECOND:]), stream=True)
        await self.ask(
            drive, STREAMED, CALLS, stream=_NOT_STREAMED not in drive.mitigations
        )

    @precondition(
        "the model says the two calls, of which the first one has no arguments"
    )
    def both_called(self, requests: Requests) -> Finding:
        calls, sent = _calls(requests, WHOLE), requests.first(STREAMED)
        met = calls == _WANTED and sent.completion_tokens in (None, len(CALLS) + 1)
        return Finding.of(met and sent.answered, f"whole: {calls}")

    @symptom("streamed, the second call has no arguments")
    def arguments_gone(self, requests: Requests) -> Finding:
        calls = _calls(requests, STREAMED)
        return Finding.of(
            calls == [*_WANTED[:SECOND], (_WANTED[SECOND][0], {})], f"{calls}"
        )

    symptoms = (
        symptom(
            "not streamed, it has them",
            _called(WHOLE, _WANTED),
            id="whole-has-them",
            abnormal=False,
        ),
        symptom(
            "streamed without a call before it, it has them",
            _called(ALONE, _WANTED[SECOND:]),
            id="alone-has-them",
            abnormal=False,
        ),
        endpoints_green(),
    )

    @cause("the engine's own parser drops them of the same text, letter by letter")
    def parser_drops(self, reproducers: Reproducers) -> Finding:
        facts = reproducers.facts(REPRODUCER)
        whole, streamed = (facts[f"xlam_{how}"] for how in ("whole", "streamed"))
        met = json.loads(str(whole)) == _GIVEN[SECOND]["arguments"] and streamed == "{}"
        return Finding.of(met, f"whole {whole}, streamed {streamed}")

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return as_in_a_run(self, facts)

    works_after = (answered(WHOLE, STREAMED, ALONE), _called(STREAMED, _WANTED))
    rows = (
        row("streamed, after an empty call", "arguments-gone", "its arguments"),
        row("not streamed", "whole-has-them", "its arguments", abnormal_if=False),
        row("streamed, alone", "alone-has-them", "its arguments", abnormal_if=False),
    )
    said = partial(claim, given=("both-called", unmitigated), refutable_on=affected)
    claims = (
        said(
            "dropped",
            "xlam drops the arguments of any call that follows an empty one",
            by=("arguments-gone", "parser-drops"),
        ),
        said("hunyuan", "hunyuan_a13b does as well", by=_hunyuan_drops),
        said(
            "only-streamed",
            "the answer that is not streamed has them",
            by="whole-has-them",
        ),
    )


SCENARIO = ToolArgumentsDropped()
