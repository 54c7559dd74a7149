"""`*.mmrepro.toml` as tests: what is collected, and what pytest says of each
outcome."""

import _thread
import re
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import plugin_fakes
import pytest
from mmrepro.runs.options import StartMode
from plugin_fakes import Faked, before_the_summary

BAD, GOOD = "reproduced", "not-reproduced"
FILE = "nightly.mmrepro.toml"
CELL = '[[cell]]\nscenario = "ghost-key-eviction"\n'
NAME = "ghost-key-eviction"
"""Fails on 0.14.0 to 0.23.0."""


def toml(releases: str = "0.23.0", matrix: str = "", more: str = "") -> str:
    return f'[matrix]\ndevice = "cpu"\nreleases = "{releases}"\n{matrix}\n{CELL}{more}'


def night(
    pytester: pytest.Pytester, *arguments: str, text: str = ""
) -> pytest.RunResult:
    Path(FILE).write_text(text or toml())
    return pytester.runpytest_inprocess(FILE, *arguments)


def said(result: pytest.RunResult) -> str:
    return result.stdout.str()


def cases(path: str = "junit.xml") -> dict[str, ET.Element]:
    found = ET.parse(path).iter("testcase")
    return {f"{case.get('classname')} {case.get('name')}": case for case in found}


def properties(case: ET.Element) -> dict[str, str]:
    return {p.get("name", ""): p.get("value", "") for p in case.iter("property")}


# ---------------------------------------------------------------- outcomes


