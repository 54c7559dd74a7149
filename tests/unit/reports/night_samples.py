"""Made-up nights of a realistic matrix: to test the reports of a night, and to look at
them."""

import io
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial

from mmrepro.base.records import Fidelity, HostFacts, Moment
from mmrepro.failure.documents.ledger import (
    Attempt,
    Cell,
    Event,
    EventKind,
    Lost,
    Night,
    NightState,
    Planned,
)
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.history.concerns import Quarantine, QuarantineEntry
from mmrepro.history.ledger import History
from mmrepro.history.nightly import NightView
from mmrepro.reports.blocks import Block
from mmrepro.reports.documents import render
from mmrepro.reports.nightly import KIND, compose
from mmrepro.reports.terminal import print_blocks, print_page
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from rich.console import Console

FIRST = datetime(2026, 11, 9, 1, 0, tzinfo=UTC)
HOST = HostFacts(
    os="Linux", kernel="6.1", cpu="a CPU", cores=2, memory_bytes=8 << 30, python="3.11"
)
REPRODUCED, HEALTHY = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED


@dataclass(frozen=True)
class Subject:
    """A scenario of the made-up matrix; ``cure``: a mitigation that it is run with as
    well."""

    name: str
    engine: str
    affected: str
    title: str
    variant: str = ""
    cure: str = ""
    fidelity: Fidelity = Fidelity.CPU


VLLM = (
    "0.11.0",
    "0.12.0",
    "0.13.0",
    "0.14.0",
    "0.16.0",
    "0.18.0",
    "0.20.0",
    "0.22.0",
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.28.0",
    "0.30.0",
    "0.32.0",
    "0.33.0",
)
SGLANG = ("0.5.6", "0.5.9", "0.5.13", "0.5.17", "0.5.21", "0.5.23")
LMDEPLOY = ("0.6.4", "0.7.0.post3", "0.10.0", "0.18.0")
RELEASES = {"vllm": VLLM, "sglang": SGLANG, "lmdeploy": LMDEPLOY, "minivllm": ("0.1",)}
SUBJECTS = (
    Subject(
        "ghost-key-eviction",
        "vllm",
        ">=0.14.0,<0.24.0",
        "The engine spins for ever in the eviction of a ghost key",
        cure="no-mm-cache",
    ),
    Subject(
        "mm-cache-desync",
        "vllm",
        ">=0.22.0",
        "The caches of two processes disagree: one request fails",
        variant="rejected",
    ),
    Subject(
        "chunked-mm-prefill", "vllm", ">=0.11.0,<0.16.0", "A chunk ends within an image"
    ),
    Subject(
        "encoder-cache-overflow",
        "vllm",
        ">=0.11.0,<0.13.0",
        "An image larger than the cache",
    ),
    Subject(
        "mm-prefill-contract",
        "vllm",
        ">=0.16.0,<0.30.0",
        "Embeddings of the wrong length",
    ),
    Subject(
        "pad-value-collision",
        "sglang",
        "<0.5.13",
        "B is answered with A's features",
        fidelity=Fidelity.CPU_STAND_IN,
    ),
    Subject(
        "shape-alias",
        "sglang",
        ">=0.5.6",
        "One buffer in two layouts",
        fidelity=Fidelity.CPU_STAND_IN,
    ),
    Subject(
        "kv-growth-crash",
        "lmdeploy",
        "<0.10.0",
        "The cache outgrows the memory: it crashes",
        cure="small-batch",
        fidelity=Fidelity.CPU_STAND_IN,
    ),
    Subject(
        "borrowed-faults",
        "minivllm",
        "==0.1",
        "A fault, planted with probability 0.5",
        variant="coin",
        fidelity=Fidelity.TEACHING_ENGINE,
    ),
)


def moment(when: datetime) -> Moment:
    return Moment(wall=when, mono=when.timestamp() % 1e6)


def night(
    name: str,
    when: datetime = FIRST,
    state: NightState = NightState.COMPLETE,
    minutes: float = 41,
) -> Night:
    return Night(
        id=name,
        created=moment(when),
        state=state,
        mmrepro_version="0.1.0",
        machine="two-cores",
        finished=moment(when + timedelta(minutes=minutes)),
        host=HOST,
        every_h=24.0,
        command="mmrepro matrix run --releases boundary,newest --out nightly",
    )


