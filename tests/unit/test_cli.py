"""The command line as users meet it: no engine, no network.

One use of each kind is a process of its own; the others call ``main`` here, which is
ten times as fast."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import in_process
import jsonschema
import pytest
from made_up import desync_run, hang_run, healthy_run, judge, run_facts
from mmrepro.base.errors import ExitCode
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Verdict
from mmrepro.scenario.registry import load_scenario, scenario_names
from simple_incident import incident

SCENARIOS = ("ghost-key-eviction", "mm-cache-desync")


def mmrepro(*argv: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "mmrepro", *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=60,
        env={**os.environ, "UV_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "200"},
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert "bug of mmrepro" not in done.stderr
    return done


Said = subprocess.CompletedProcess[str]
Here = Callable[..., Said]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """``mmrepro …`` in this process, in an empty folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    for name, text in {"UV_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, text)

    def run(*argv: object) -> Said:
        return Said(argv, *in_process.mmrepro(*argv))

    return run


def refused(done: Said) -> str:
    """What a wrong use is told: exit status 2, on stderr alone."""
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("bisect", "chunked-mm-prefill", "--by=commit", "--commits"),
        (
            "env",
            "wheelhouse",
            "vllm",
            "0.23.0",
            "--into=house",
            "--python=3.12",
            "--have",
        ),
        ("show",),
    ],
)
def test_a_file_without_end_is_not_read_to_its_end(
    here: Here, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(1 << 40)  # it takes no room on the disk
    said = here(*command, "huge.py")
    assert said.returncode == ExitCode.USAGE
    assert "it is too large" in said.stderr
    (tmp_path / "huge.py").write_text("neither commits nor packages nor Python\n")
    said = here(*command, "huge.py")
    assert (said.returncode, "it is too large" in said.stderr) == (
        ExitCode.USAGE,
        False,
    )


@pytest.mark.parametrize("value", ["9" * 400, "1e999", "nan", "-inf"])
@pytest.mark.parametrize(
    "option",
    [
        "diagnose http://127.0.0.1:1 --deadline",
        "logs x.log --deadline",
        "env wheelhouse vllm 1 --into=x --max-part",
        "run x --timeout",
        "env prune --older-than",
        "fuzz minivllm --budget",
    ],
)
def test_a_number_that_no_clock_or_integer_holds(
    here: Here, option: str, value: str
) -> None:
    Path("x.log").write_text("INFO\n")
    said = here(
        *option.split(), value, *(["--python=3.12"] if "wheelhouse" in option else [])
    )
    assert said.returncode == ExitCode.USAGE
    words = (option.split()[-1], "is not a size", "is not a length of time")
    assert any(one in said.stderr for one in words)


@pytest.mark.parametrize("command", [("incidents",), ("matrix", "diff"), ("replay",)])
def test_a_name_that_no_file_can_have(here: Here, command: tuple[str, ...]) -> None:
    """Whoever looks for it raises OSError, wherever that is."""
    said = here(*command, "x" * 300)
    assert said.returncode in (ExitCode.USAGE, ExitCode.INFRASTRUCTURE)
    assert len(said.stderr.splitlines()) <= 2
    assert "bug of mmrepro" not in said.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("logs", "{}", "--json"),
        ("logs", "{}", "server.log", "--json"),
        ("bisect", "mm-prefill-contract", "--mitigation", "{}"),
        ("diagnose", "--only", "logs", "--log", "{}"),
    ],
)
def test_a_word_that_is_no_utf8(
    here: Here, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "server.log").write_text("INFO\n")
    (tmp_path / "no-utf8-\udcff").write_text("INFO x\n")
    said = here(*(word.format("no-utf8-\udcff") for word in command))
    assert "bug of mmrepro" not in said.stderr
    assert "Traceback" not in said.stderr


def test_an_unknown_scenario(tmp_path: Path) -> None:
    said = refused(mmrepro("run", "ghost-key-evicton", cwd=tmp_path))
    assert said == (
        "There is no scenario 'ghost-key-evicton'. Did you mean ghost-key-eviction?\n"
        "Next: mmrepro list\n"
    )
    assert list(tmp_path.iterdir()) == []