@pytest.mark.parametrize(
    ("came", "outcome", "runs", "words"),
    [
        ([BAD], "passed", 1, []),
        (
            [GOOD],
            "failed",
            4,
            ["not-reproduced; reproduced was expected", "4 × not-reproduced"],
        ),
        (
            ["different-failure"],
            "failed",
            4,
            ["different-failure; reproduced was expected"],
        ),
        (
            [GOOD, BAD],
            "failed",
            4,
            ["flaky: 3 of 4 runs reproduced it; reproduced was expected"],
        ),
        (["inconclusive"], "errors", 4, ["inconclusive", "as the fake has it"]),
        (
            ["infrastructure"],
            "errors",
            2,
            ["nothing was learnt, infrastructure in each of 2 runs"],
        ),
        (["infrastructure", BAD], "passed", 2, []),
        (["timeout"], "errors", 1, ["nothing was learnt, timeout", "it broke"]),
        (["unloadable"], "errors", 1, ["nothing was learnt, unloadable", "it broke"]),
        (["usage"], "errors", 1, ["nothing was learnt, usage", "it broke"]),
    ],
)
def test_outcomes(
    faked: Faked, came: list[str], outcome: str, runs: int, words: list[str]
) -> None:
    result = night(faked({"0.23.0": came}), "--junitxml=junit.xml")
    result.assert_outcomes(**{outcome: 1})
    assert result.ret == (0 if outcome == "passed" else 1)
    assert sum(len(t.cells) for t in plugin_fakes.TRIALS) == runs
    (case,) = cases().values()
    kinds = {"passed": None, "failed": "failure", "errors": "error"}
    wrong = [child for child in case if child.tag in ("failure", "error", "skipped")]
    assert [child.tag for child in wrong] == [k for k in [kinds[outcome]] if k]
    for text in words:
        assert text in said(result)
        assert text in wrong[0].get("message", "")
    assert "Traceback" not in said(result)
    assert "/pytest_plugin/" not in said(result)
    if words:
        incident = Path(properties(case)["mmrepro.incident"])
        assert (incident / "whole").is_file()
        report = f"{incident}/report.md"
        assert before_the_summary(said(result)).count(report) == 2, (
            "with the reason, and at the end"
        )
        assert "run again: mmrepro run" in said(result)
    else:
        assert "reports of what failed" not in said(result)


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_ci_machine_reads_the_reason_in_the_summary_too(
    faked: Faked, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    """pytest leaves lines of its summary whole where CI or BUILD_NUMBER is set."""
    monkeypatch.delenv("BUILD_NUMBER", raising=False)
    monkeypatch.setenv("CI", ci)
    text = said(night(faked({"0.23.0": [GOOD]})))
    assert before_the_summary(text).count("/run-4/report.md") == 2
    whole = ci or pytest.version_tuple < (9,)  # where pytest does not cut a reason
    assert text.count("/run-4/report.md") == (3 if whole else 2)


def test_inconclusive_can_be_a_skip(faked: Faked) -> None:
    inner = faked({"0.23.0": ["inconclusive"]})
    for option in (
        ["--mmrepro-inconclusive=skip"],
        ["-o", "mmrepro_inconclusive=skip"],
    ):
        result = night(inner, "-rs", *option)
        result.assert_outcomes(skipped=1)
        assert f"{NAME} on vllm 0.23.0 (cpu): inconclusive: as the fake has it" in said(
            result
        )
    both = ("--mmrepro-inconclusive=error", "-o", "mmrepro_inconclusive=skip")
    night(inner, *both).assert_outcomes(errors=1)
    wrong = night(inner, "-o", "mmrepro_inconclusive=maybe")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    assert wrong.errlines == [
        "ERROR: mmrepro_inconclusive is 'maybe'; it is error or skip.",
        "",
    ]


def test_other_problems_are_no_skip(faked: Faked) -> None:
    result = night(faked({"0.23.0": ["timeout"]}), "--mmrepro-inconclusive=skip")
    result.assert_outcomes(errors=1)


def test_the_report_of_a_flaky_cell_is_of_what_was_not_expected(faked: Faked) -> None:
    night(faked({"0.23.0": [GOOD, BAD]}), "--junitxml=junit.xml")
    (case,) = cases().values()
    assert properties(case)["mmrepro.incident"].endswith("/run-1")
    assert (
        properties(case)["mmrepro.runs"]
        == "3 × reproduced, 1 × not-reproduced, under one key"
    )


def test_junit(faked: Faked) -> None:
    world = {
        "0.22.0": [BAD],
        "0.23.0": [GOOD],
        "0.24.0": [GOOD],
        "0.24.1": ["infrastructure"],
    }
    result = night(
        faked(world), "--junitxml=junit.xml", text=toml("0.22.0,0.23.0,0.24.0,0.24.1")
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)
    found = cases()
    assert list(found) == [f"{FILE}.vllm {release} (cpu) {NAME}" for release in world]
    told = [properties(case) for case in found.values()]
    assert [p["mmrepro.outcome"] for p in told] == [BAD, GOOD, GOOD, "lost"]
    assert [p["mmrepro.expected"] for p in told] == [BAD, BAD, GOOD, GOOD]
    assert [p["mmrepro.release"] for p in told] == list(world)
    assert {p["mmrepro.engine"] for p in told} == {"vllm"}
    assert ["mmrepro.key" in p for p in told] == [True, True, True, False]
    assert len({p["mmrepro.cell"] for p in told}) == 4


# ---------------------------------------------------------------- what is collected


MANY = toml("0.22.0,0.23.0", more='mitigation = ["none", "disable-mm-cache"]')
ALL = [
    f"{FILE}::vllm 0.22.0 (cpu)::{NAME}",
    f"{FILE}::vllm 0.22.0 (cpu)::{NAME} +disable-mm-cache",
    f"{FILE}::vllm 0.23.0 (cpu)::{NAME}",
    f"{FILE}::vllm 0.23.0 (cpu)::{NAME} +disable-mm-cache",
]


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([FILE], ALL),
        ([FILE, "-k", "0.22.0"], ALL[:2]),
        ([FILE, "-k", "disable-mm-cache and not 0.22.0"], ALL[3:]),
        ([ALL[1]], ALL[1:2]),
        ([f"{FILE}::vllm 0.23.0 (cpu)"], ALL[2:]),
        ([FILE, "--deselect", ALL[1]], [ALL[0], *ALL[2:]]),
        (["."], []),
        ([], []),
        ([".", "--mmrepro"], ALL),
        ([".", "-o", "addopts=--mmrepro"], ALL),
        (["-o", f"testpaths={FILE}"], ALL),
    ],
)
def test_what_is_collected(
    faked: Faked, arguments: list[str], names: list[str]
) -> None:
    inner = faked({"else": [BAD]})
    Path(FILE).write_text(MANY)
    assert (
        collected(inner.runpytest_inprocess("--collect-only", "-q", *arguments))
        == names
    )
    assert not plugin_fakes.TRIALS


def test_only_what_is_selected_is_run(faked: Faked) -> None:
    inner = faked({"0.23.0": [BAD], "disable-mm-cache": [GOOD]})
    result = night(inner, "-k", "0.23.0", text=MANY)
    result.assert_outcomes(passed=2, deselected=2)
    assert [
        (c.release, c.mitigations) for t in plugin_fakes.TRIALS for c in t.cells
    ] == [
        ("0.23.0", ()),
        ("0.23.0", ("disable-mm-cache",)),
    ]
    (provisions,) = plugin_fakes.PROVISIONS
    assert [word for word in provisions.told if word.startswith(("warm 2", "cold"))][
        -1
    ] == "cold"
    assert "warm 2" in provisions.told, "both are to share a fork server"
    assert "prefetch 0.22.0" not in provisions.told


