"""A class on its way to the reader: terminal, JSON, report.md and report.html,
schema."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest
from mmrepro import reports
from mmrepro.cli.app import app
from mmrepro.failure.documents.cause import Certainty
from mmrepro.failure.documents.diagnosis import Fit, LiveClass
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from mmrepro.reports.diagnosis import compose_diagnosis
from mmrepro.reports.terminal import print_page
from rich.console import Console
from seen import target
from test_classes_logged import STOP_TOKEN
from typer.testing import CliRunner

START = (
    "(EngineCore pid=9) INFO 11-24 18:15:07 [core.py:113] Initializing a V1 LLM engine (v0.23.0) \
with x\n"
)
MARKUP = "<script>x</script> [bold]y[/bold] | `z`"


@pytest.fixture
def gone(tmp_path: Path) -> DiagnoseCommand:
    """A server that is gone, and the log that it left."""
    log = tmp_path / "server.log"
    log.write_text(START + STOP_TOKEN.replace("out of bounds", MARKUP))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    return DiagnoseCommand(url=url, logs=(log,), out=tmp_path / "out")


def test_a_class_is_in_every_report_and_as_it_is_written(gone: DiagnoseCommand) -> None:
    found = diagnose(gone)
    (one,) = found.diagnosis.classes
    assert (one.name, one.certainty) == (LiveClass.KILLED_BY_INPUT, Certainty.CERTAIN)
    assert (found.diagnosis.exit_code, found.folder) == (1, gone.out)
    assert gone.out is not None
    reports.write_reports(gone.out)
    page, text = ((gone.out / f"report.{kind}").read_text() for kind in ("html", "md"))
    for report in (page, text):
        for words in (
            "Class of failure",
            "killed-by-input",
            "certain: killed by input",
            "stop_token_ids",
            "refuse or rewrite the field",
            "vllm#54195",
        ):
            assert words in report.replace("\\", ""), words
        assert "<script>x" not in report
    assert "1151935" in page
    shown = io.StringIO()
    print_page(compose_diagnosis(found.diagnosis), Console(file=shown, width=400))
    assert "Cause killed-by-input, certain, by its log (Worker pid=" in shown.getvalue()
    assert "A request ended the engine, by its field stop_token_ids" in shown.getvalue()
    assert "<script>x</script> [bold]" in shown.getvalue()
    document = json.loads((gone.out / "incident.json").read_text())
    assert document["diagnosis"]["classes"][0]["name"] == "killed-by-input"
    assert document["diagnosis"]["cause"]["class"] == "killed-by-input"
    assert "excerpt" not in json.dumps(document["evidence"]).replace(
        '"excerpt": []', ""
    )


def test_a_server_of_several_processes_has_their_number(gone: DiagnoseCommand) -> None:
    diagnosis = diagnose(gone).diagnosis

    def first_screen(states: str) -> str:
        several = diagnosis.model_copy(update={"target": target(states=states)})
        shown = io.StringIO()
        print_page(compose_diagnosis(several), Console(file=shown, width=400))
        return shown.getvalue()

    assert "vllm 0.23.0, on this machine, 2 processes" in first_screen("SS")
    assert "processes" not in first_screen("S")


def test_the_schema_tells_of_classes_and_of_connections() -> None:
    told = CliRunner().invoke(app, ["diagnose", "--json-schema"])
    definitions = json.loads(told.output)["$defs"]
    assert set(definitions["LiveClass"]["enum"]) == set(LiveClass)
    assert "classes" in definitions["Diagnosis"]["properties"]
    told = CliRunner().invoke(app, ["run", "--json-schema"])
    definitions = json.loads(told.output)["$defs"]
    assert "clients" in definitions["ConnectionsData"]["properties"]


def test_a_failure_that_fits_by_its_symptom_alone_is_on_the_first_screen(
    gone: DiagnoseCommand,
) -> None:
    found = diagnose(gone).diagnosis
    alike = found.matches[0].model_copy(
        update={"fit": Fit.SYMPTOM_ONLY, "why": "no cause"}
    )
    shown = io.StringIO()
    page = compose_diagnosis(found.model_copy(update={"matches": [alike]}))
    print_page(page, Console(file=shown, width=400))
    assert f"Similar known failure: {alike.scenario}" in shown.getvalue()