WHOLE = [
    ("run", SCENARIOS[0]),
    ("ablate", SCENARIOS[0]),
    ("bisect", SCENARIOS[0]),
    ("matrix", "run", "--scenario", SCENARIOS[0]),
    ("replay", "night.jsonl", "--engine", "vllm", "--release", "0.23.0"),
    ("fuzz", "vllm", "--release", "0.23.0"),
    ("upgrade", "0.23.0", "0.24.0", "--engine", "vllm", "--traffic", "chat"),
]
LACKS = [
    (WHOLE, "--server-arg=--port=1", "--port is set by mmrepro itself"),
    (
        WHOLE,
        "--server-arg={feature:nonsense}",
        "There is no feature nonsense for vllm.",
    ),
    (WHOLE, "--server-arg={tiny:nonsense}", "There is no tiny model nonsense."),
    (WHOLE[-1:], "--new-server=--port=1", "--port is set by mmrepro itself"),
    (WHOLE[:1] + WHOLE[2:4], "--option=nonsense", "has no option 'nonsense'"),
    (WHOLE[:1] + WHOLE[2:4], "--mitigation=nonsense", "has no mitigation 'nonsense'"),
    (WHOLE[:1], "--model=nothing", "nothing holds no model: it has no config.json."),
    (WHOLE[:1], "--flip=nonsense", "has no factor 'nonsense'"),
    (WHOLE[4:5], "--file", "gone.har cannot be read"),
    (WHOLE[6:], "--traffic=gone.har", "gone.har cannot be read"),
    (WHOLE[6:], "--traffic=bad.har", "bad.har is JSON, but no HAR"),
    (WHOLE[6:], "--only=nonsense", "--only nonsense: there is no metric 'nonsense'."),
]