def test_what_is_deselected_is_not_counted_on(faked: Faked) -> None:
    night(faked({"else": [BAD]}), "-k", "0.23.0 and not disable", text=MANY)
    (provisions,) = plugin_fakes.PROVISIONS
    assert "warm 2" not in provisions.told, "one run has no use for a fork server"


def test_one_environment_is_warm_at_a_time_and_the_next_one_fetched(
    faked: Faked,
) -> None:
    night(faked({"else": [BAD]}), text=MANY)
    (provisions,) = plugin_fakes.PROVISIONS
    parents = [
        word for word in provisions.told if word in ("warm 2", "prefetch 0.23.0")
    ]
    assert parents[:3] == ["warm 2", "prefetch 0.23.0", "prefetch 0.23.0"]
    assert parents[-1] == "warm 2"
    first, second = (i for i, word in enumerate(provisions.told) if word == "warm 2")
    assert "done 0.22.0" in provisions.told[first:second]
    assert provisions.told[-2:] == ["done 0.23.0", "stop"]
    expected = sum(
        int(w.split()[1]) for w in provisions.told if w.startswith("expect ")
    )
    assert expected == sum(w.startswith("done ") for w in provisions.told)


def test_setup_plan_runs_nothing(faked: Faked) -> None:
    night(faked({"else": [BAD]}), "--setup-plan")
    assert not plugin_fakes.TRIALS


def test_a_name_does_not_depend_on_where_pytest_is_started(faked: Faked) -> None:
    inner = faked({"else": [BAD]})
    below = inner.mkdir("below")
    source = "from mmrepro.scenarios.ghost_key_eviction import SCENARIO\n"
    (below / "mine.py").write_text(source)
    text = (
        '[matrix]\ndevice = "cpu"\nreleases = "own"\n[[cell]]\nscenario = "./mine.py"\n'
    )
    (below / FILE).write_text(text)
    inner.makeini("[pytest]")
    arguments = ("--collect-only", "-q", "--mmrepro", "--rootdir", str(inner.path))
    here = collected(inner.runpytest_inprocess(*arguments, "below"))
    assert here == [f"below/{FILE}::vllm 0.23.0 (cpu)::mine.py"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(below)
        there = collected(inner.runpytest_inprocess(*arguments, str(below)))
    assert [name.rpartition(FILE)[2] for name in there] == [
        "::vllm 0.23.0 (cpu)::mine.py"
    ]


# ---------------------------------------------------------------- wrong files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[matrix", f"{FILE} is not valid TOML: "),
        ("[matrix]\nrelease = 1\n", "[matrix], key 'release': there is no such key."),
        ('[[cell]]\nscenario = "ghost"\n', "There is no scenario 'ghost'."),
        ('[[cell]]\nreleases = "own"\n', "[[cell]] number 1 names no scenario."),
        ("", "The matrix has no scenario."),
        (toml(matrix='quarantine = "q.toml"'), "q.toml cannot be read: No such file"),
        (toml(more='mitigation = "prayer"'), "has no mitigation 'prayer'; it has: "),
    ],
)
def test_a_wrong_file_is_one_sentence(faked: Faked, text: str, words: str) -> None:
    inner = faked({})
    Path(FILE).write_text(text)
    result = inner.runpytest_inprocess(FILE)
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    at = next(
        i
        for i, line in enumerate(result.outlines)
        if f"ERROR collecting {FILE}" in line
    )
    assert words in result.outlines[at + 1]
    assert result.outlines[at + 2].startswith("====="), "one line"


# ---------------------------------------------------------------- quarantine


def quarantined(until: str) -> None:
    Path("q.toml").write_text(
        f'[[quarantine]]\nscenario = "{NAME}"\nreleases = "==0.23.*"\nreason = '
        f'"known"\n'
        f'issue = "#7"\nowner = "me"\nexpires = {until}\n'
    )


QUARANTINE = toml("0.22.0,0.23.0", matrix='quarantine = "q.toml"')


@pytest.mark.parametrize("came", [GOOD, "inconclusive", "timeout"])
def test_quarantine_is_xfail(faked: Faked, came: str) -> None:
    inner = faked({"0.22.0": [BAD], "0.23.0": [came]})
    quarantined("2999-12-31")
    result = night(inner, "-rx", "--junitxml=junit.xml", text=QUARANTINE)
    result.assert_outcomes(passed=1, xfailed=1)
    reason = "quarantined until 2999-12-31: known (#7, me)"
    result.stdout.re_match_lines([rf"XFAIL .*{re.escape(f'{ALL[2]} - {reason}')}"])
    skipped = cases()[f"{FILE}.vllm 0.23.0 (cpu) {NAME}"].find("skipped")
    assert skipped is not None
    assert (skipped.get("type"), skipped.get("message")) == ("pytest.xfail", reason)


