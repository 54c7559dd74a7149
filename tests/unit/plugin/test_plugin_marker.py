"""`@pytest.mark.mmrepro` and the fixture `mmrepro_run`."""

import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

import plugin_fakes
import pytest
from plugin_fakes import Faked

BAD, GOOD = "reproduced", "not-reproduced"
MARK = '@pytest.mark.mmrepro("ghost-key-eviction", release="0.23.0", device="cpu")'
PLAIN = f"""
{MARK}
def test_it():
    print("the body ran")
"""


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    Path("test_it.py").write_text("import pytest\n" + textwrap.dedent(source))
    return pytester.runpytest_inprocess("--strict-markers", "-rs", "-s", *arguments)


def said(result: pytest.RunResult) -> str:
    return result.stdout.str()


WHAT = "ghost-key-eviction on vllm 0.23.0 (cpu)"


@pytest.mark.parametrize(
    ("came", "outcome", "body", "words"),
    [
        ([BAD], "passed", True, ""),
        ([GOOD], "failed", False, f"{WHAT}: not-reproduced; reproduced was expected"),
        (["inconclusive"], "errors", False, f"{WHAT}: inconclusive"),
        (
            ["infrastructure"],
            "errors",
            False,
            f"{WHAT}: nothing was learnt, infrastructure",
        ),
        (["infrastructure", BAD], "passed", True, ""),
        (["usage"], "errors", False, f"{WHAT}: nothing was learnt, usage"),
    ],
)
def test_without_the_fixture(
    faked: Faked, came: list[str], outcome: str, body: bool, words: str
) -> None:
    result = run(faked({"0.23.0": came}), PLAIN)
    result.assert_outcomes(**{outcome: 1})
    assert ("the body ran" in said(result)) is body
    assert words in said(result)
    assert "Traceback" not in said(result)
    assert "/pytest_plugin/" not in said(result)


def test_an_inconclusive_one_can_be_a_skip(faked: Faked) -> None:
    result = run(
        faked({"else": ["inconclusive"]}), PLAIN, "--mmrepro-inconclusive=skip"
    )
    result.assert_outcomes(skipped=1)
    assert f"{WHAT}: inconclusive: as the fake has it" in said(result)


LOOKS = f"""
from pathlib import Path

{MARK}
def test_it(mmrepro_run):
    print("the body ran")
    assert mmrepro_run.outcome == "not-reproduced"
    assert mmrepro_run.expected == "reproduced"
    assert mmrepro_run.as_expected is False
    assert mmrepro_run.conclusive
    assert mmrepro_run.explanation == "as the fake has it"
    assert mmrepro_run.command == "mmrepro run"
    assert mmrepro_run.key
    assert mmrepro_run.folder.is_relative_to(Path("mmrepro-runs").resolve())
    assert (mmrepro_run.folder / "whole").is_file()
    assert mmrepro_run.report == mmrepro_run.folder / "report.md"
    assert repr(mmrepro_run) == "<{WHAT}: not-reproduced, reproduced was expected>"
"""


def test_with_the_fixture_the_test_judges(faked: Faked) -> None:
    inner = faked({"0.23.0": [GOOD]})
    result = run(inner, LOOKS, "--junitxml=junit.xml")
    result.assert_outcomes(passed=1)
    (trials,) = plugin_fakes.TRIALS
    assert len(trials.cells) == 1, "once, in the set-up, and without confirmation"
    told = {
        p.get("name"): p.get("value") for p in ET.parse("junit.xml").iter("property")
    }
    assert told["mmrepro.outcome"] == GOOD
    assert told["mmrepro.expected"] == BAD
    assert told["mmrepro.incident"].startswith("mmrepro-runs/incidents/")


@pytest.mark.parametrize("came", ["inconclusive", "infrastructure"])
def test_with_the_fixture_too_nothing_learnt_is_an_error(
    faked: Faked, came: str
) -> None:
    result = run(faked({"0.23.0": [came]}), LOOKS)
    result.assert_outcomes(errors=1)
    assert "the body ran" not in said(result)


def test_by_another_fixture(faked: Faked) -> None:
    source = f"""
    @pytest.fixture
    def incident(mmrepro_run):
        return mmrepro_run.folder

    {MARK}
    def test_it(incident):
        assert incident.is_dir()
    """
    run(faked({"0.23.0": [GOOD]}), source).assert_outcomes(passed=1)


