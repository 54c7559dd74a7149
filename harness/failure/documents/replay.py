"""Replays and fuzzing sessions, as they are written to ``replay.json`` and
``fuzz.json``. Reports need the document, and the cases beside a replay."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from mmrepro.base.records import (
    Fidelity,
    FindingClass,
    HostFacts,
    Record,
    Setting,
    StandIn,
    WheelFacts,
)
from mmrepro.failure.documents.searches import CampaignDocument
from mmrepro.traffic.case import Origin, ServerWanted
from pydantic import Field, JsonValue, StringConstraints

REPLAY_FILE = "replay.json"
PUBLIC_DIR = "anonymised"
"""Below a finding's folder: its case with other words and pictures, which was played
and fails."""
VERDICTS_FILE = "verdicts.jsonl"
"""Beside it: one line for each play that began and each that ended; ``--resume`` reads
it."""


class Expectation(Record):
    """What a script can hold against one answer: the cached tokens, or the text."""

    operation: str
    cached_at_most: Annotated[
        int | None, Field(description="prompt tokens from the cache")
    ] = None
    text: Annotated[str | None, Field(description="of the answer, whole")] = None


class Sighting(Record):
    """What one oracle holds against one play."""

    finding_class: FindingClass
    bucket: Annotated[
        str,
        Field(
            description="what makes two failures the same one: class, and exception "
            "and top engine frames where there are some"
        ),
    ]
    operations: Annotated[list[str], Field(description="whose answers show it")] = []
    said: Annotated[str, Field(description="one sentence: what was observed")]
    expected: Annotated[
        str, Field(description="one sentence: what a sound engine does")
    ] = ""
    expectations: Annotated[
        list[Expectation],
        Field(description="the same for reproduce.py, where it has numbers"),
    ] = []


class Rate(Record):
    """How often it shows, with an exact (Clopper-Pearson) interval."""

    failed: int
    plays: int
    low: float
    high: float
    confidence: float = 0.95


class Step(Record):
    """One step of the shrinking: what was left out, and what the plays said."""

    what: str
    kept: Annotated[
        bool, Field(description="the smaller case fails likewise, and is kept")
    ]
    requests: Annotated[int, Field(description="in the case that was played")]
    failed: int
    plays: int
    why: str = ""


class Needed(Record):
    """Why something is in the shrunk case."""

    what: Annotated[
        str, Field(description="an operation's id, a server option, a parameter")
    ]
    why: Annotated[str, Field(description="what the plays without it showed")]
    by: Annotated[
        str,
        Field(
            description=(
                'operation that it was argued by, being alike; "": played itself'
            )
        ),
    ] = ""


class KnownUpstream(Record):
    """What the catalogue has of a known failure: what a maintainer asks for first.

    Attributes:
        issue: ``vllm#54195``, with its ``url``; "": none is known.
        fixed: ``fixed in 0.29.0``, or that no release with a fix is known.
    """

    issue: str = ""
    url: str = ""
    fixed: str = ""

    @property
    def words(self) -> str:
        """``vllm#54195, fixed in 0.29.0``."""
        return ", ".join(filter(None, (self.issue, self.fixed)))


