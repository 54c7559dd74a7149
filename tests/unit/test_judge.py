"""Recorded runs, judged again: the corpus in tests/evidence, and the command."""

from pathlib import Path

import pytest
import verdicts
from mmrepro.base.errors import UsageError
from mmrepro.cli.app import app
from mmrepro.engines.features import options_of
from mmrepro.failure.documents import Incident
from mmrepro.reports import load
from mmrepro.runs.judge import expectation, facts_of
from mmrepro.scenario.registry import as_run, load_scenario
from mmrepro.scenarios import encoder_cache_overflow
from mmrepro.scenarios.data import claims, recorded_runs
from record import claims_of, runs_of
from typer.testing import CliRunner

CORPUS = sorted((Path(__file__).parent.parent / "evidence").glob("*.zip"))
TABLE = verdicts.read()["recordings"]
LIMIT_BYTES = 8 << 20

runner = CliRunner()


@pytest.fixture(scope="module")
def incidents() -> dict[str, Incident]:
    """By name; not to be changed."""
    return {path.stem: load(path) for path in CORPUS}


def recorded(name: str) -> Path:
    return next(path for path in CORPUS if path.stem == name)


def test_every_recording_is_judged_as_it_was(incidents: dict[str, Incident]) -> None:
    """In one command, each condition and claim: as the table has it, and as it was
    recorded."""
    documents = verdicts.judged(incidents)
    now = verdicts.recordings(documents, incidents)
    assert not verdicts.differences(TABLE, now), verdicts.UPDATE
    parts = [
        (name, part)
        for name, document in documents.items()
        for part in document["parts"]
    ]
    assert not [(name, part) for name, part in parts if part["then"] != part["now"]]
    assert not [name for name, document in documents.items() if document["differs"]]
    assert len(documents) == len(CORPUS) >= 30
    assert {one["outcome"] for one in now.values()} == {
        "reproduced",
        "not-reproduced",
        "different-failure",
        "inconclusive",
    }


def test_every_scenario_and_variant_is_recorded_as_reproduced_and_not(
    incidents: dict[str, Incident],
) -> None:
    outcomes: dict[tuple[str, str], set[str]] = {}
    for incident in incidents.values():
        assert incident.verdict is not None
        key = incident.scenario.name, incident.scenario.variant
        outcomes.setdefault(key, set()).add(incident.verdict.outcome.value)
    unrun = {("undersized-kv-budget", "full-size")}  # minutes a request
    from mmrepro.live.diagnose.match import all_scenarios

    for scenario in all_scenarios():
        key = scenario.name, scenario.variant
        if key not in unrun:
            assert {"reproduced", "not-reproduced"} <= outcomes[key], key


def test_the_shipped_list_of_runs_is_the_corpus(incidents: dict[str, Incident]) -> None:
    """`mmrepro list --alive` has it where there is no tests folder."""
    assert runs_of(incidents) == recorded_runs().read_text(), "record.py --table"


def test_the_shipped_list_of_claims_is_the_corpus(
    incidents: dict[str, Incident],
) -> None:
    assert claims_of(incidents) == claims().read_text(), "record.py --table"


CHANGES = ("--mitigation", "--flip", "--server-arg", "--option")
LIMITS = ("--max-model-len", "--context-length")


def test_the_recordings_were_made_by_what_the_scenarios_declare(
    incidents: dict[str, Incident],
) -> None:
    """The server and its model. A number that is only sent is judged by nobody; a wrong
    one would make another run, of which the corpus says nothing."""
    plain = {
        n: i
        for n, i in incidents.items()
        if not any(word in i.command for word in CHANGES)
    }
    assert len(plain) >= 100
    for name, incident in plain.items():
        scenario = load_scenario(incident.scenario.name).with_variant(
            incident.scenario.variant
        )
        command = incident.engine.command
        # The place of a tiny adapter is one of the run's machine:
        # ``lora-a={tiny:lora-a}``.
        given, _ = options_of(scenario.engine, scenario.server_args, {})
        args = [word.partition("{tiny:")[0] for word in given]
        there = {
            one for word in command for one in (word, word.partition("=")[0] + "=")
        }
        assert not [word for word in args if word not in there], name
        limits = [
            command[command.index(limit) + 1] for limit in LIMITS if limit in command
        ]
        assert limits in ([str(scenario.max_model_len)], []), name
        assert incident.model is not None, name
        assert Path(incident.model.path).name == scenario.model.key, name


def test_the_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS) <= LIMIT_BYTES


def test_expectations_are_as_they_were(incidents: dict[str, Incident]) -> None:
    for name, incident in incidents.items():
        assert incident.verdict is not None
        scenario = load_scenario(incident.scenario.name).with_variant(
            incident.scenario.variant
        )
        facts = facts_of(incident, scenario)
        assert expectation(scenario, facts)[0] is incident.verdict.expected, name


def test_other_evidence_is_another_verdict(tmp_path: Path) -> None:
    """What a stranger would doubt: take the assertion out of the log, and it is not
    reproduced."""
    folder = tmp_path / "doctored"
    folder.mkdir()
    incident = load(recorded("ghost-key-eviction-0.23.0"))
    for result in incident.evidence.probes:
        if result.data is not None and result.data.kind == "logs":
            result.data.matches.pop("cached-item-assertion", None)
            result.data.match_counts["cached-item-assertion"] = 0
    (folder / "incident.json").write_text(incident.model_dump_json())
    said = runner.invoke(app, ["judge", str(folder)])
    assert said.exit_code == 1
    assert "reproduced \u2192 different-failure" in said.output
    assert "cached-item-assertion" in said.output


def test_by_another_scenario() -> None:
    """The signature of another failure does not take it for its own."""
    said = runner.invoke(
        app,
        [
            "judge",
            "--scenario",
            "mm-cache-desync",
            str(recorded("encoder-cache-overflow-0.11.0")),
        ],
    )
    assert said.exit_code == 1
    assert "reproduced \u2192" in said.output


WRONG = {
    "no such folder": (["no-such-folder"], "no-such-folder"),
    "no such scenario": (["--scenario", "no-such"], "There is no scenario 'no-such'"),
}


@pytest.mark.parametrize(("extra", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_judged_is_a_sentence(extra: list[str], says: str) -> None:
    where = [] if extra[0] == "no-such-folder" else [str(CORPUS[0])]
    said = runner.invoke(app, ["judge", *extra, *where])
    assert says in str(said.exception)


def test_an_incident_without_a_verdict(tmp_path: Path) -> None:
    incident = load(CORPUS[0])
    incident.verdict, incident.state = None, "interrupted"
    (tmp_path / "incident.json").write_text(incident.model_dump_json())
    said = runner.invoke(app, ["judge", str(tmp_path)])
    assert "holds no verdict" in str(said.exception)


@pytest.mark.parametrize("release", ["main", "not a version", "1.x", "\x1b[2J", ""])
def test_an_incident_whose_release_is_no_version(
    incidents: dict[str, Incident], release: str
) -> None:
    incident = next(iter(incidents.values())).model_copy(deep=True)
    incident.engine.release = release
    with pytest.raises(UsageError, match=r"^The incident's release is no version"):
        facts_of(incident, load_scenario(incident.scenario.name))


def test_a_scenario_file_is_read_anew(tmp_path: Path) -> None:
    """A process may judge again and again while somebody writes the file."""
    file = tmp_path / "mine.py"
    for name in ("one", "another"):
        text = Path(encoder_cache_overflow.__file__).read_text()
        file.write_text(text.replace('"encoder-cache-overflow"', f'"{name}"'))
        assert as_run(str(file), "", trust=True).name == name