def attempt(
    cell: Cell,
    name: str,
    index: int = 1,
    outcome: Outcome | None = REPRODUCED,
    *,
    expected: Outcome | None = None,
    lost: Lost | None = None,
    role: str = "planned",
    seconds: float = 25.0,
    fidelity: Fidelity = Fidelity.CPU,
    key: str = "",
) -> Attempt:
    said = {
        REPRODUCED: "symptom and cause were seen",
        HEALTHY: "the trigger arrived and nothing failed",
        Outcome.DIFFERENT_FAILURE: "the symptom is there, its cause is another",
        Outcome.INCONCLUSIVE: "the trigger was not seen to arrive",
        None: "",
    }
    if outcome is None:
        lost = lost or Lost.INFRASTRUCTURE
    return Attempt(
        night=name,
        cell=cell.id,
        index=index,
        role=role,
        created=moment(FIRST),
        seconds=seconds,
        outcome=outcome,
        expected=expected,
        explanation=said[outcome],
        lost=lost,
        error="the engine's environment could not be built: no space left"
        if lost
        else "",
        conditions={"hang": Truth.MET} if outcome is REPRODUCED else {},
        key=key or f"{cell.id[-8:]}0123456789abcdef",
        parts={"engine": cell.release},
        fidelity=fidelity if outcome else None,
        start_mode="warm",
        machine="two-cores",
        incident=f"incidents/{name}/{cell.id}/run-{index}" if outcome else "",
        command=f"mmrepro run {cell.scenario} --release {cell.release}",
    )


def history_of(records: Iterable[Night | Planned | Attempt | Event]) -> History:
    made = History()
    for record in records:
        made.take(record)
    return made


def expected_of(subject: Subject, release: str, cured: bool) -> Outcome:
    hit = SpecifierSet(subject.affected).contains(Version(release), prereleases=True)
    return REPRODUCED if hit and not cured else HEALTHY


def realistic(
    nights: int = 9,
    subjects: Sequence[Subject] = SUBJECTS,
    releases: dict[str, Sequence[str]] | None = None,
) -> History:
    """Nights in which little happens, and a last one in which something of everything
    does."""
    chosen = releases or RELEASES
    dice = random.Random(7)
    records: list[Night | Planned | Attempt | Event] = []
    for number in range(nights):
        last = number == nights - 1
        when = FIRST + timedelta(days=number)
        name = when.strftime("%Y-%m-%d")
        records.append(night(name, when))
        squares = [
            (
                subject,
                Cell(
                    scenario=subject.name,
                    variant=subject.variant,
                    engine=subject.engine,
                    release=release,
                    device="cpu",
                    mitigations=cure,
                ),
                bool(cure),
            )
            for subject in subjects
            for cure in ([(), (subject.cure,)] if subject.cure else [()])
            for release in chosen[subject.engine]
            if last or release != "0.33.0"
        ]
        for subject, cell, cured in squares:
            wanted = expected_of(subject, cell.release, cured)
            title, affected = subject.title, subject.affected
            records.append(
                Planned(
                    night=name,
                    cell=cell,
                    expected=wanted,
                    title=title,
                    affected=affected,
                )
            )
            records += _runs(subject, cell, name, wanted, dice, last)
        if last:
            records += _events(name, [c for _, c, _ in squares])
    return history_of(records)


def _runs(
    subject: Subject,
    cell: Cell,
    name: str,
    wanted: Outcome,
    dice: random.Random,
    last: bool,
) -> list[Attempt]:
    outcomes: list[tuple[Outcome | None, str]] = [(wanted, "planned")]
    if subject.variant == "coin":
        coins = [REPRODUCED, HEALTHY, REPRODUCED, REPRODUCED]
        outcomes = [(o, "confirm" if n else "planned") for n, o in enumerate(coins)]
    if last:
        planted: dict[tuple[str, str], list[tuple[Outcome | None, str]]] = {
            ("ghost-key-eviction", "0.33.0"): [
                (REPRODUCED, "planned"),
                (REPRODUCED, "confirm"),
                (REPRODUCED, "confirm"),
            ],
            ("mm-cache-desync", "0.33.0"): [(HEALTHY, "planned"), (HEALTHY, "confirm")],
            ("shape-alias", "0.5.17"): [(HEALTHY, "planned"), (HEALTHY, "confirm")],
            ("mm-prefill-contract", "0.23.0"): [
                (Outcome.DIFFERENT_FAILURE, "planned"),
                (Outcome.DIFFERENT_FAILURE, "confirm"),
            ],
            ("kv-growth-crash", "0.18.0"): [(None, "planned"), (None, "retry")],
            ("encoder-cache-overflow", "0.30.0"): [],
            ("chunked-mm-prefill", "0.18.0"): [(Outcome.INCONCLUSIVE, "planned")],
        }
        if not cell.mitigations:
            outcomes = planted.get((cell.scenario, cell.release), outcomes)
    return [
        attempt(
            cell,
            name,
            n,
            o,
            expected=wanted if o else None,
            role=role,
            seconds=round(dice.uniform(18, 41), 1),
            fidelity=subject.fidelity,
        )
        for n, (o, role) in enumerate(outcomes, 1)
    ]


