"""The four formats and the terminal, from an incident directory alone."""

import base64
import hashlib
import io
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from grids import grid
from junitparser import Error, Failure, JUnitXml, Skipped
from mmrepro import reports
from mmrepro.base.errors import BadIncident, UnwritableOutput
from mmrepro.base.records import ClaimStatus, Fidelity
from mmrepro.base.text import line_spans
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome, Truth, Verdict
from mmrepro.reports import terminal as screens
from mmrepro.reports.blocks import Details, Fence, Table
from mmrepro.reports.incident import compose
from mmrepro.reports.terminal import LINES, print_blocks
from rendered import html, json as json_of, junit, markdown, terminal, unwrapped
from rich.console import Console
from sample import partial_incident, sample_incident


@pytest.fixture(autouse=True)
def a_terminal_with_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is called dumb has no colours and 80 columns, whatever is asked for."""
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "incident.json").write_text(json_of(sample_incident()))
    return tmp_path


# ------------------------------------------------------------------ load


def test_a_missing_or_huge_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadIncident, match="no folder"):
        reports.load(tmp_path / "none")
    with pytest.raises(BadIncident, match=r"holds no incident\.json"):
        reports.load(tmp_path)
    (tmp_path / "incident.json").mkdir()
    with pytest.raises(BadIncident, match="it is a folder"):
        reports.load(tmp_path)
    (tmp_path / "incident.json").rmdir()
    (tmp_path / "incident.json").write_bytes(b" " * 100)
    monkeypatch.setattr("mmrepro.failure.documents.stored.MAX_BYTES", 99)
    with pytest.raises(BadIncident, match="too large"):
        reports.load(tmp_path)


# ------------------------------------------------------------------ files


def test_reports_are_made_from_the_directory_alone(folder: Path) -> None:
    paths = reports.write_reports(folder)
    assert [p.name for p in paths] == ["report.md", "report.html"]
    assert sorted(p.name for p in folder.iterdir()) == [
        "incident.json",
        "report.html",
        "report.md",
    ]
    before = [p.read_bytes() for p in paths]
    assert [p.read_bytes() for p in reports.write_reports(folder)] == before, (
        "made again, the same"
    )


def test_a_report_that_cannot_be_written(folder: Path) -> None:
    (folder / "report.html").mkdir()
    with pytest.raises(UnwritableOutput, match=r"report\.html cannot be written"):
        reports.write_reports(folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        "incident.json",
        "report.html",
        "report.md",
    ]


# ------------------------------------------------------------------ HTML


def test_html_is_self_contained() -> None:
    page = html(sample_incident())
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"; {tag}-src 'sha256-{digest}'" in page
    for fetched in ("<link", "<img", "<iframe", "@import", "url(", " style=", "src="):
        assert fetched not in page
    assert (
        page.index("<meta charset")
        < page.index("Content-Security-Policy")
        < page.index("<style>")
    )


def test_a_picture_has_a_title_a_description_and_units() -> None:
    page = html(sample_incident())
    for told in (
        'role="img"',
        "<title id=",
        "<desc id=",
        "seconds since the run began",
        "% of one core",
        "no answer in 15.0 s",
        ">EngineCore 9",
    ):
        assert told in page


# ------------------------------------------------------------------ Markdown


@pytest.mark.parametrize("size", [1, pytest.param(10, marks=pytest.mark.nightly)])
def test_markdown_stays_below_the_limit_whatever_comes(size: int) -> None:
    whole = sample_incident()
    long = "x|`<" * 500 * size
    evidence = whole.evidence.model_copy(
        update={
            "requests": whole.evidence.requests * 20 * size,
            "probes": whole.evidence.probes * 20 * size,
            "events": whole.evidence.events * 20 * size,
        }
    )
    big = whole.model_copy(
        update={
            "evidence": evidence,
            "failure_detail": [long] * 10 * size,
            "log_lines": [
                whole.log_lines[0].model_copy(update={"text": long + "\n" * 500})
            ]
            * 50
            * size,
            "symptoms": [whole.symptoms[0].model_copy(update={"observed": long})]
            * 50
            * size,
            "claims": [whole.claims[0].model_copy(update={"observed": long})]
            * 50
            * size,
            "sources": [whole.sources[0].model_copy(update={"lines": [long] * 50})]
            * 5
            * size,
            "left_behind": [long] * 50 * size,
            "command": long,
        }
    )
    text = markdown(big)
    assert len(text.encode()) <= 60_000
    assert "Left out to stay within 60,000 bytes" in text
    assert "The stack that matters" in text
    assert len(markdown(whole).encode()) < 30_000


# ------------------------------------------------------------------ partial incidents


@pytest.mark.parametrize("state", ["interrupted", "failed", "complete"])
def test_a_partial_incident_says_so_at_the_top(state: str) -> None:
    incident = partial_incident(state, failure_detail=["no space left"])
    for render in (html, markdown):
        text = render(incident)
        assert "Ctrl-C while the engine was starting" in text
        assert "no space left" in text
        assert "Symptom" not in text
    assert markdown(incident).index("[!WARNING]") < 200
    assert "Ctrl-C while" in terminal(incident)


@pytest.mark.parametrize(
    "field",
    [
        "finished",
        "model",
        "gate",
        "verdict",
        "key_stack",
        "symptoms",
        "log_lines",
        "sources",
        "claims",
        "mitigations",
        "references",
        "stages",
        "evidence",
    ],
)
def test_any_optional_part_may_be_missing(field: str) -> None:
    default = Incident.model_fields[field].get_default(call_default_factory=True)
    incident = sample_incident(**{field: default})
    for render in (html, markdown, junit):
        assert render(incident)
    assert terminal(incident)
    assert terminal(incident, full=True)


EXPECTED = ("nothing", "it", "another")
WORDS = list(product(Outcome, Fidelity, EXPECTED))
SOME_WORDS = [
    (one, how, EXPECTED[n % 3])
    for n, (one, how) in enumerate(product(Outcome, Fidelity))
]


@pytest.mark.parametrize(
    ("outcome", "fidelity", "expected"), grid(WORDS, always=SOME_WORDS)
)
def test_every_outcome_and_fidelity_has_words(
    outcome: Outcome, fidelity: Fidelity, expected: str
) -> None:
    verdict = Verdict(
        outcome=outcome,
        expected={"nothing": None, "it": outcome, "another": Outcome.REPRODUCED}[
            expected
        ],
        as_expected=expected == "it",
        explanation="because",
        conditions=[],
    )
    incident = sample_incident(verdict=verdict, fidelity=fidelity)
    assert html(incident)
    assert "because" in markdown(incident)


def test_only_a_reproduced_run_has_shown_the_cause() -> None:
    assert "## Root cause" in markdown(sample_incident())
    assert "## The known cause (not shown by this run)" in markdown(partial_incident())


@pytest.mark.parametrize(
    ("code", "words"), [(-6, "by signal 6"), (1, "with exit code 1")]
)
def test_an_engine_that_ended_by_itself(code: int, words: str) -> None:
    evidence = sample_incident().evidence.model_copy(update={"engine_exit": code})
    for render in (html, markdown):
        assert f"The engine ended by itself {words}." in render(
            sample_incident(evidence=evidence)
        )
        assert "ghost_keys=1, evicted=False" in render(sample_incident())


# ------------------------------------------------------------------ JUnit


def results(incident: Incident) -> dict[str, object]:
    suites = JUnitXml.fromstring(junit(incident).encode())
    return {
        case.classname.rsplit(".")[-1] + " " + case.name.split(":")[0]: (
            type(case.result[0]) if case.result else "pass"
        )
        for suite in suites
        for case in suite
    }


def test_junit_of_a_run_as_expected() -> None:
    found = results(sample_incident())
    assert found.pop("verdict outcome on vLLM 0.23.0") == "pass"
    assert found.pop("symptom few-syscalls") is Skipped, "unknown, supporting"
    assert found.pop("claim stack") == "pass"
    assert found.pop("claim fixed") == "pass", "a refuted claim is a finding"
    assert "[refuted]" in junit(sample_incident())
    assert found.pop("claim gpu-idle") is Skipped
    assert len(found) == 6
    assert set(found.values()) == {"pass"}


def verdict_with(truth: Truth, **changes: object) -> Verdict:
    verdict = sample_incident().verdict
    assert verdict
    first = verdict.conditions[0].model_copy(update={"truth": truth})
    return verdict.model_copy(update={"conditions": [first], **changes})


@pytest.mark.parametrize(
    ("verdict", "case", "condition"),
    [
        (verdict_with(Truth.MET), "pass", "pass"),
        (verdict_with(Truth.NOT_MET), "pass", Skipped),
        (verdict_with(Truth.UNKNOWN), "pass", Skipped),
        (
            verdict_with(
                Truth.NOT_MET, as_expected=False, outcome=Outcome.NOT_REPRODUCED
            ),
            Failure,
            Failure,
        ),
        (
            verdict_with(
                Truth.UNKNOWN, as_expected=False, outcome=Outcome.INCONCLUSIVE
            ),
            Error,
            Error,
        ),
        (
            verdict_with(Truth.MET, as_expected=True, outcome=Outcome.INCONCLUSIVE),
            Error,
            "pass",
        ),
        (verdict_with(Truth.MET, as_expected=False, expected=None), Skipped, "pass"),
    ],
)
def test_junit_is_never_greener_than_the_run(
    verdict: Verdict, case: object, condition: object
) -> None:
    found = results(sample_incident(verdict=verdict, claims=[]))
    assert list(found.values()) == [case, condition]


def test_junit_without_a_verdict_is_an_error() -> None:
    assert list(results(partial_incident()).values()) == [Error]
    claims = [c for c in sample_incident().claims if c.status is ClaimStatus.NOT_TESTED]
    assert list(results(partial_incident("failed", claims=claims)).values()) == [
        Error,
        Skipped,
    ]


# ------------------------------------------------------------------ terminal


def test_the_end_screen_is_plain_where_it_is_no_terminal() -> None:
    text = terminal(sample_incident(), "~/runs/one/report.html")
    assert "\x1b" not in text
    assert "page: ~/runs/one/report.html" in text
    assert "Claims of the original report" not in text
    whole = terminal(sample_incident(), full=True)
    assert "Claims of the original report" in whole
    assert whole.splitlines()[-1] == text.splitlines()[-1]


def test_a_terminal_shows_each_line_of_a_log_as_it_is() -> None:
    out = io.StringIO()
    print_blocks([Fence("ERROR [/bold] one\n    two")], Console(file=out))
    assert out.getvalue().splitlines() == ["  ERROR [/bold] one", "      two"]


def test_the_end_screen_honours_no_color_and_the_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    colour = {"force_terminal": True, "width": 60}
    assert "\x1b[1;32m" in terminal(sample_incident(), **colour)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3\d", terminal(sample_incident(), **colour))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_end_screen_has_at_most_twenty_rows(width: int) -> None:
    long = "word " * 400
    scenario = sample_incident().scenario.model_copy(update={"summary": long})
    loud = sample_incident(
        scenario=scenario, left_behind=[long] * 9, failure_detail=[long] * 9
    )
    text = terminal(
        loud, "~/report.html", force_terminal=True, width=width, no_color=True
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert sum(max(1, -(-len(line) // width)) for line in plain) <= LINES
    assert unwrapped(plain)[-1].startswith("REPRODUCED")
    assert any("more lines: --full" in line for line in plain) == (width < 80)


def test_what_is_too_long_ends_with_a_sentence_or_else_with_a_word() -> None:
    first = "The server hangs with its queue full."
    long = f"{first} {'word ' * 40}"
    assert long[: screens._length(long, 100)] == first
    # One that ends so early would leave most of the room empty.
    short = f"It hangs. {'word ' * 40}"
    assert short[: screens._length(short, 100)] == short[:99]


def test_a_command_is_never_broken_at_the_edge_of_a_terminal() -> None:
    text = "go on: mmrepro run x --release 0.24.0 or a newer one"
    command = text.index("mmrepro"), text.index(" or")
    rows = [text[a:b] for a, b in line_spans(text, 16, whole=[command])]
    assert rows == ["go on:", "mmrepro run x --release 0.24.0", "or a newer one"]


def test_quiet_is_the_page_and_the_verdict() -> None:
    lines = terminal(sample_incident(), "report.html", quiet=True).splitlines()
    assert lines[0] == "page: report.html"
    assert lines[1].startswith("REPRODUCED")
    assert len(lines) == 2


def test_a_folder_with_spaces_can_be_pasted_into_a_shell() -> None:
    assert "page: ~/'my runs/one; rm -rf x'" in terminal(
        sample_incident(), "~/my runs/one; rm -rf x"
    )


def blocks_of(title: str) -> tuple[list[Table], dict[str, Details]]:
    """The open tables of a section, and its folded parts by the state of their rows."""
    (section,) = [s for s in compose(sample_incident()).shown if s.title == title]
    tables = [block for block in section.blocks if isinstance(block, Table)]
    folded: dict[str, Details] = {}
    for block in section.blocks:
        if isinstance(block, Details):
            (inner,) = block.blocks
            assert isinstance(inner, Table)
            (state,) = {row.status for row in inner.rows}
            folded[state] = block
    return tables, folded


def test_what_is_met_is_folded_and_what_is_open_is_not() -> None:
    (table,), folded = blocks_of("Conditions")
    assert "met" not in {row.status for row in table.rows}
    assert not folded["met"].open


def test_claims_that_were_not_tested_are_folded_and_the_others_are_not() -> None:
    tables, folded = blocks_of("Claims of the original report")
    seen = {row.status for table in tables for row in table.rows}
    assert not seen & {"confirmed", "not tested"}
    assert folded["confirmed"].open
    assert not folded["not tested"].open


@pytest.mark.parametrize("render", [markdown, html])
def test_each_condition_is_named_by_its_id(render: Callable[[Incident], str]) -> None:
    """It is what ``mmrepro judge`` calls it, and what the scenario's file is searched
    for."""
    verdict = sample_incident().verdict
    assert verdict is not None
    text = render(sample_incident())
    for condition in verdict.conditions:
        assert f"`{condition.id}`" in text or f">{condition.id}</code>" in text, (
            condition.id
        )
