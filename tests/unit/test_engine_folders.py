"""Each engine is a folder, and a folder is enough to be one.

The first part is the contract that every engine's folder keeps. The second one has an
engine that does not exist: nothing outside its folder knows its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mmrepro.engines
import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, Signs, get_engine, log_marks, sglang
from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.features import feature, features, turned_on
from mmrepro.engines.folders import facts, folders, table
from mmrepro.engines.plain import plain_server
from mmrepro.engines.promises import promises_of
from mmrepro.engines.serving import default_ports, serving
from mmrepro.engines.waits import Wait, wait_places, waiting
from mmrepro.failure.documents.cause import CauseClass
from mmrepro.live.diagnose.cause_advice import advice_for, advice_rows
from mmrepro.live.diagnose.starts import engine_of, port_of
from mmrepro.probes.data import Frame
from mmrepro.probes.log_reader import LineReader
from mmrepro.reports.issue_form import Report, filled
from mmrepro.search.fuzz.options import FuzzProfile, under
from mmrepro.search.oracle.reference import reference_case
from mmrepro.search.repro.server_command import parse, plain_command
from mmrepro.traffic.case.model import Case, ServerWanted
from mmrepro.traffic.case.typed import server_command
from packaging.specifiers import SpecifierSet
from packaging.version import Version

MADE_UP = Path(__file__).with_name("made_up_engines")
TABLES = (
    "engine.toml",
    "allowed.toml",
    "features.toml",
    "waits.toml",
    "held.toml",
    "starts.toml",
    "serving.toml",
    "promises.toml",
    "dialect.toml",
    "plain.toml",
    "issue_form.toml",
    "advice.toml",
    "offline.toml",
    "parsers.toml",
)


@pytest.mark.parametrize("name", [*ENGINES])
def test_a_folder_keeps_the_contract(name: str) -> None:
    engine = ENGINES[name]
    assert engine.name == name
    assert facts(name).title.lower() == name
    assert re.fullmatch(r"[\w-]+/[\w-]+", facts(name).repository)
    patterns = [
        engine.progress_pattern,
        engine.added_pattern,
        engine.ready_mark,
        engine.log_mark,
        engine.ends_itself,
        engine.process_pattern,
        *engine.log_patterns.values(),
        *engine.start_marks.values(),
        *engine.start_lines,
    ]
    for pattern in patterns:
        re.compile(pattern)
    # An engine may have no metrics at all.
    if engine.metrics:
        assert {"running", "waiting", "finished"} <= set(engine.metrics)


@pytest.mark.parametrize("name", [*ENGINES])
def test_its_tables_are_known_ones(name: str) -> None:
    known = {file.name for file in folders()[name].glob("*.toml")}
    assert known <= set(TABLES), known - set(TABLES)
    for row in features(name).values():
        assert row.what
    places = wait_places(name)
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("name", [*ENGINES])
def test_what_its_tables_name_is_known(name: str) -> None:
    server = serving(name)
    for pattern in (*server.modules, server.script, server.image, server.usage):
        re.compile(pattern)
    for word in ("{model}", "{length}", "{port}"):
        assert word in server.command
    for release in (*server.tried.values(), promises_of(name).bad_words_since):
        Version(release)
    dialect = dialect_of(name)
    assert {*dialect.features} <= {*features(name)}
    assert plain_server(name) is not None
    assert all(row.source for row in advice_rows(name))
    for call in table(name, "offline.toml").get("call", ()):
        assert call["path"].startswith("/")
        assert call["prompts"]
    form = table(name, "issue_form.toml")
    known = {"ticks", "everything", *Report.__dataclass_fields__}
    assert {part for _, part in form.get("parts", ())} <= known
    for place in ENGINES[name].stack_roles:
        re.compile(place.file)
        re.compile(place.functions)
    for releases in ENGINES[name].starts_in_order.values():
        SpecifierSet(releases)


def test_options_that_its_servers_have_in_any_case_are_those_of_the_adapter() -> None:
    given = [name for name in ENGINES if promises_of(name).cached_option_given]
    assert given == ["sglang"]
    own = [option for option, _, _ in sglang.OPTIONS]
    assert promises_of("sglang").cached_option in own


def test_engines_are_listed_in_their_order() -> None:
    orders = [facts(name).order for name in ENGINES]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)


@pytest.fixture
def teapot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The made-up engine, as if its folder lay beside the others."""
    path = [*mmrepro.engines.__path__, str(MADE_UP)]
    monkeypatch.setattr(mmrepro.engines, "__path__", path)
    remembered = (
        folders,
        facts,
        table,
        features,
        wait_places,
        serving,
        promises_of,
        dialect_of,
        plain_server,
    )
    for function in remembered:
        function.cache_clear()
    yield
    monkeypatch.undo()
    for function in remembered:
        function.cache_clear()