class Finding(Record):
    """One failure, told apart by its bucket."""

    id: Annotated[str, Field(description="f1, f2 …; its folder's name as well")]
    finding_class: FindingClass
    bucket: str
    said: str
    expected: str = ""
    expectations: list[Expectation] = []
    operations: Annotated[
        list[str], Field(description="of the case that is left: whose answers show it")
    ] = []
    also: Annotated[
        list[str],
        Field(description="what else the same requests show; the class comes first"),
    ] = []
    known: Annotated[str | None, Field(description="a scenario's name")] = None
    known_variant: str = ""
    known_why: str = ""
    upstream: Annotated[
        KnownUpstream | None,
        Field(
            description="of a known one, by the catalogue",
            exclude_if=lambda upstream: upstream is None,
        ),
    ] = None
    resembles: Annotated[
        list[str],
        Field(
            description="of an unknown one: known failures whose words its exception has",
            exclude_if=lambda names: not names,
        ),
    ] = []
    same_as: Annotated[
        str, Field(description="folder of an earlier finding here with the same bucket")
    ] = ""
    confirmed: Annotated[
        bool,
        Field(description="seen again on fresh servers, as often as was asked for"),
    ] = False
    rate: Rate
    requests: Annotated[int, Field(description="in the case that is left")]
    requests_before: int
    shrunk: Annotated[
        bool, Field(description="nothing more can be left out, as was tried")
    ] = False
    steps: list[Step] = []
    needed: list[Needed] = []
    starts: Annotated[int, Field(description="of servers, for this finding")] = 0
    seconds: float = 0.0
    folder: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9]{0,64}$"),
        Field(description="the replay's"),
    ] = ""
    case_file: Annotated[
        str, Field(description="the case that is left, below the folder")
    ] = ""
    server: ServerWanted
    observed: Annotated[
        dict[str, str],
        Field(
            description="operation: what came of it in the last play: '200 …', '400 "
            "…', 'no answer in 6.0 s', 'left after …', 'not sent'"
        ),
    ] = {}
    stack: Annotated[
        list[str], Field(description="where it stands, innermost first")
    ] = []
    log_lines: list[str] = []
    diagnosis: Annotated[
        str,
        Field(
            description="folder of the incident that a look at the server gave, below"
        ),
    ] = ""
    limits: list[str] = []

    @property
    def title(self) -> str:
        return f"{self.server.label}: {self.finding_class.words}"

    @property
    def needed_options(self) -> list[str]:
        """Options of the server without which it was not observed."""
        return [part.what for part in self.needed if part.what.startswith("--")]

    @property
    def known_name(self) -> str:
        """The scenario and its variant, as ``mmrepro show`` takes them; empty:
        unknown."""
        if not self.known:
            return ""
        return (
            f"{self.known} ({self.known_variant})" if self.known_variant else self.known
        )

    @property
    def observation(self) -> str:
        """What was observed, without a full stop."""
        return self.said.rstrip(".")

    @property
    def expectation(self) -> str:
        """What a sound engine does, without a full stop."""
        return (self.expected or self.finding_class.expected).rstrip(".")


class PlayFacts(Record):
    """One play, as it is counted."""

    number: int
    what: Annotated[str, Field(description="what it was for")]
    requests: int
    state: str
    buckets: list[str] = []
    start_s: float = 0.0
    seconds: float = 0.0
    early: bool = False
    error: Annotated[
        str, Field(description="infrastructure: why it counts for nothing")
    ] = ""


class Answer(Record):
    """What came of one request in the first play."""

    operation: str
    method: str = "POST"
    path: str
    status: Annotated[
        str,
        Field(description="'200', or stuck, left, unsent, broken, as the play saw it"),
    ]
    words: Annotated[
        str, Field(description="first words of the answer; of a refusal its text")
    ]
    seconds: float | None = None
    missing: Annotated[
        list[str],
        Field(
            description="asked for, and in no answer of any play: not tested",
            exclude_if=lambda missing: not missing,
        ),
    ] = []

    @property
    def refused(self) -> bool:
        """Whether the server declined it, so that it tested little."""
        return self.status[:1] == "4"


# ---------------------------------------------------------------------- of a bug report


class ReproVerdict(StrEnum):
    """What a bug report's requests showed."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    DIFFERENT = "different"
    """Something else is wrong than what the report has."""
    UNPROVEN = "unproven"
    """Observed, and not as often as confirms it."""
    NOTHING_TESTED = "nothing-tested"
    """No request came as far as what the report is about."""
    NEEDS_HARDWARE = "needs-hardware"
    """Nothing shows without what is not here: a GPU, several, further servers."""
    NEEDS_MODEL = "needs-model"
    """Nothing shows without the real model: its weights, its architecture."""


class Needs(StrEnum):
    """What a report's server would take that is left out."""

    HARDWARE = "hardware"
    MODEL = "model"
    RELEASE = "release"
    """Code that the release which runs does not have."""
    TRUST = "trust"
    """An option that a report may not set; a user may."""


