"""``mmrepro bisect`` as it is typed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from matrix_nights import FakeProvisions
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.records import Moment
from mmrepro.campaign.bisect import plan as points
from mmrepro.campaign.cluster import where
from mmrepro.campaign.trial import Trials
from mmrepro.cli.app import app
from mmrepro.failure.documents.ledger import Attempt, Cell, Role
from mmrepro.failure.documents.searches import Bisection
from mmrepro.failure.signature import Outcome
from test_bisect_session import RELEASES, listed, truth
from typer.testing import CliRunner

CPU = ("--device", "cpu")


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index is asked and no engine started."""

    def run(
        self: Trials,
        cell: Cell,
        folder: Path,
        root: Path,
        *,
        night: str,
        index: int,
        role: Role,
    ) -> Attempt:
        seen = truth(cell.release)
        assert isinstance(seen, Outcome)
        return Attempt(
            night=night,
            cell=cell.id,
            index=index,
            role=role,
            created=Moment.now(),
            seconds=1,
            outcome=seen,
            explanation="made up",
            command="mmrepro run x",
        )

    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(points, "points_of", lambda scenario, options: listed())
    monkeypatch.setattr(Trials, "run", run)
    monkeypatch.setattr(where, "Provisions", lambda *rest: FakeProvisions())


def typed(*argv: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["bisect", "ghost-key-eviction", *CPU, *argv])
    return done.exit_code, done.stdout, done.stderr


def test_for_machines_and_for_people(tmp_path: Path) -> None:
    code, out, told = typed("--json", "--out", str(tmp_path / "b"))
    assert code == 0
    document = json.loads(out)
    assert document["introduced"]["first_bad"] == "0.14.0"
    assert document["fixed"]["first_good"] == "0.24.0"
    assert "0.14.0: reproduced, in 1 s" in told
    code, out, _ = typed("--find", "fixed", "--out", str(tmp_path / "c"))
    assert code == 0
    assert f"page: {tmp_path / 'c/bisection.html'}" in out.splitlines()
    verdict = "FOUND: ghost-key-eviction over vllm releases: first good 0.24.0"
    assert out.splitlines()[-1] == verdict
    code, out, _ = typed("--find", "fixed", "--out", str(tmp_path / "d"), "--full")
    assert "Every point that was run" in out.splitlines()
    for form, sign in (
        ("md", "# Bisection of"),
        ("html", "<!doctype"),
        ("json", '"fixed"'),
    ):
        done = CliRunner().invoke(
            app, ["report", str(tmp_path / "c"), "--format", form]
        )
        assert done.exit_code == 0
        assert sign in done.stdout
    done = CliRunner().invoke(app, ["bisect", "--json-schema"])
    assert Bisection.__name__ in json.loads(done.stdout)["$defs"]


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    code, out, _ = typed("--dry-run", "--out", str(tmp_path / "b"))
    assert code == 0
    assert f"{len(RELEASES)} points from 0.11.0 to 0.32.0; starting from 0.23.0" in out
    (fixed,) = [line.split() for line in out.splitlines() if line.startswith("fixed")]
    assert fixed[1:6] == ["3", "0.32.0", "0.23.0", "and", "0.24.0"]
    assert not (tmp_path / "b").exists()
    code, out, _ = typed("--dry-run", "--json")
    assert json.loads(out)["known_bad"] == "0.23.0"


def test_a_dry_run_names_each_release_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = ("0.9.0.1.post2", *RELEASES)
    monkeypatch.setattr(points, "points_of", lambda scenario, options: listed(longer))
    code, out, _ = typed("--dry-run")
    assert code == 0
    assert "0.9.0.1.post2 0.11.0 0.12.0 0.13.0 0.14.0* " in out