@pytest.mark.parametrize(
    ("whole", "word", "why"),
    [
        pytest.param(whole, word, why, id=f"{whole[0]} {word}")
        for commands, word, why in LACKS
        for whole in commands
    ],
)
def test_what_cannot_work_is_told_before_a_download_is_announced(
    here: Here, tmp_path: Path, whole: tuple[str, ...], word: str, why: str
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    (tmp_path / "night.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "bad.har").write_text("{}")
    files = {path.name for path in tmp_path.iterdir()}
    if word == "--file":
        whole, word = ("replay", "gone.har", *whole[2:]), "--quiet"
    said = here(*whole, word, "--device=cpu")
    assert said.returncode == ExitCode.USAGE
    assert why in said.stderr.splitlines()[0]
    assert "is not here yet" not in said.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == files


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("gone.har", "ls -l ."),
        ("a b/gone.har", "ls -l 'a b'"),
        ("a b/c/d/gone.har", "ls -l 'a b'"),
        ("a b/file/gone.har", "ls -l 'a b'"),
        ("/gone.har", "ls -l /"),
    ],
)
@pytest.mark.parametrize("command", ["replay --engine vllm", "repro"])
def test_of_a_file_that_is_not_there_the_folder_is_looked_at_next(
    here: Here, tmp_path: Path, command: str, file: str, hint: str
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/file").touch()
    first, *rest = command.split()
    said = here(first, file, *rest)
    assert said.returncode == ExitCode.USAGE
    assert said.stderr.startswith(f"{file} cannot be read: No")
    assert said.stderr.endswith(f"\nNext: {hint}\n")


@pytest.mark.parametrize("release", ["not.a.release", "0.23.0; rm", "latest"])
def test_a_release_that_is_none(here: Here, tmp_path: Path, release: str) -> None:
    said = here("run", SCENARIOS[0], "--release", release, "--device", "cpu")
    assert said.returncode == ExitCode.USAGE
    assert f"{release!r} is not a release of vllm." in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_scenario_file_that_is_no_python(here: Here, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine(:\n")
    said = refused(here("run", "mine.py"))
    assert "mine.py line 1 is not valid Python: " in said


def test_an_output_folder_that_cannot_be_written(here: Here, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused(
        here("run", SCENARIOS[0], "--device", "cpu", "--out", tmp_path / "file/run")
    )
    assert "cannot be written: Not a directory." in said
    assert "Next: mmrepro run … --out DIR" in said


def test_an_output_folder_that_holds_an_incident(here: Here, tmp_path: Path) -> None:
    (tmp_path / "incident.json").write_text("{}")
    said = here("run", SCENARIOS[0], "--device", "cpu", "--out", tmp_path)
    assert said.returncode == ExitCode.USAGE
    assert "already holds an incident" in said.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--mitigation", "prayer"), "has no mitigation 'prayer'; it has: release, "),
        (("--flip", "prayer"), "has no factor 'prayer'; it has: prefix-caching, "),
        (
            ("--mitigation", "release", "--release", "0.23.0"),
            "--mitigation release means 0.24.0",
        ),
        (("--keep-server", "--repeat", "2"), "cannot be combined"),
        (("--repeat", "0"), "--repeat"),
        (("--device", "tpu"), "tpu"),
        (("--no-such-option",), "--no-such-option"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_that_contradict(
    here: Here, tmp_path: Path, argv: tuple[str, ...], says: str
) -> None:
    said = here("run", SCENARIOS[0], *argv)
    assert (said.returncode, said.stdout) == (ExitCode.USAGE, "")
    assert says in said.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[" * 50_000, '{"schema_version": 9}', "\xff"]
)
def test_a_report_of_a_folder_without_an_incident(
    here: Here, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "incident.json").write_text(content, encoding="latin-1")
    said = here("report", tmp_path)
    assert (said.returncode, said.stdout) == (ExitCode.USAGE, "")
    assert str(tmp_path) in said.stderr


def test_a_report_of_no_folder(here: Here, tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(here("report", tmp_path / "none"))


def test_list_show_and_schema_print_one_json_document(here: Here) -> None:
    assert json.loads(mmrepro("list", "--json").stdout)

    def document(*argv: str) -> object:
        done = here(*argv)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    listed = document("list", "--json")
    assert isinstance(listed, dict)
    assert {row["name"] for row in listed["scenarios"]} >= set(SCENARIOS)
    assert not any("error" in row for row in listed["scenarios"])
    for name in SCENARIOS:
        shown = document("show", name, "--json")
        assert isinstance(shown, dict)
        assert shown["name"] == name
        assert {c["part"] for c in shown["conditions"]} == {
            "precondition",
            "symptom",
            "cause",
        }
    assert isinstance(document("run", "--json-schema"), dict)


def test_scenarios_of_other_distributions_are_listed_by_what_they_say(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is broken, one of them takes a name of ours."""
    found = tmp_path / "theirs-1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (found / "entry_points.txt").write_text(
        "[mmrepro.scenarios]\nbroken = theirs:gone\nghost-key-eviction = "
        "theirs:SCENARIO\n"
    )
    (tmp_path / "theirs.py").write_text(
        "from mmrepro.scenarios.capacity_never import SCENARIO as ours\n\n\n"
        "class Theirs(type(ours)):\n"
        "    name = 'ghost-key-eviction'\n"
        "    title = 'Theirs'\n\n\n"
        "SCENARIO = Theirs()\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    listed = here("list").stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == scenario_names()
    (broken,) = (line for line in listed if line.startswith("broken "))
    assert "has no attribute 'gone'" in broken
    (theirs,) = (line for line in listed if line.startswith("ghost-key-eviction "))
    assert theirs.endswith("Theirs")
    (one,) = here("list", "broken").stdout.splitlines()[1:]
    assert one.split() == broken.split()


def test_list_and_show_for_people(here: Here) -> None:
    listed = here("list")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in SCENARIOS)
    for name in SCENARIOS:
        shown = here("show", name, "--full")
        assert shown.returncode == 0
        assert f"mmrepro run {name}" in shown.stdout
        for condition in json.loads(here("show", name, "--json").stdout)["conditions"]:
            assert condition["id"] in shown.stdout


def test_every_command_has_help_with_an_example(here: Here) -> None:
    top = here("help", "all")
    assert top.returncode == 0
    for command in (
        "run",
        "list",
        "show",
        "report",
        "check",
        "diagnose",
        "kv-budget",
        "env",
    ):
        assert command in top.stdout
        if command != "env":
            said = here(command, "--help")
            assert said.returncode == 0
            assert re.search(r"Example:\s+mmrepro " + command, said.stdout), command


def test_the_version(here: Here) -> None:
    said = here("--version")
    assert (said.returncode, said.stderr) == (0, "")
    assert re.fullmatch(r"mmrepro \d+\.\d+\.\d+\S*\n", said.stdout)


def test_nothing_and_an_unknown_command(here: Here) -> None:
    assert here().returncode in (0, ExitCode.USAGE)
    assert "no-such" in refused(here("no-such"))


@pytest.fixture
def judged() -> Incident:
    """An incident with evidence of every kind and a verdict."""
    scenario, evidence = load_scenario("ghost-key-eviction"), hang_run()
    outcome, _, results = judge(scenario, evidence)
    verdict = Verdict(
        outcome=outcome,
        expected=outcome,
        as_expected=True,
        explanation="every condition is met",
        conditions=results,
    )
    return incident(
        verdict=verdict,
        evidence=evidence,
        symptoms=scenario.symptom_rows(evidence, run_facts(scenario)),
        key_stack=scenario.key_stack(evidence),
        mitigations=[],
        references=list(scenario.references),
    )


def test_the_schema_describes_incidents_and_refuses_others(
    here: Here, judged: Incident
) -> None:
    schema = json.loads(here("run", "--json-schema").stdout)
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    check = validator(schema)
    for evidence in (hang_run(), healthy_run(), desync_run()):
        check.validate(json.loads(incident(evidence=evidence).model_dump_json()))
    document = json.loads(judged.model_dump_json())
    check.validate(document)
    for spoil in (
        {"verdict": {**document["verdict"], "outcome": "perhaps"}},
        {"schema_version": 2},
        {"surprise": 1},
        {"state": "fine"},
    ):
        assert not check.is_valid({**document, **spoil}), spoil


RECORDED = Path(__file__).parents[1] / "evidence" / "uuid-alias-0.23.0.zip"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("list", ["list"]),
        ("alive", ["list", "--alive"]),
        ("scenario", ["show", "ghost-key-eviction"]),
        ("claims", ["show", "--claims"]),
        ("judge", ["judge", RECORDED]),
        ("incidents", ["incidents"]),
    ],
)
def test_what_is_printed_names_its_kind_and_fits_its_schema(
    here: Here, kind: str, words: list[object]
) -> None:
    document = json.loads(here(*words, "--json").stdout)
    assert (document["$id"], document["schema_version"]) == (f"urn:mmrepro:{kind}:1", 1)
    schema = json.loads(here(*words, "--json-schema").stdout)
    check = jsonschema.validators.validator_for(schema)(schema)
    check.validate(document)
    for spoil in (
        {"$id": "urn:mmrepro:other:1"},
        {"schema_version": 2},
        {"surprise": 1},
    ):
        assert not check.is_valid({**document, **spoil}), spoil


START = Path(__file__).parent / "starts" / "lmdeploy-port-taken.log"
PRINTED = {
    "check": ("check",),
    "environments": ("env", "list"),
    "kept-warm": ("env", "warm", "status"),
    "find": ("find", "Expected a cached item"),
    "kv-budget": (
        "kv-budget",
        "--free",
        "6GiB",
        "--runtime",
        "5GiB",
        "--block-bytes",
        "8MiB",
    ),
    "logs": ("logs", START),
    "new": ("new", "odd-image", "--engine", "minivllm", "--out", "new"),
    "ablation-plan": ("ablate", "ghost-key-eviction", "--dry-run"),
    "nightly-plan": (
        "matrix",
        "run",
        "--dry-run",
        "--releases",
        "0.1",
        "--scenario",
        "borrowed-faults:kv-budget",
    ),
    "start": ("why", START),
}


@pytest.mark.parametrize("kind", PRINTED)
def test_what_no_file_holds_names_its_kind_too(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # Another one may hold 80 GB to count.
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path))
    document = json.loads(here(*PRINTED[kind], "--json").stdout)
    assert (document["$id"], document["schema_version"]) == (f"urn:mmrepro:{kind}:1", 1)


@pytest.mark.parametrize("format", ["md", "html", "json", "junit"])
def test_a_report_is_made_from_the_folder_alone(
    here: Here, tmp_path: Path, judged: Incident, format: str
) -> None:
    (tmp_path / "incident.json").write_text(judged.model_dump_json())
    done = here("report", tmp_path, "--format", format)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reproduced" in done.stdout.lower()
    if format == "json":
        assert json.loads(done.stdout)["verdict"]["outcome"] == "reproduced"


LEAVES = """
import os, sys
try:
    os.write(1, b"began\\n")
    sys.stdin.readline()
finally:
    os.write(1, b"cleaning up\\n")
    sys.stdin.readline()
    os.write(1, b"cleaned up\\n")
"""
"""A scenario file that has something to end when it is interrupted."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_cut_short_what_the_first_began(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "mine.py").write_text(LEAVES)
    words = [sys.executable, "-m", "mmrepro", "show", "--trust", "./mine.py"]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with subprocess.Popen(words, cwd=tmp_path, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        assert process.stdout.readline() == "cleaning up\n"
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, "cleaned up\n"), error


@pytest.mark.parametrize("platform", ["darwin", "win32"])
@pytest.mark.parametrize(
    "words", [("run", "ghost-key-eviction"), ("diagnose", "URL"), ("--help",)]
)
def test_another_system_is_refused_at_once(
    platform: str, words: tuple[str, ...]
) -> None:
    """Before a module is imported that such a system does not have."""
    script = (
        f"import sys; sys.platform = {platform!r}; from mmrepro.cli import main; main()"
    )
    command = [sys.executable, "-c", script, *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (ExitCode.INFRASTRUCTURE, "")
    assert ran.stderr == (
        "mmrepro needs Linux, whose /proc it reads.\n"
        "Next: run it on a Linux machine, or in a container\n"
    )


def test_ctrl_c_is_one_word_and_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = subprocess.Popen(
            [sys.executable, "-m", "mmrepro", "diagnose", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        silent.accept()[0].close()  # it is at work
        command.send_signal(signal.SIGINT)
        printed, _ = command.communicate(timeout=60)
    assert (command.returncode, printed) == (130, "Interrupted.\n")