_REPRO_EXITS: Final = {ReproVerdict.NOT_REPRODUCED: 0, ReproVerdict.REPRODUCED: 1}


class Replaced(Record):
    """What a server has in place of what its command says, and why."""

    what: Annotated[str, Field(description='of the command; "": it has nothing there')]
    by: Annotated[str, Field(description='in its place; "": nothing')] = ""
    why: str
    essential: Annotated[
        bool,
        Field(description="a failure may hang on it: without it, silence says nothing"),
    ] = False
    model: Annotated[bool, Field(description="it is the model")] = False
    needs: Annotated[
        Needs | None,
        Field(
            description="what it would take, where it is essential",
            exclude_if=lambda needs: needs is None,
        ),
    ] = None

    @property
    def words(self) -> str:
        """A sentence."""
        if self.by and self.what:
            return f"{self.by} replaces {self.what}: {self.why}."
        if self.by:
            return f"{self.by} is added: {self.why}."
        return f"{self.what} is left out: {self.why}."


class Claim(Record):
    """What a report has observed, as far as its words say."""

    classes: list[FindingClass] = []
    status: int | None = None
    exceptions: Annotated[
        list[str], Field(description="classes of exceptions in it")
    ] = []
    hardware: Annotated[
        str, Field(description="its words that only a GPU can show")
    ] = ""
    about: Annotated[
        list[str],
        Field(
            description="features of an answer that it names: finish, calls, stop …",
            exclude_if=lambda about: not about,
        ),
    ] = []
    expected: Annotated[
        bool,
        Field(
            description="somebody wrote down what is right (--expect)",
            exclude_if=lambda expected: not expected,
        ),
    ] = False
    rare: Annotated[
        str,
        Field(
            description="its words by which the failure comes and goes",
            exclude_if=lambda rare: not rare,
        ),
    ] = ""
    messages: Annotated[
        list[str],
        Field(
            description="of refusals that it shows",
            exclude_if=lambda messages: not messages,
        ),
    ] = []
    model_code: Annotated[
        str,
        Field(
            description="a file of a model's or a kernel's code that its traceback has",
            exclude_if=lambda file: not file,
        ),
    ] = ""

    @property
    def words(self) -> str:
        """``death``, else ``500``, else the first class; "": nothing is known."""
        first = self.classes[0].value if self.classes else ""
        return first if first == FindingClass.DEATH else str(self.status or first)


class OnRelease(Record):
    """What a finding's case showed on another release."""

    release: str
    finding: str
    state: Literal["fixed", "still", "other", "not-tested"]
    said: str


class ClientEnd(Record):
    """How a report's client ended: its own words, which are evidence for the claim and
    never for what became of the server."""

    code: Annotated[
        int | None, Field(description="its exit code; null: it was ended")
    ] = None
    ended: Annotated[
        str, Field(description='why it was ended; "": it ended by itself')
    ] = ""
    exception: Annotated[
        str, Field(description="class of the exception that it ended with")
    ] = ""
    message: Annotated[
        str,
        Field(
            description="the beginning of what that says",
            exclude_if=lambda message: not message,
        ),
    ] = ""
    line: Annotated[
        int, Field(description="of the script, where it was raised; 0: not known")
    ] = 0
    is_check: Annotated[
        bool,
        Field(
            description="the line checks what a server promises, whatever a model says"
        ),
    ] = False
    in_engine: Annotated[
        bool,
        Field(
            description="the engine in the script's own process ended it",
            exclude_if=lambda in_engine: not in_engine,
        ),
    ] = False
    raised: Annotated[
        list[str],
        Field(
            description="exceptions that the engine there printed",
            exclude_if=lambda raised: not raised,
        ),
    ] = []
    asked: Annotated[int, Field(description="requests that it had sent")] = 0
    refused: Annotated[int, Field(description="of these, without an answer of 2xx")] = 0
    saw: Annotated[
        str,
        Field(
            description="the first answer of 5xx to one of them, as r1 got 500",
            exclude_if=lambda saw: not saw,
        ),
    ] = ""
    failed: Annotated[
        int, Field(description="runs on fresh servers that ended at this check")
    ] = 0
    runs: int = 0