def test_quarantine_is_not_strict(faked: Faked) -> None:
    inner = faked({"else": [BAD]})
    quarantined("2999-12-31")
    result = night(inner, "-o", "xfail_strict=true", text=QUARANTINE)
    result.assert_outcomes(passed=1, xpassed=1)
    assert result.ret == 0


def test_an_expired_quarantine_counts_no_more_and_is_told(faked: Faked) -> None:
    inner = faked({"0.22.0": [BAD], "0.23.0": [GOOD]})
    quarantined("2020-01-01")
    result = night(inner, text=QUARANTINE)
    result.assert_outcomes(passed=1, failed=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*MmreproWarning: *expired on 2020-01-01 and counts no more*#7*"]
    )
    quiet = "ignore::mmrepro.pytest_plugin.MmreproWarning"
    night(inner, "-W", quiet, text=QUARANTINE).assert_outcomes(
        passed=1, failed=1, warnings=0
    )


# ---------------------------------------------------------------- how it is run


def test_the_file_says_how(faked: Faked) -> None:
    matrix = 'repeat = 3\nconfirm = 1\ntimeout = "2m"\nmachine = "ci-1"'
    more = 'server-arg = ["--dtype=float32"]'
    result = night(
        faked({"0.23.0": [BAD, BAD, GOOD]}), text=toml(matrix=matrix, more=more)
    )
    result.assert_outcomes(failed=1)
    (trials,) = plugin_fakes.TRIALS
    assert [role for _, _, role in trials.made] == ["planned"] * 3 + ["confirm"]
    assert trials.cells[0].server_args == ("--dtype=float32",)
    options = trials.options
    assert (options.timeout_s, options.machine) == (120.0, "ci-1")
    assert options.start_mode is StartMode.WARM, "as in a night, for the same keys"
    night(faked({"else": [BAD]}), text=toml(matrix='start-mode = "cold"'))
    assert plugin_fakes.TRIALS[0].options.start_mode is StartMode.COLD


def test_no_run_is_started_that_would_not_end_in_time(faked: Faked) -> None:
    inner = faked({"else": [BAD]})
    result = night(inner, text=toml("0.22.0,0.23.0", 'max-time = "30s"'))
    result.assert_outcomes(errors=2)
    assert "not run: no run would have ended within max-time" in said(result)
    assert not [cell for t in plugin_fakes.TRIALS for cell in t.cells]
    assert plugin_fakes.PROVISIONS[0].told == ["stop"], "nothing was fetched either"
    skipping = night(
        inner, "--mmrepro-inconclusive=skip", text=toml("0.22.0", 'max-time = "30s"')
    )
    skipping.assert_outcomes(skipped=1)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ([], "mmrepro-runs"),
        (["--mmrepro-out", "there"], "there"),
        (["-o", "mmrepro_out=ini"], "ini"),
        (["--mmrepro-out", "there", "-o", "mmrepro_out=ini"], "there"),
    ],
)
def test_where_incidents_go(faked: Faked, arguments: list[str], place: str) -> None:
    inner = faked({"else": [BAD]})
    inner.makeini("[pytest]")
    for number in (1, 2):
        night(inner, *arguments).assert_outcomes(passed=1)
        kept = list(
            Path(place).glob(f"incidents/*/nightly/{NAME}-0.23.0-cpu-*/run-1/whole")
        )
        assert len(kept) == number, "what an earlier pytest ran is kept"


class Blocking(plugin_fakes.RecordingTrials):
    """Its run lasts until it is stopped; Ctrl-C is pressed in its middle."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._released = threading.Event()

    def run(self, *arguments: Any, **named: Any) -> Any:
        _thread.interrupt_main()
        assert self._released.wait(30), "nobody stopped it"
        return super().run(*arguments, **named)

    def stop(self) -> None:
        super().stop()
        self._released.set()


def test_ctrl_c_ends_the_run(faked: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_fakes, "RecordingTrials", Blocking)
    inner = faked({"else": [BAD]})
    Path(FILE).write_text(MANY)
    result = inner.runpytest_inprocess(FILE, no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (trials,) = plugin_fakes.TRIALS
    assert trials.stopped
    assert plugin_fakes.PROVISIONS[0].told[-1] == "done 0.22.0"
    assert "cold" in plugin_fakes.PROVISIONS[0].told
    assert [t.name for t in threading.enumerate() if t.name == "mmrepro"] == []