@pytest.mark.parametrize(
    "argv",
    [
        ("--repeat", "often"),
        ("--confidence", "1"),
        ("--by", "commit"),
        ("--resume",),
        ("--good", "9.9"),
        ("--find", "nothing"),
    ],
)
def test_wrong_use(argv: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["bisect", "ghost-key-eviction", *CPU, *argv])
    assert (
        done.exit_code == 2
        or type(done.exception).__mro__[1].__name__ == "MmreproError"
    )


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--mitigation", "nonsense"), "has no mitigation 'nonsense'; it has: "),
        (("--mitigation", "no-utf8-\udcff"), "has no mitigation"),
        (
            ("--mitigation", "release"),
            "'release' is another release, 0.24.0: a point of its own.",
        ),
        (("--option", "nonsense"), "has no option 'nonsense'"),
        (("--option", "nonsense=1"), "has no option 'nonsense'"),
    ],
)
def test_what_a_scenario_lacks_is_refused_before_anything_is_fetched(
    argv: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bisect", "ghost-key-eviction", *CPU, *argv])
    assert isinstance(done.exception, UsageError)
    assert why in str(done.exception)
    assert done.exception.hint
    assert list(tmp_path.iterdir()) == []


CTRL_C = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by jobs in the background
from pathlib import Path
sys.path[:0] = [{tests!r}, {tests!r} + "/matrix"]
from matrix_nights import FakeProvisions
from mmrepro.campaign.bisect import plan as points
from mmrepro.campaign.trial import Trials
from mmrepro.campaign.cluster import where
where.Provisions = lambda *rest: FakeProvisions()
from test_bisect_session import listed
points.points_of = lambda scenario, options: listed()
def run(self, cell, folder, root, *, night, index, role):
    folder.mkdir(parents=True)
    print("running", flush=True)
    while not self._children.stopped:
        time.sleep(0.01)
    raise KeyboardInterrupt
Trials.run = run
from mmrepro.cli import main
sys.argv = ["mmrepro", "bisect", "ghost-key-eviction", "--device", "cpu", "--out", {out!r}]
main()
"""


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "b"
    code = CTRL_C.format(tests=str(Path(__file__).parent), out=str(out))
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "MMREPRO_CACHE_DIR": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "running\n"
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=20)
    finally:
        child.kill()
    assert child.returncode == 130
    assert f"No run of this bisection ended; its options are in {out}" in told
    assert (
        f"to resume, run: mmrepro bisect ghost-key-eviction --device cpu --out {out} "
        "--resume"
    ) in told
    assert json.loads((out / "bisection.json").read_text())["state"] == "interrupted"


def test_time_and_places_are_asked_for_as_of_every_campaign(tmp_path: Path) -> None:
    out, events = tmp_path / "b", tmp_path / "events.jsonl"
    where = ("--jobs", "2", "--budget", "30s", "--out", str(out))
    code, _, told = typed(*where, "--events", str(events))
    assert code == ExitCode.INCONCLUSIVE, (
        "no run of 60 s, as is assumed, would end in time"
    )
    document = json.loads((out / "bisection.json").read_text())
    assert document["resume"].endswith(f"--jobs 2 --budget 30s --out {out} --resume")
    assert document["failure"].startswith(
        "its time is over; to resume, run: mmrepro bisect"
    )
    heard = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["event"] for one in heard] == ["began", "ended"]
    assert heard[-1]["state"] == "out-of-time"
    code, lines, told = typed(
        "--out", str(out), "--resume", "--events", "-", "--budget", "2h"
    )
    assert code == 0
    kinds = {json.loads(line)["event"] for line in lines.splitlines()}
    assert kinds == {"began", "run-began", "run-ended", "found", "ended"}
    assert "0.14.0: reproduced" in told, "what is for people goes elsewhere then"


def test_jobs_are_for_one_machine(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["bisect", "ghost-key-eviction", *CPU, "--ray", "auto", "--jobs", "2"]
    )
    assert isinstance(done.exception, UsageError)
    assert "--jobs is for one machine" in done.exception.message