def test_what_the_marker_says_is_run(faked: Faked) -> None:
    source = """
    @pytest.mark.mmrepro(
        "borrowed-faults", variant="ghost-key-lru", release="0.1", device="cpu", timeout="2m",
        mitigations="fix", server_args=["--max-num-seqs=2"],
    )
    class TestIt:
        @pytest.mark.parametrize("one", [1, 2])
        def test_it(self, one): pass

        @pytest.mark.mmrepro("pad-value-collision", options={"search": True}, device="cpu")
        def test_another(self): pass
    """
    source = source.replace('mitigations="fix"', f"mitigations={mitigation()!r}")
    options = option()
    source = source.replace('{"search": True}', repr({options: True}))
    inner = faked({mitigation(): [GOOD], "else": [BAD]})
    run(inner, source).assert_outcomes(passed=3)
    first, second, third = plugin_fakes.TRIALS
    assert [(t.options.timeout_s, t.options.start_mode) for t in (first, third)] == [
        (120.0, "auto"),
        (600.0, "auto"),
    ]
    cell = first.cells[0]
    assert second.cells == [cell]
    assert (cell.scenario, cell.variant, cell.engine) == (
        "borrowed-faults",
        "ghost-key-lru",
        "minivllm",
    )
    assert (cell.release, cell.device, cell.mitigations) == (
        "0.1",
        "cpu",
        (mitigation(),),
    )
    assert cell.server_args == ("--max-num-seqs=2",)
    assert third.cells[0].options == (options,)
    incidents = {str(p.parent) for p in Path("mmrepro-runs/incidents").rglob("whole")}
    assert len(incidents) == 3, "equal runs have folders of their own"


def mitigation() -> str:
    """One of the variant's that is no release."""
    from mmrepro.scenario.registry import load_scenario

    known = load_scenario("borrowed-faults").with_variant("ghost-key-lru").mitigations
    return next(m.name for m in known if not m.release)


def option() -> str:
    from mmrepro.scenario.registry import load_scenario

    return next(iter(load_scenario("pad-value-collision").options))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "The argument 'scenario' is missing. (mmrepro("),
        ('"ghost"', "There is no scenario 'ghost'."),
        (
            '"ghost-key-eviction", relase="0.1"',
            "There is no argument 'relase'; there are: scen",
        ),
        (
            '"ghost-key-eviction", "0.23.0"',
            "Only the scenario is given without a name.",
        ),
        ('"ghost-key-eviction", scenario="x"', "The scenario is given twice."),
        ('"ghost-key-eviction", release="new"', "'new' is not a release of vllm."),
        ('"ghost-key-eviction", variant="x"', "has no variant 'x'; it has: none."),
        ('"ghost-key-eviction", mitigations=["x"]', "has no mitigation 'x'; it has: "),
        ('"ghost-key-eviction:x"', "has no variant 'x'; it has: none."),
        ('"mm-cache-desync", options=["x=1"]', "has no option 'x'; it has: none."),
        (
            '"ghost-key-eviction", device="tpu"',
            "The argument 'device' must be 'auto'",
        ),
        (
            '"ghost-key-eviction", timeout="soon"',
            "The argument 'timeout': 'soon' is not a length of time",
        ),
        ('"./none.py"', "There is no scenario file none.py."),
    ],
)
def test_a_wrong_marker_is_one_sentence(
    faked: Faked, arguments: str, words: str
) -> None:
    source = f"@pytest.mark.mmrepro({arguments})\ndef test_it(): pass\n"
    result = run(faked({}), source)
    result.assert_outcomes(errors=1)
    at = next(
        i
        for i, line in enumerate(result.outlines)
        if "ERROR at setup of test_it" in line
    )
    assert result.outlines[at + 1].startswith("@pytest.mark.mmrepro: ")
    assert words in result.outlines[at + 1]
    assert result.outlines[at + 2].startswith("====="), "one line"


@pytest.mark.parametrize("name", ["test_it.py", "nightly.mmrepro.toml"])
def test_a_folder_that_cannot_be_written_is_told(faked: Faked, name: str) -> None:
    inner = faked({"else": [BAD]})
    Path("taken").write_text("a file")
    Path("test_it.py").write_text("import pytest\n" + PLAIN)
    cell = (
        '[[cell]]\nscenario = "ghost-key-eviction"\nreleases = "own"\ndevice = "cpu"\n'
    )
    Path("nightly.mmrepro.toml").write_text(cell)
    result = inner.runpytest_inprocess(name, "--mmrepro-out", "taken")
    result.assert_outcomes(errors=1)
    at = next(i for i, line in enumerate(result.outlines) if "ERROR at setup" in line)
    assert "taken" in result.outlines[at + 1]
    assert result.outlines[at + 2].startswith("====="), "one line"


