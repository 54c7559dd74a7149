"""``mmrepro logs``."""

import gzip
import json
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.cli.app import app
from mmrepro.engines import ENGINES, Engine
from mmrepro.failure.documents.diagnosis import TargetFacts
from mmrepro.live.diagnose import discover
from mmrepro.live.diagnose.log_reading import scenario_patterns
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.reports.logs import covered
from typer.testing import CliRunner

LOG = """\
(APIServer pid=3) INFO 11-21 02:00:01 [a.py:1] Added request one.
(EngineCore pid=7) DEBUG 11-21 02:00:02 [core.py:1] EngineCore loop active.
(EngineCore pid=7) ERROR 11-21 02:00:03 [c.py] AssertionError: Expected a cached item for mm_hash=0
(APIServer pid=3) INFO 11-21 02:00:04 [a.py:1] Added request two.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "s.log.1.gz").write_bytes(gzip.compress(LOG.encode()))
    (tmp_path / "s.log").write_text(LOG)
    return tmp_path / "s.log"


def test_a_hang_is_told(log: Path) -> None:
    done = CliRunner().invoke(app, ["logs", str(log)])
    assert done.exit_code == 1, done.output
    for words in (
        "vllm",
        "2 files",
        "never scheduled",
        "s.log:2",
        "Expected a cached item",
    ):
        assert words in done.output.replace("\n", " "), words


def test_as_json_and_alone(log: Path) -> None:
    done = CliRunner().invoke(app, ["logs", str(log), "--json", "--alone"])
    data = json.loads(done.output)["log"]
    assert (data["lines"], data["stuck_count"]) == (4, 1)
    assert data["match_counts"]["cached-item-assertion"] == 1


def test_the_known_failure_whose_line_it_is(log: Path) -> None:
    def known(*more: str) -> list[str]:
        done = CliRunner().invoke(app, ["logs", str(log), "--json", *more])
        return [one["scenario"] for one in json.loads(done.output)["known"]]

    assert known() == ["ghost-key-eviction", "mm-cache-desync"]
    start = (
        "(APIServer pid=3) INFO 11-21 02:00:00 [a.py:1] vLLM API server "
        "version 0.24.0\n"
    )
    log.write_text(start + LOG)
    assert known("--alone") == ["mm-cache-desync"], (
        "0.24.0 has the fix of the other one"
    )
    log.write_text(LOG.replace("mm_hash", "any"))
    assert known("--alone") == []


def test_another_engine_may_be_named(log: Path) -> None:
    done = CliRunner().invoke(app, ["logs", str(log), "--json", "--engine", "lmdeploy"])
    assert json.loads(done.output)["log"]["stuck_count"] is None


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["logs", str(tmp_path / "no.log")])
    assert isinstance(done.exception, UsageError)
    assert "No such file" in str(done.exception)


@pytest.mark.parametrize(
    "engine", [None, *ENGINES.values()], ids=lambda e: e.name if e else "any"
)
def test_every_variant_of_every_scenario_is_looked_for(engine: Engine | None) -> None:
    patterns = scenario_patterns(engine)
    own = dict(engine.log_patterns) if engine else {}
    wanted = {
        expression
        for scenario in all_scenarios()
        if engine is None or scenario.engine == engine.name
        for expression in scenario.log_patterns.values()
    }
    assert set(patterns.values()) == wanted | set(own.values())


WORK = "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 9.0 tokens/s"
BY_FORM = {
    "vllm": (
        "[pod/sglang-1/lmdeploy] (APIServer pid=1) INFO 11-24 18:12:10 [loggers.py:2] "
        f"{WORK}"
    ),
    "sglang": (
        "vllm-1  | [2026-11-24 18:12:11 TP0] Decode batch, #running-req: 1, "
        "vllm vllm vllm"
    ),
    "lmdeploy": (
        "2026-11-24T18:12:11Z 2026-11-24 18:12:11,001 - lmdeploy - INFO - e.py:1 - vllm"
    ),
}


@pytest.mark.parametrize("engine", BY_FORM)
def test_logs_and_diagnose_name_the_engine_by_its_form(
    engine: str, tmp_path: Path
) -> None:
    """Without a line of its start, and whatever its pod and its model are called."""
    path = tmp_path / "server.log"
    path.write_text(BY_FORM[engine] + "\n")
    done = CliRunner().invoke(app, ["logs", str(path), "--json"])
    assert json.loads(done.output)["log"]["engine"] == engine
    target = discover.ServerTarget(
        TargetFacts(url="http://a", place="local", port=1, logs=[str(path)])
    )
    discover.name_engine_by_log(target)
    assert target.facts.engine == engine


def test_a_pipe_and_a_folder(log: Path) -> None:
    piped = CliRunner().invoke(app, ["logs", "-", "--json"], input=log.read_bytes())
    assert json.loads(piped.output)["log"]["lines"] == 4
    (log.parent / "core").write_bytes(b"\x7fELF\0\0")
    folder = CliRunner().invoke(app, ["logs", str(log.parent), "--json"])
    data = json.loads(folder.output)["log"]
    assert (data["lines"], len(data["files"])) == (8, 2)


@pytest.mark.parametrize(
    ("first", "last", "shown"),
    [
        # LMDeploy's own lines are glog's; vLLM's have the day in another form.
        (
            "1128 13:53:00.116000",
            "11-28 13:57:08",
            "11-28 13:53:00 – 13:57:08 (4 min 08 s)",
        ),
        (
            "2026-11-28T23:59:00Z",
            "2026-11-29 00:10:00",
            "11-28 23:59:00 – 11-29 00:10:00 (11 min 00 s)",
        ),
        ("13:53:00", "13:57:01", "13:53:00 – 13:57:01 (4 min 01 s)"),
        ("no time", "", "no time"),
    ],
)
def test_the_time_that_a_log_covers_is_in_one_form(
    first: str, last: str, shown: str
) -> None:
    assert covered(first, last) == shown