class ReportFacts(Record):
    """The bug report that a replay tests: what it asks for, and what was made of it."""

    source: Annotated[
        str, Field(description="name of the report's file, without folders")
    ] = ""
    server: Annotated[
        str, Field(description="the server's command, as it is written")
    ] = ""
    client: Annotated[str, Field(description="the client, as it is written")] = ""
    claim: Claim = Claim()
    replaced: list[Replaced] = []
    notes: Annotated[
        list[str], Field(description="sentences on how it was read and run")
    ] = []
    isolation: Annotated[
        str, Field(description='how the client was run; "": none was')
    ] = ""
    output: Annotated[str, Field(description="the last that the client printed")] = ""
    died: Annotated[
        bool, Field(description="the server ended while the client ran")
    ] = False
    end: Annotated[
        ClientEnd | None, Field(description="how the client ended; null: none ran")
    ] = None
    shows_output: Annotated[
        bool, Field(description="the report shows what its model said")
    ] = False
    shows_sound: Annotated[
        bool,
        Field(
            description=(
                "the answer that the report shows is what a sound parser makes of its "
                "model's output"
            ),
            exclude_if=lambda shows: not shows,
        ),
    ] = False
    asked: Annotated[
        str, Field(description="--fixed: the release that is compared")
    ] = ""
    fixed: list[OnRelease] = []
    verdict: ReproVerdict | None = None
    said: Annotated[str, Field(description="the verdict in a sentence")] = ""


class Replay(CampaignDocument, kind="replay"):
    """One replay: traffic in, findings out."""

    origin: Origin
    server: ServerWanted
    requests: Annotated[
        int, Field(description="of the case, before anything was left out")
    ]
    images: int = 0
    time: Literal["real", "fast", "order"] = "fast"
    seed: int = 0
    host: HostFacts
    fidelity: Fidelity
    stand_ins: list[StandIn] = []
    settings: Annotated[
        list[Setting],
        Field(description="of the server, what differs from the engine's defaults"),
    ] = []
    wheel: WheelFacts | None = None
    packages: Annotated[
        list[str], Field(description="name==version, of its environment")
    ] = []
    start_mode: str = ""
    deadline_s: float | None = None
    answers: Annotated[
        list[Answer], Field(description="of the first play: what each request tested")
    ] = []
    report: Annotated[
        ReportFacts | None,
        Field(description="the bug report that it tests; null: none"),
    ] = None
    plays: list[PlayFacts] = []
    kept_s: Annotated[
        float, Field(description="in plays that an earlier call had made")
    ] = 0.0
    budget: Annotated[int, Field(description="most starts of servers")]
    findings: list[Finding] = []
    unconfirmed: Annotated[
        list[Sighting], Field(description="seen once, and not again: told, not counted")
    ] = []
    counted: Annotated[
        dict[str, int],
        Field(description="seen and no finding: near-ties, batch numerics …"),
    ] = {}
    unseen: Annotated[
        list[str], Field(description="what could not be judged, and why")
    ] = []
    untestable: Annotated[
        list[str],
        Field(
            description=(
                "what failed for the limits of this machine or of a stand-in: "
                "no finding"
            )
        ),
    ] = []
    limits: list[str] = []

    @property
    def tested(self) -> list[Answer]:
        """Answers of the first play that test something: those of mere looks (GET) only
        where there are no others."""
        sent = [answer for answer in self.answers if answer.status != "unsent"]
        looks = ("GET", "HEAD", "OPTIONS")
        return [answer for answer in sent if answer.method not in looks] or sent

    @property
    def nothing_tested(self) -> str:
        """Why the requests tested nothing, in a sentence: all were refused; "": some
        did."""
        tested = self.tested
        if self.findings or self.unconfirmed or not tested:
            return ""
        refused = [answer for answer in tested if answer.refused]
        if len(refused) < len(tested):
            return ""
        first = refused[0]
        others = ""
        if len(refused) > 1:
            others = f", and {len(refused) - 1} more were refused"
        return f"nothing was tested: {first.operation} got {first.words}{others}"

    @property
    def exit_code(self) -> int:
        """1: a failure is confirmed, known or not; 3: unproven only, nothing was
        tested, or not testable here; 0: neither. Of a bug report: 1: reproduced; 0: it
        is not; 3: undecided."""
        if self.report is not None and self.report.verdict is not None:
            return _REPRO_EXITS.get(self.report.verdict, 3)
        if any(finding.confirmed for finding in self.findings):
            return 1
        unproven = bool(self.findings or self.unconfirmed)
        untestable = bool(self.untestable) and not self.findings
        return 3 if unproven or untestable or self.nothing_tested else 0