def test_a_file_is_beside_the_test(faked: Faked) -> None:
    inner = faked({"else": [BAD]})
    below = inner.mkdir("below")
    (below / "mine.py").write_text(
        "from mmrepro.scenarios.ghost_key_eviction import SCENARIO\n"
    )
    source = (
        'import pytest\n@pytest.mark.mmrepro("./mine.py", device="cpu")\ndef '
        "test_it(): pass\n"
    )
    (below / "test_below.py").write_text(source)
    inner.runpytest_inprocess().assert_outcomes(passed=1)
    assert plugin_fakes.TRIALS[0].cells[0].scenario == "below/mine.py"


def test_the_example_of_the_docs(faked: Faked) -> None:
    page = (Path(__file__).parents[3] / "docs/pytest.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    world = {"disable-mm-cache": [GOOD], "0.23.0": [BAD], "0.24.0": [GOOD]}
    run(faked(world), source).assert_outcomes(passed=3)
    assert sum(len(t.cells) for t in plugin_fakes.TRIALS) == 4


# ---------------------------------------------------------------- called


def test_the_fixture_runs_more(faked: Faked) -> None:
    source = f"""
    {MARK}
    def test_it(mmrepro_run):
        fixed = mmrepro_run("ghost-key-eviction", release="0.24.0", device="cpu")
        assert (mmrepro_run.outcome, fixed.outcome) == ("reproduced", "not-reproduced")
        assert fixed.as_expected
        again = mmrepro_run("ghost-key-eviction", release="0.23.0", device="cpu")
        assert again.folder != mmrepro_run.folder
        unsure = mmrepro_run("ghost-key-eviction", release="0.22.0", device="cpu")
        assert (unsure.outcome, unsure.conclusive) == ("inconclusive", False)
        assert not unsure.as_expected
        assert False, "to be told where the reports are"
    """
    world = {"0.22.0": ["inconclusive"], "0.23.0": [BAD], "0.24.0": [GOOD]}
    result = run(faked(world), source)
    result.assert_outcomes(failed=1)
    assert "to be told where the reports are" in said(result)
    assert said(result).count("report.md") == 4


def test_without_a_marker(faked: Faked) -> None:
    source = """
    def test_it(mmrepro_run):
        run = mmrepro_run("ghost-key-eviction", release="0.23.0", device="cpu")
        assert run.outcome == "reproduced"
        assert repr(mmrepro_run) == "<no run>"
        with pytest.raises(AttributeError, match="the test has no @pytest.mark.mmrepro"):
            mmrepro_run.outcome
    """
    run(faked({"0.23.0": [BAD]}), source).assert_outcomes(passed=1)


def test_what_fails_in_the_body_shows_its_line(faked: Faked) -> None:
    source = """
    def test_it(mmrepro_run):
        mmrepro_run("ghost-key-eviction", release="0.23.0", device="cpu")  # here

    def test_wrong(mmrepro_run):
        mmrepro_run("ghost")  # there
    """
    result = run(faked({"0.23.0": ["infrastructure"]}), source)
    result.assert_outcomes(failed=2)
    assert f"{WHAT}: nothing was learnt, infrastructure in each of 2 runs" in said(
        result
    )
    assert "There is no scenario 'ghost'" in said(result)
    for line in ("# here", "# there"):
        assert line in said(result)


@pytest.mark.parametrize(
    ("mark", "outcome"),
    [
        ("skip", "skipped"),
        ("xfail", "xfailed"),
        ("skipif(True, reason='no')", "skipped"),
    ],
)
def test_other_markers_count(faked: Faked, mark: str, outcome: str) -> None:
    source = f"@pytest.mark.{mark}\n{MARK}\ndef test_it(): pass\n"
    run(faked({"0.23.0": [GOOD]}), source).assert_outcomes(**{outcome: 1})
    assert bool(plugin_fakes.TRIALS) is (outcome == "xfailed")


@pytest.mark.parametrize("arguments", [["--collect-only"], ["--setup-plan"]])
def test_nothing_is_run_where_nothing_is_to_be(
    faked: Faked, arguments: list[str]
) -> None:
    source = PLAIN + f"{MARK}\ndef test_other(mmrepro_run): pass\n"
    assert run(faked({"0.23.0": [BAD]}), source, *arguments).ret == 0
    assert not plugin_fakes.TRIALS