@pytest.mark.usefixtures("teapot")
def test_a_folder_is_an_engine() -> None:
    assert [*ENGINES][-1] == "teapot"
    engine = get_engine("teapot")
    assert engine.recognise(Signs(metrics=frozenset({"teapot:cups_being_poured"})))
    assert re.search(log_marks()["teapot"], "Teapot 2.1 is heating")
    args, variables = engine.given(["{feature:milk}"], {})
    assert (args, variables) == (["--milk=first"], {})
    assert [*turned_on("teapot", args)] == ["milk"]
    refused = engine.allowed.refused(["--cups=4", "--milk=/etc/passwd", "--lid"], {})
    assert [option for option, _ in refused] == ["--milk=/etc/passwd", "--lid"]


@pytest.mark.usefixtures("teapot")
def test_its_waits_are_read_off_a_stack() -> None:
    stack = [
        Frame(function="get", file="queue.py", line=171),
        Frame(function="pour", file="teapot/kettle.py", line=12),
    ]
    seen = waiting(stack, wait_places("teapot"), "2.0")
    assert seen is not None
    assert seen.wait is Wait.WORK
    assert waiting(stack, wait_places("teapot"), "1.0") is None


@pytest.mark.usefixtures("teapot")
def test_its_server_is_typed_read_and_found_by_its_port() -> None:
    server = ServerWanted(engine="teapot", release="2.1", max_model_len=64)
    typed = server_command(Case(server=server, operations=[]), [], "nobody/oolong")
    assert typed == "teapot pour nobody/oolong --leaves 64 --port 8000"
    assert plain_command("teapot", "") == "teapot pour MODEL"
    asked = parse("teapot pour nobody/oolong --cups 3")
    assert (asked.engine, asked.model) == ("teapot", "nobody/oolong")
    assert asked.options == [("--cups", ["3"])]
    poured = parse("docker run --rm nobody/teapot:2.1 nobody/oolong --cups 3")
    assert (poured.engine, poured.model) == ("teapot", "nobody/oolong")
    assert port_of(["teapot"], get_engine("teapot")) == 4180
    assert 4180 in [*default_ports()]
    usage = b"usage: teapot pour [-h] [--cups CUPS]\n"
    refused = LineReader().take(usage, last=True)
    assert engine_of(refused) is get_engine("teapot")


@pytest.mark.usefixtures("teapot")
def test_requests_are_made_and_judged_in_its_way() -> None:
    wanted = ServerWanted(engine="teapot", release="2.1")
    pressed = under(FuzzProfile.PRESSURE, wanted, length_told=False)
    assert (pressed.args, pressed.max_model_len) == (["--cups=1"], 64)
    with pytest.raises(UsageError, match="no profile modern for teapot"):
        under(FuzzProfile.MODERN, wanted, length_told=False)
    engine = get_engine("teapot")
    assert engine.promises.tells_usage
    assert not engine.promises.several_answers
    lidded = wanted.model_copy(update={"args": ["--lid"]})
    reference = reference_case(Case(server=lidded, operations=[]), engine)
    assert reference.server.args == ["--cups=1", "--steep=2048"]


@pytest.mark.usefixtures("teapot")
def test_its_failures_are_reported_in_its_form() -> None:
    report = Report(
        engine="teapot",
        title="It leaks",
        description="Tea on the table.",
        reproduction="Pour.",
        environment="A kitchen.",
    )
    text = filled(report)
    assert "Title: [Leak] It leaks" in text
    assert "a field of Teapot bug-report form" in text
    assert text.index("### What was spilt") < text.index("### Oath")
    assert "- [ ] I have had my tea." in text
    assert advice_for(CauseClass.OVERLOADED, "teapot", "")[0] == "a second pot"


def test_without_its_folder_it_is_unknown() -> None:
    assert "teapot" not in ENGINES
    with pytest.raises(UsageError, match="no engine 'teapot'"):
        get_engine("teapot")
    with pytest.raises(UsageError, match="no feature milk"):
        feature("teapot", "milk")
    assert wait_places("teapot") == ()


# ------------------------------------------------- an engine is named in its folder alone

ROOT = Path(mmrepro.engines.__file__).parents[2]
OWN_ENGINE = ("harness/engines/", "harness/scenario/", "scenarios/")
"""Folders that may name one: a scenario is a failure of one engine."""
LEFT = {
    "harness/kv_budget/eras.py": (3, "whose arithmetic each of its formulas is"),
    "harness/traffic/case/expecting.py": (1, "a case that no server ever gets"),
    "probes/log_forms.py": (11, "probes lie below engines, and read any log"),
    "probes/unpickle.py": (1, "a Python package whose classes are read as data"),
}
"""Where an engine's name is a constant: how often, and why."""


def _named_in(file: Path) -> int:
    text = file.read_text(encoding="utf-8")
    # Most files have none: to parse all of them takes two seconds.
    if not any(f'"{name}"' in text for name in NAMES):
        return 0
    tree = ast.parse(text)
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return sum(node.value in NAMES for node in constants)


NAMES = frozenset(folders())


def test_code_asks_the_engine_and_compares_no_name() -> None:
    named = {}
    for room in ("harness", "probes", "reports"):
        for file in (ROOT / room).rglob("*.py"):
            place = file.relative_to(ROOT).as_posix()
            count = 0 if place.startswith(OWN_ENGINE) else _named_in(file)
            if count:
                named[place] = count
    assert named == {place: count for place, (count, _) in LEFT.items()}
    assert len(LEFT) <= 8