def bucket_words(buckets: list[str]) -> str:
    """Their classes, and of a hang where it stands: ``hang in put, server-error``."""
    words: dict[str, None] = {}
    for bucket in buckets:
        parts = bucket.split("/")
        kinds = [part for part in parts if part in list(FindingClass)]
        kind = kinds[0] if kinds else parts[0]
        place = parts[-1].rpartition(" > ")[2]
        if kind == FindingClass.HANG and place:
            words[f"{kind} in {place}"] = None
        else:
            words[kind] = None
    return ", ".join(words)


FUZZ_FILE = "fuzz.json"
EPISODES_FILE = "episodes.jsonl"
"""Beside it: a line for each episode that began, ended, or was pursued; ``--resume``
reads it."""
EPISODES_DIR = "episodes"
"""Below the session's folder: ``0007/case.json`` is what episode 7 sent."""

_Place = Annotated[
    str, StringConstraints(pattern=r"^(?:e\d{4,6}(?:-f\d{1,4}){0,2}(?:/f\d{1,4})?)?$")
]


class Learnt(Record):
    """One number of the server that lengths are chosen around."""

    name: Annotated[
        str, Field(description="context, KV cache, block, batch, or a refusal's")
    ]
    tokens: int
    source: Annotated[str, Field(description="where it was told")]


class Episode(Record):
    """One run of generated requests on one fresh server."""

    number: Annotated[
        int, Field(description="0: the one that learns the server's limits")
    ]
    kind: Literal["learning", "mixed", "steady", "many", "fields", "crossed", "scripts"]
    origin: Annotated[
        str,
        Field(
            description=(
                '"new", or what it was changed from: "episode 3", a file\'s name'
            )
        ),
    ] = "new"
    switches: Annotated[list[str], Field(description="what its requests may have")] = []
    requests: int
    state: Annotated[str, Field(description="how its play ended")] = ""
    answers: Annotated[
        dict[str, int],
        Field(description="status, stuck, left, unsent or broken: requests"),
    ] = {}
    buckets: Annotated[
        list[str], Field(description="of what the oracles hold against it")
    ] = []
    new: Annotated[
        int, Field(description="things seen that no episode before it showed")
    ] = 0
    compared: Annotated[
        bool, Field(description="its answers were held against a reference")
    ] = False
    starts: Annotated[int, Field(description="of servers, without what pursued it")] = 1
    seconds: float = 0.0
    pursued: Annotated[
        _Place, Field(description="folder of the replay that pursued it")
    ] = ""


class Found(Record):
    """A finding, and where it came from."""

    id: Annotated[
        str, Field(description="F1, F2 …, in the order in which they were seen")
    ]
    episode: int
    after_s: Annotated[
        float, Field(description="seconds of fuzzing before it was first seen")
    ]
    replay: Annotated[_Place, Field(description="folder of the replay that pursued it")]
    folder: Annotated[
        _Place, Field(description="of the finding: report, case, reproduce.py")
    ]
    finding: Finding


class SeenOnce(Record):
    """What one episode showed, and no further play."""

    episode: int
    sighting: Sighting