def _events(name: str, cells: Sequence[Cell]) -> list[Event]:
    def of(scenario: str, release: str) -> Cell | None:
        return next(
            (
                c
                for c in cells
                if (c.scenario, c.release) == (scenario, release) and not c.mitigations
            ),
            None,
        )

    told = [
        (
            EventKind.NEW_RELEASE,
            None,
            "vllm",
            "0.33.0",
            "vllm 0.33.0 is new in the matrix.",
            "",
            "",
            [],
        ),
        (
            EventKind.BUG_RETURNED,
            of("ghost-key-eviction", "0.33.0"),
            "vllm",
            "0.33.0",
            (
                "ghost-key-eviction is back in vllm 0.33.0: it was fixed in 0.24.0 (3 "
                "of 3 runs)."
            ),
            "not-reproduced",
            "reproduced",
            ["engine"],
        ),
        (
            EventKind.FIXED_IN,
            of("mm-cache-desync", "0.33.0"),
            "vllm",
            "0.33.0",
            "mm-cache-desync (rejected) is fixed in vllm 0.33.0 (2 of 2 runs).",
            "reproduced",
            "not-reproduced",
            ["engine"],
        ),
        (
            EventKind.DIFFERENT_FAILURE,
            of("mm-prefill-contract", "0.23.0"),
            "vllm",
            "0.23.0",
            "mm-prefill-contract on vllm 0.23.0 now ends in another failure.",
            "reproduced",
            "different-failure",
            [],
        ),
        (
            EventKind.DRIFT,
            of("shape-alias", "0.5.17"),
            "sglang",
            "0.5.17",
            (
                "shape-alias on sglang 0.5.17 has another verdict; its packages "
                "changed beside it."
            ),
            "reproduced",
            "not-reproduced",
            ["packages"],
        ),
        (
            EventKind.COVERAGE_LOST,
            of("kv-growth-crash", "0.18.0"),
            "lmdeploy",
            "0.18.0",
            "kv-growth-crash on lmdeploy 0.18.0 had a verdict and has none now.",
            "not-reproduced",
            "lost",
            [],
        ),
    ]
    return [
        Event(
            night=name,
            what=what,
            identity=f"{what}:{n}",
            cell=cell.id if cell else "",
            engine=engine,
            release=release,
            text=text,
            before=before,
            now=now,
            changed=changed,
        )
        for n, (what, cell, engine, release, text, before, now, changed) in enumerate(
            told
        )
        if cell is not None or what is EventKind.NEW_RELEASE
    ]


# ------------------------------------------------------------------ one night

NONE = Quarantine()


def excused(*cells: tuple[str, str]) -> Quarantine:
    """With an entry for each of these scenarios and releases."""
    return Quarantine(
        tuple(
            QuarantineEntry(
                scenario=scenario,
                releases=f"=={release}",
                reason="known drift",
                issue="#41",
                owner="us",
                expires=date(2026, 12, 1),
            )
            for scenario, release in cells
        )
    )


def cell(
    release: str = "0.23.0", scenario: str = "ghost-key-eviction", **more: str
) -> Cell:
    return Cell(scenario=scenario, engine="vllm", release=release, device="cpu", **more)


def one_night(
    *squares: tuple[Cell, Outcome | None, list[Attempt]], **more: str
) -> History:
    """A night of these cells, with what was expected of each and its runs."""
    records: list[object] = [night("n")]
    records += [Planned(night="n", cell=c, expected=e, **more) for c, e, _ in squares]
    records += [a for _, _, runs in squares for a in runs]
    return history_of(records)  # type: ignore[arg-type]


def shown(history: History, quarantine: Quarantine = NONE) -> NightView:
    return NightView(history, history.nights[-1], quarantine)


def runs_of(
    c: Cell, expected: Outcome | None, *outcomes: Outcome | None
) -> list[Attempt]:
    return [
        attempt(c, "n", n, o, expected=expected if o else None)
        for n, o in enumerate(outcomes, 1)
    ]


def on_terminal(blocks: NightView | list[Block], width: int = 160) -> str:
    """All sections of a nightly run, or some blocks."""
    console = Console(file=io.StringIO(), width=width)
    if isinstance(blocks, NightView):
        print_page(compose(blocks), console, full=True)
    else:
        print_blocks(blocks, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


markdown = partial(render, KIND, format="md")
html = partial(render, KIND, format="html")
junit = partial(render, KIND, format="junit")
as_json = partial(render, KIND, format="json")