class SideDifference(Record):
    """What two sides answer otherwise to one request: a finding of ``--against``."""

    id: str
    field: Annotated[
        str, Field(description="of the answer: status, text, usage.prompt_tokens …")
    ]
    what: Annotated[
        str, Field(description="how it differs, the same for all requests: 400 → 200")
    ]
    features: Annotated[
        list[str],
        Field(description="what the request has that shows it, after shrinking"),
    ] = []
    statement: Annotated[str, Field(description="one sentence, of this request")]
    request: Annotated[
        dict[str, JsonValue],
        Field(description="method, path and body, without a model"),
    ]
    episode: int
    shrunk: bool = False
    pairs: Annotated[
        int, Field(description="of fresh servers that were asked it once more")
    ] = 0
    shown: Annotated[int, Field(description="in so many of those pairs")] = 0

    @property
    def confirmed(self) -> bool:
        """Every fresh pair of servers showed it."""
        return 0 < self.pairs == self.shown


class AimedFunction(Record):
    """A function that two sides have otherwise, and what of it the requests ran."""

    file: str
    name: Annotated[str, Field(description="with the classes around it")]
    lines: Annotated[
        int, Field(description="that differ and can run, of both sides")
    ] = 0
    entered: Annotated[bool, Field(description="by a request, on either side")] = False
    reached: Annotated[int, Field(description="of those lines")] = 0
    missed: Annotated[
        str,
        Field(description="lines of the new side that differ and did not run: 7, 9-12"),
    ] = ""
    requests: Annotated[
        list[str], Field(description="some that ran it: what they have")
    ] = []


class AimedChange(Record):
    """What two sides of ``--against`` have otherwise, as a target of requests."""

    files: list[str]
    functions: list[AimedFunction] = []
    flags: Annotated[
        list[str],
        Field(description="options of both servers, since the changed code names them"),
    ] = []
    kept: Annotated[
        int, Field(description="requests that reached a line first, and were mutated")
    ] = 0
    unread: Annotated[list[str], Field(description="what was not looked for")] = []

    @property
    def lines(self) -> int:
        return sum(function.lines for function in self.functions)

    @property
    def reached(self) -> int:
        return sum(function.reached for function in self.functions)


class Fuzz(CampaignDocument, kind="fuzz"):
    """One session: episodes in, findings out. Nothing is claimed absent."""

    server: ServerWanted
    profile: str
    seed: int
    budget_s: float
    elapsed_s: Annotated[
        float, Field(description="of the budget, earlier calls included")
    ] = 0.0
    blind: Annotated[bool, Field(description="nothing was named")] = False
    source: Annotated[
        str, Field(description="--from: the file's name, without folders")
    ] = ""
    host: HostFacts
    fidelity: Fidelity
    stand_ins: list[StandIn] = []
    settings: list[Setting] = []
    wheel: WheelFacts | None = None
    packages: list[str] = []
    start_mode: str = ""
    deadline_s: float | None = None
    learnt: list[Learnt] = []
    episodes: list[Episode] = []
    features: Annotated[
        dict[str, int],
        Field(
            description=(
                "different things seen: log lines, answers, metrics, pairs of requests"
            )
        ),
    ] = {}
    found: list[Found] = []
    once: Annotated[list[SeenOnce], Field(description="seen once, and not again")] = []
    starts: Annotated[int, Field(description="of servers, all together")] = 0
    pursuing_s: Annotated[
        float, Field(description="of elapsed_s, spent on findings")
    ] = 0.0
    counted: dict[str, int] = {}
    unseen: list[str] = []
    limits: list[str] = []
    other: Annotated[
        ServerWanted | None, Field(description="--against: the other side's server")
    ] = None
    differences: Annotated[
        list[SideDifference], Field(description="of the two sides, in the order found")
    ] = []
    aim: Annotated[
        AimedChange | None,
        Field(description="--against: where both sides' Python differs"),
    ] = None

    @property
    def requests(self) -> int:
        """Sent by episodes, without what pursued them."""
        return sum(episode.requests for episode in self.episodes)

    @property
    def exit_code(self) -> int:
        """1: unknown and confirmed; 3: unproven only; 0: neither."""
        if any(f.finding.confirmed and f.finding.known is None for f in self.found):
            return 1
        if any(difference.confirmed for difference in self.differences):
            return 1
        unproven = any(not f.finding.confirmed for f in self.found) or bool(self.once)
        unproven = unproven or bool(self.differences)
        return 3 if unproven else 0
