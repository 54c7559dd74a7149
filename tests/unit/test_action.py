"""The GitHub action in two jobs, run as GitHub would: what the box hands over is only
data.

A container that a stranger took over is `program` of fake_docker.py. What no job could
hand over as an artifact (a link, a FIFO) is put before the script that reads it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from github_runner import commands_in
from hypothesis import given, strategies as st
from mmrepro.engines import ENGINES
from mmrepro.failure.documents.replay import OnRelease, ReproVerdict
from mmrepro.failure.documents.searches import SideConclusion
from nightly_steps import JobResult, Night, load
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
ISSUE = ROOT / ".ci" / "issue"
FAKES = ROOT / "tests" / "unit" / "nightly"
ACTIONS = {
    "OWNER/mmrepro": ROOT,
    "OWNER/mmrepro/.ci/issue/answer": ISSUE / "answer",
    "OWNER/mmrepro/.ci/issue/environments": ISSUE / "environments",
    "OWNER/mmrepro/.ci/issue/open": ISSUE / "open",
}
OPEN = "mmrepro-open"
"""The label of issues whose failure was reproduced and is not yet fixed."""
IMAGE = f"registry.example/mmrepro@sha256:{'0' * 64}"
TOKEN = "ghs_the-token-of-the-job"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"issue_{name}", ISSUE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


product = module("product")
cache_digest = module("cache_digest")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BOUNDARY: dict[str, Any] = {
    "direction": "fixed",
    "conclusion": "found",
    "commit": COMMIT,
    "verified": 1,
    "said": "it is the first good commit",
}
BENIGN: dict[str, Any] = {
    "schema": 1,
    "command": "bisect",
    "exit_code": 1,
    "verdict": "reproduced",
    "engine": "vllm",
    "release": "0.23.0",
    "said": "r1 got 500",
    "replaced": [{"what": "--tp 8", "by": "", "why": "there is one device"}],
    "fixed": [{"release": "0.32.0", "state": "fixed"}],
    "boundaries": [BOUNDARY],
    "report": "# A report\n\nAll of it.",
}

MMREPRO = """#!/bin/sh
# What the image has: `repro` prints its document, `report` a page, `env create` leaves files.
case "$1 $2" in
  "repro "*)
    for word in "$@"; do
      case $word in --out=*) run=${word#--out=} ;; esac
    done
    if [ -e "$FAKE_DOCKER/bisection.json" ]; then
      mkdir -p "$run/bisection" && cp "$FAKE_DOCKER/bisection.json" "$run/bisection/"
    fi
    cat "$FAKE_DOCKER/document.json"; exit 1 ;;
  "report "*) printf '# The run\\n\\nAll of it.\\n' ;;
  "env create")
    made=$CACHE/mmrepro/environments/$3-$4
    case $4 in --source) made=$CACHE/mmrepro/environments/$3-of-$(basename "$5") ;; esac
    mkdir -p "$made" && echo "$4" > "$made/engine.py" && ln -s /usr/bin/python3 "$made/python" ;;
  "env verify") echo "$CACHE" > "$FAKE_DOCKER/verified" ;;
  *) exit 9 ;;
esac
"""


class Rehearsal:
    """A repository with the workflow of docs/ci/repro.yml, and one issue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.docker = folder / "docker"
        self.programs = folder / "programs"
        for made in (self.docker, self.programs):
            made.mkdir()
        self.program(self.programs / "docker", (FAKES / "fake_docker.py").read_text())
        self.program(self.programs / "gh", (FAKES / "fake_gh.py").read_text())
        self.program(self.programs / "mmrepro", MMREPRO)
        # Only the owner of files is changed with it.
        self.program(self.programs / "sudo", "#!/bin/sh\nexit 0\n")
        self.gh = folder / "gh.json"
        issue = {"number": 7, "title": "It fails", "body": "vllm serve x"}
        state = {
            "issues": [{**issue, "state": "OPEN", "comments": [], "labels": []}],
            "rights": {"writer": "write", "owner": "admin", "reader": "read"},
        }
        self.gh.write_text(json.dumps({**state, "labels": [OPEN], "calls": []}))
        self.event: dict[str, Any] = {"issue": issue, "sender": {"login": "writer"}}
        self.clone = folder / "clone"
        subprocess.run(["git", "init", "-q", str(self.clone)], check=True)
        self.digest = ""
        self.rehearsed = 0

    def program(self, path: Path, content: str) -> None:
        path.write_text(content)
        path.chmod(0o755)

    def run(self, *names: str, of: str = "repro") -> dict[str, JobResult]:
        """The jobs that are named, of a run of their own, and those they wait for."""
        definition = load(ROOT / "docs" / "ci" / f"{of}.yml")
        definition["env"]["IMAGE"] = IMAGE
        jobs = definition["jobs"]
        definition["jobs"] = {
            name: job
            for name, job in jobs.items()
            if name in names or (name in ("asker", "open") and "box" in names)
        }
        for job in definition["jobs"].values():
            if not job.get("if", "").startswith("needs."):
                job.pop("if", None)  # what starts it is GitHub's to know
        self.rehearsed += 1
        workflow = self.folder / f"workflow-{self.rehearsed}.yml"
        YAML().dump(definition, workflow)
        event = self.folder / "event.json"
        event.write_text(json.dumps(self.event))
        machine = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "FAKE_DOCKER": str(self.docker),
            "FAKE_GH": str(self.gh),
        }
        night = Night(
            workflow=workflow,
            origin=ROOT,
            folder=self.folder / "run",
            github={
                "event": self.event,
                "event_path": str(event),
                "server_url": f"file://{self.folder}",
                "repository": "clone",
                "token": TOKEN,
                "run_attempt": str(self.rehearsed),
            },
            variables={"MMREPRO_CACHE_DIGEST": self.digest},
            machine=lambda _: machine,
            actions=ACTIONS,
        )
        self.night = night
        return {name: jobs[0] for name, jobs in night.run().items()}

    def build(self) -> JobResult:
        """Build the environments; the digest is kept as somebody would set the
        variable."""
        built = self.run("environments")["environments"]
        self.digest = built.outputs["digest"]
        return built

    def taken_over(self, output: bytes, errors: bytes = b"") -> None:
        """From now on the container prints this, and nothing of mmrepro."""
        (self.docker / "output").write_bytes(output)
        (self.docker / "errors").write_bytes(errors)
        lines = ["#!/bin/sh -e", f"cd {self.docker}", "cat errors >&2", "cat output"]
        self.program(self.docker / "program", "\n".join(lines) + "\n")

    @property
    def comments(self) -> list[str]:
        """Of the issue."""
        (issue,) = json.loads(self.gh.read_text())["issues"]
        comments: list[str] = issue["comments"]
        return comments

    @property
    def labels(self) -> list[str]:
        """Of the issue."""
        (issue,) = json.loads(self.gh.read_text())["issues"]
        return [label["name"] for label in issue["labels"]]

    def label(self, *names: str) -> None:
        state = json.loads(self.gh.read_text())
        state["issues"][0]["labels"] = [{"name": name} for name in names]
        self.gh.write_text(json.dumps(state))

    @property
    def containers(self) -> list[dict[str, Any]]:
        file = self.docker / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if call["arguments"][0] == "run"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A run of the job that builds the environments."""
    made = Rehearsal(tmp_path_factory.mktemp("built"))
    made.build()
    return made


@pytest.fixture
def rehearsal(built: Rehearsal, tmp_path: Path) -> Rehearsal:
    """Another repository, with the same environments in its cache."""
    made = Rehearsal(tmp_path)
    made.digest = built.digest
    shutil.copytree(
        built.folder / "run" / "caches", tmp_path / "run" / "caches", symlinks=True
    )
    return made


def outcome(rehearsal: Rehearsal) -> tuple[JobResult, JobResult]:
    jobs = rehearsal.run("box", "answer")
    return jobs["box"], jobs["answer"]


# ---------------------------------------------------------------- a report like most


DOCUMENT = {
    "report": {
        "verdict": "reproduced",
        "said": "r1 got 500",
        "replaced": [
            {"what": "--tp 8", "by": "", "why": "there is one device", "model": False}
        ],
        "fixed": [
            {
                "release": "0.32.0",
                "finding": "f",
                "state": "fixed",
                "said": "r1 got 200",
            }
        ],
    },
    "server": {"engine": "vllm", "release": "0.23.0", "arguments": []},
}


def test_a_report_is_answered(rehearsal: Rehearsal) -> None:
    (rehearsal.docker / "document.json").write_text(json.dumps(DOCUMENT))
    box, answer = outcome(rehearsal)
    assert (box.result, answer.result) == ("success", "success")
    assert box.outputs == {}
    assert answer.outputs == {"verdict": "reproduced"}
    for words in (
        "**Reproduced.**",
        "`vllm 0.23.0`",
        "r1 got 500",
        "--tp 8",
        "`0.32.0`",
        "# The run",
    ):
        assert words in rehearsal.comments[0]


def test_the_container_has_no_network_no_token_and_no_folder_to_write(
    rehearsal: Rehearsal,
) -> None:
    (rehearsal.docker / "document.json").write_text(json.dumps(DOCUMENT))
    outcome(rehearsal)
    (container,) = rehearsal.containers
    words = container["arguments"]
    pairs = {f"{one} {other}" for one, other in itertools.pairwise(words)}
    assert {
        "--network none",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
    } <= pairs
    assert "--read-only" in words
    assert not {"--privileged", "--cap-add", "--volume", "-v", "--env-file"} & set(
        words
    )
    mounts = [other for one, other in itertools.pairwise(words) if one == "--mount"]
    assert len(mounts) == 3
    assert all(mount.endswith(",readonly") for mount in mounts)
    assert TOKEN not in json.dumps(container)


def test_rights_are_those_of_the_two_jobs() -> None:
    workflow = load(ROOT / "docs" / "ci" / "repro.yml")
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert jobs["box"]["permissions"] == jobs["environments"]["permissions"] == {}
    assert jobs["answer"]["permissions"] == {"issues": "write"}
    for folder in (ROOT, ISSUE / "environments"):
        assert "token" not in (folder / "action.yml").read_text().replace(
            "no token", ""
        )
    assert not any(
        "checkout" in str(step) for job in jobs.values() for step in job["steps"]
    )


# --------------------------------------------------------------- who asks, and for what

SIDE = {
    "conclusion": "found",
    "first_good": COMMIT,
    "verified": True,
    "explanation": "0123456789ab is the first good commit",
}
PATCH = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-1\n+2\n"


def ask(rehearsal: Rehearsal, comment: str, **documents: Any) -> JobResult:
    """A comment below the issue; the documents are what mmrepro leaves. Returns the
    box's job."""
    rehearsal.event["comment"] = {"body": comment}
    for name, document in {"document": DOCUMENT, **documents}.items():
        (rehearsal.docker / f"{name}.json").write_text(json.dumps(document))
    box, _ = outcome(rehearsal)
    return box


def options_of(container: dict[str, Any]) -> list[str]:
    """What the container's program is given behind issue and folder."""
    words: list[str] = container["arguments"]
    return words[words.index("/out") + 1 :]


def mounts_of(container: dict[str, Any]) -> list[str]:
    words = container["arguments"]
    return [other for one, other in itertools.pairwise(words) if one == "--mount"]


def test_nothing_starts_for_who_may_not_write(rehearsal: Rehearsal) -> None:
    rehearsal.event["sender"] = {"login": "reader"}
    rehearsal.event["comment"] = {"body": "/bisect"}
    box, answer = outcome(rehearsal)
    assert (box.result, answer.result) == ("skipped", "skipped")
    assert rehearsal.containers == []


def test_a_comment_asks_for_the_commits(rehearsal: Rehearsal) -> None:
    box = ask(rehearsal, "/bisect please", bisection={"fixed": SIDE})
    assert box.result == "success", box.steps[-1].output
    (container,) = rehearsal.containers
    assert options_of(container) == ["--source=/source", "--bisect"]
    mounts = {mount.split(",")[2]: mount for mount in mounts_of(container)}
    assert mounts["target=/source"].endswith(",readonly")
    # Commits become environments there; nobody reads it afterwards.
    assert not mounts["target=/cache"].endswith(",readonly")
    assert f"The first good commit: {COMMIT} (it and" in rehearsal.comments[0]


@pytest.mark.parametrize("conclusion", ["range", "no-boundary", "inconclusive"])
def test_a_commit_that_is_not_known_is_not_named(
    rehearsal: Rehearsal, conclusion: str
) -> None:
    said = "no commit after it is without the failure"
    side = {"conclusion": conclusion, "explanation": said, "verified": False}
    ask(rehearsal, "/bisect", bisection={"introduced": side})
    assert "No first bad commit is named:" in rehearsal.comments[0]
    assert said in rehearsal.comments[0]


class LateRun:
    """A FAKE process: it prints the verdict at once, and ends only when it has to."""

    def __init__(self, words: list[str], stdout: Any, **_: Any) -> None:
        text = json.dumps(DOCUMENT) if words[1] == "repro" else "All of it."
        stdout.write(text.encode())
        self._is_report = words[1] == "report"
        self.signals: list[str] = []

    def wait(self, seconds: float | None = None) -> int:
        if self._is_report or "killed" in self.signals:
            return 0
        raise subprocess.TimeoutExpired("mmrepro", seconds or 0.0)

    def terminate(self) -> None:
        self.signals.append("terminated")

    def kill(self) -> None:
        assert self.signals == ["terminated"]
        self.signals.append("killed")


def test_a_bisection_that_is_late_leaves_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    monkeypatch.syspath_prepend(str(ISSUE))
    box = module("box")
    monkeypatch.setattr(box.subprocess, "Popen", LateRun)
    box.main("60", "issue.md", str(tmp_path), "--source=/source", "--bisect")
    sys.stdout.flush()
    made = product.parse(capfdbinary.readouterr().out)
    product.PRODUCT.check(made, "the product")
    assert (made["verdict"], made["exit_code"], made["command"], made["report"]) == (
        *("reproduced", 124, "bisect", "All of it."),
    )
    assert made["boundaries"] == []


def test_a_comment_brings_a_patch(rehearsal: Rehearsal) -> None:
    comment = f"/test-patch\r\n\r\n```diff\r\n{PATCH}```\r\n".replace("1\n", "1\r\n")
    assert ask(rehearsal, comment).result == "success"
    (container,) = rehearsal.containers
    assert options_of(container) == [
        "--source=/source",
        "--test-patch=/in/patch.diff",
    ]
    (source,) = [m for m in mounts_of(container) if "target=/in/patch.diff" in m]
    assert source.endswith(",readonly")
    path = Path(source.split(",")[1].removeprefix("source="))
    assert path.read_text() == PATCH
    assert "With the patch: it does not fail." in rehearsal.comments[0]


@pytest.mark.parametrize(
    "comment", ["/test-patch", "/test-patch ```diff", "/reproduce", "/bisection", ""]
)
def test_a_comment_that_is_no_command_ends_the_box(
    rehearsal: Rehearsal, comment: str
) -> None:
    assert ask(rehearsal, comment).result == "failure"
    assert rehearsal.containers == []


def test_what_is_reproduced_is_tried_at_night_until_a_commit_fixes_it(
    rehearsal: Rehearsal,
) -> None:
    ask(rehearsal, "/repro")
    assert rehearsal.labels == [OPEN]
    for side, comments, labels in (
        ({"conclusion": "no-boundary", "explanation": "still there"}, 1, [OPEN]),
        ({**SIDE, "verified": False}, 1, [OPEN]),
        (SIDE, 2, []),
    ):
        (rehearsal.docker / "bisection.json").write_text(json.dumps({"fixed": side}))
        shutil.rmtree(rehearsal.folder / "run" / "artifacts")
        jobs = rehearsal.run("box", "answer", of="repro-main")
        assert jobs["answer"].result == "success"
        assert len(rehearsal.comments) == comments
        assert rehearsal.labels == labels
    assert options_of(rehearsal.containers[-1])[-1] == "--bisect-find=fixed"
    assert COMMIT in rehearsal.comments[-1]


def test_a_night_without_an_open_failure_starts_no_box(rehearsal: Rehearsal) -> None:
    jobs = rehearsal.run("box", "answer", of="repro-main")
    assert jobs["box"].result == "skipped"
    assert rehearsal.containers == []


# ------------------------------------------------------ a container that was taken over


def changed(**fields: Any) -> bytes:
    return json.dumps({**BENIGN, **fields}).encode()


def without(field: str) -> bytes:
    return json.dumps(
        {name: value for name, value in BENIGN.items() if name != field}
    ).encode()


LINES = "reproduced\nanswer=/etc/passwd\nother<<EOF\nx\nEOF"
FORGED = {
    "a verdict with lines": changed(verdict=LINES),
    "a verdict with escaped lines": changed(verdict="reproduced%0Aanswer=/etc/passwd"),
    "a command as verdict": changed(verdict="::set-output name=answer::/etc/passwd"),
    "an old command as verdict": changed(
        verdict="##[set-output name=answer]/etc/passwd"
    ),
    "a guess of the end": changed(verdict="reproduced\nend-0123456789abcdef\nanswer=x"),
    "an expression": changed(verdict="${{ github.token }}"),
    "a program": changed(verdict="$(touch /tmp/x)"),
    "a verdict of another case": changed(verdict="Reproduced"),
    "a file to answer with": changed(answer="/etc/passwd"),
    "a folder as release": changed(release="../../etc/passwd"),
    "a link as release": changed(release="www.evil.example"),
    "backticks in the release": changed(release="0.1`[x](http://evil)`"),
    "a line in the release": changed(release="0.1\n::error::x"),
    "an unknown engine": changed(engine="evil"),
    "a state": changed(fixed=[{"release": "0.1", "state": "**evil**"}]),
    "a release of another": changed(fixed=[{"release": "evil", "state": "fixed"}]),
    "another schema": changed(schema=2),
    "another command": changed(command="/bisect"),
    "a commit that is a link": changed(boundaries=[{**BOUNDARY, "commit": "evil.x"}]),
    "a commit with a line": changed(
        boundaries=[{**BOUNDARY, "commit": f"{COMMIT}\n@octocat"}]
    ),
    "a short commit": changed(boundaries=[{**BOUNDARY, "commit": COMMIT[:12]}]),
    "a third boundary": changed(boundaries=[BOUNDARY] * 3),
    "another conclusion": changed(boundaries=[{**BOUNDARY, "conclusion": "sure"}]),
    "no verdict": without("verdict"),
    "a name that is a command": changed(**{"\n::set-output name=a::b\n": 1}),
    "a field in a list": changed(
        replaced=[{"what": "", "by": "", "why": "", "more": ""}]
    ),
    "a direction": changed(said="safe \u202e evil"),
    "an isolate": changed(said="safe \u2066 evil"),
    "an escape": changed(said="\x1b[2J"),
    "a null": changed(said="a\0b"),
    "a return": changed(said="a\r```\r<img>"),
    "a surrogate": changed(said="\ud800"),
    "a line's separator": changed(said="a\u2028b"),
    "tags": changed(said="a\U000e0041b"),
    "lines where there is one": changed(
        replaced=[{"what": "a\nb", "by": "", "why": ""}]
    ),
    "much text": changed(said="x" * 1501),
    "many entries": changed(replaced=[{"what": "", "by": "", "why": ""}] * 21),
    "a field twice": changed()[:-1] + b', "verdict": "different"}',
    "a field of a list twice": changed(fixed=[]).replace(
        b'"fixed": []',
        b'"fixed": [{"release": "1", "state": "fixed", "state": "still"}]',
    ),
    "no number": changed(exit_code=float("nan")),
    "no end": changed(exit_code=float("inf")),
    "a fraction": changed(exit_code=1.0),
    "a power": changed().replace(b'"exit_code": 1', b'"exit_code": 1e999999999'),
    "a huge number": changed().replace(
        b'"exit_code": 1', b'"exit_code": ' + b"9" * 200_000
    ),
    "a long number": changed(exit_code=10**6),
    "a number below zero": changed(exit_code=-1),
    "a truth": changed(exit_code=True),
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 40_000,
    "deep and whole": b"[" * 100_000 + b"]" * 100_000,
    "a list": json.dumps([BENIGN]).encode(),
    "a word": b'"reproduced"',
    "nothing": b"",
    "null": b"null",
    "no JSON": b"verdict=reproduced\n",
    "two documents": changed() + changed(),
    "Latin-1": changed().replace(b"r1 got 500", b"\xe9"),
    "a surrogate in bytes": changed().replace(b"r1 got 500", b"\xed\xa0\x80"),
    "a byte order mark": b"\xef\xbb\xbf" + changed(),
    "UTF-16": changed().decode().encode("utf-16"),
}
FORGED |= {
    f"{value!r:.20} as {field}": changed(**{field: value})
    for field in BENIGN
    for value in (None, {}, [[]], ["x"], {"a": {}}, 7, "x" * 50_000)
    if not (field == "exit_code" and value == 7)
}


def said_by_the_script(
    content: Path, folder: Path
) -> tuple[subprocess.CompletedProcess[str], str]:
    """What answer.py prints of a product, and what it sets."""
    outputs = folder / "outputs"
    outputs.write_text("")
    done = subprocess.run(
        [
            sys.executable,
            str(ISSUE / "answer.py"),
            str(content),
            str(folder / "comment.md"),
        ],
        env={**os.environ, "GITHUB_OUTPUT": str(outputs)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return done, outputs.read_text()


@pytest.mark.parametrize("name", FORGED)
def test_what_is_forged_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "product.json"
    path.write_bytes(FORGED[name])
    with pytest.raises(product.Refused) as refused:
        product.read(path)
    # All that is printed of it is a sentence of ours.
    assert "\n" not in str(refused.value)
    assert not commands_in([str(refused.value)])
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize(
    "name",
    ["a verdict with lines", "a name that is a command", "a huge number", "deep lists"],
)
def test_a_container_that_was_taken_over_is_not_answered(
    rehearsal: Rehearsal, name: str
) -> None:
    rehearsal.taken_over(FORGED[name])
    box, answer = outcome(rehearsal)
    assert box.result == "success"
    assert box.outputs == {}
    assert answer.result == "failure"
    assert answer.outputs == {"verdict": ""}
    assert rehearsal.comments == []
    (annotation,) = answer.annotations
    assert annotation.name == "error"
    assert "refused" in annotation.data


def test_commands_in_its_log_reach_no_runner(rehearsal: Rehearsal) -> None:
    commands = (
        b"::set-output name=verdict::x\n##[add-path]/tmp\n::stop-commands::x\n"
        b"\x1b[2J::error::x"
    )
    rehearsal.taken_over(changed(), errors=commands * 1000)
    box, answer = outcome(rehearsal)
    assert box.annotations == []
    assert "\x1b" not in box.step("Test the report").output
    assert answer.outputs == {"verdict": "reproduced"}


@pytest.mark.parametrize("size", [product.MAX_BYTES + 1, 50 * 1024**2])
def test_more_than_the_bound_does_not_leave_the_box(
    rehearsal: Rehearsal, size: int
) -> None:
    rehearsal.taken_over(changed() + b" " * (size - len(changed())))
    box, answer = outcome(rehearsal)
    assert box.result == "failure"
    assert answer.result == "skipped"
    assert not (rehearsal.folder / "run" / "artifacts").exists()
    left = [path.lstat().st_size for path in (rehearsal.folder / "run").rglob("*")]
    assert max(left) <= product.MAX_BYTES


def test_nobody_reads_what_is_over_the_bound(rehearsal: Rehearsal) -> None:
    rehearsal.taken_over(b" " * 50 * 1024**2)
    program = rehearsal.docker / "program"
    program.write_text(program.read_text() + "touch all-of-it-was-read\n")
    assert rehearsal.run("box")["box"].result == "failure"
    assert not (rehearsal.docker / "all-of-it-was-read").exists()


def test_the_bound_itself_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "product.json"
    path.write_bytes(changed() + b" " * (product.MAX_BYTES - len(changed())))
    assert product.read(path) == BENIGN
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(product.Refused):
        product.read(path)


def odd(kind: str, folder: Path) -> Path:
    path = folder / "product.json"
    whole = folder / "whole.json"
    whole.write_bytes(changed())
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(whole)
    elif kind == "dangling":
        path.symlink_to(folder / "nowhere")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(path))
    return path


KINDS = ["fifo", "folder", "link", "dangling", "loop", "sparse", "socket", "missing"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_neither_followed_nor_waited_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    done, outputs = said_by_the_script(odd(kind, tmp_path), tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("::error::The product of the box is refused: ")
    assert outputs == ""
    assert not (tmp_path / "comment.md").exists()


@pytest.mark.parametrize("verdict", product.VERDICTS)
def test_there_is_a_comment_where_something_was_tested(
    tmp_path: Path, verdict: str
) -> None:
    path = tmp_path / "product.json"
    path.write_bytes(changed(verdict=verdict))
    _, outputs = said_by_the_script(path, tmp_path)
    tested = verdict in ("reproduced", "different", "not-reproduced")
    comment = "yes" if tested else "no"
    assert outputs.splitlines()[1::3] == [verdict, comment, "yes"]
    assert (tmp_path / "comment.md").exists() == tested


def test_an_output_ends_where_nobody_can_guess(tmp_path: Path) -> None:
    path = tmp_path / "product.json"
    path.write_bytes(changed())
    ends = set()
    for _ in range(3):
        _, outputs = said_by_the_script(path, tmp_path)
        ends |= {line.partition("<<")[2] for line in outputs.splitlines()[::3]}
    assert len(ends) == 9


# ---------------------------------------------------------------- words of a stranger


EVIL = [
    "```\n@everyone [x](http://evil.example) <img src=x>\n## heading",
    "`````````\n</details>\n# out\n`````````",
    "~~~\n<script>",
    "    ```\n\t```\n ```text",
    (
        "<!-- --> <details> @octocat/team owner/repo#1 https://evil.example "
        "www.evil.example"
    ),
    "`" * 1_500,
    "@a" * 700,
    "![x](javascript:alert(1))\n\n[x]: http://evil.example\n\n| a |\n|---|",
]


def outside_of_fences(text: str) -> list[str]:
    """The lines that GitHub renders; a fence ends with as many marks as it began with,
    or more."""
    rendered, marks = [], ""
    for line in text.splitlines():
        bare = line.strip()
        if not marks and bare.startswith("```"):
            marks = bare[: len(bare) - len(bare.lstrip("`"))]
        elif marks and set(bare) == {"`"} and len(bare) >= len(marks):
            marks = ""
        elif not marks:
            rendered.append(line)
    assert not marks, "a fence without an end"
    return rendered


@pytest.mark.parametrize("evil", EVIL)
def test_words_stay_in_their_fence_and_mention_nobody(
    tmp_path: Path, evil: str
) -> None:
    row = {name: " ".join(evil.split())[:200] for name in ("what", "by", "why")}
    path = tmp_path / "product.json"
    path.write_bytes(changed(said=evil, replaced=[row] * 20, report=(evil + "\n") * 20))
    done, _ = said_by_the_script(path, tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "comment.md").read_text()
    assert "@" not in text
    assert len(text) <= 65_536
    plain = tmp_path / "plain"
    plain.mkdir()
    path.write_bytes(
        changed(said="s", replaced=[{"what": "w", "by": "b", "why": "y"}], report="r")
    )
    said_by_the_script(path, plain)
    assert outside_of_fences(text) == outside_of_fences(
        (plain / "comment.md").read_text()
    )


WORDS = st.text(max_size=3000) | st.sampled_from(EVIL)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: (
        st.lists(inner, max_size=30) | st.dictionaries(st.text(), inner, max_size=5)
    ),
    max_leaves=20,
)
FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(DOCUMENT["report"], ANYTHING))


@given(
    ANYTHING | st.fixed_dictionaries({"report": FIELDS, "server": ANYTHING}),
    WORDS,
    ANYTHING,
)
def test_whatever_a_run_printed_becomes_a_product(
    document: Any, report: str, code: Any
) -> None:
    content = product.written(product.made(document, report, code))
    assert len(content) <= product.MAX_BYTES
    product.PRODUCT.check(product.parse(content), "the product")


@given(st.binary(max_size=200) | ANYTHING.map(lambda one: json.dumps(one).encode()))
def test_whatever_is_read_is_refused_or_checked(content: bytes) -> None:
    with pytest.raises(product.Refused):
        product.PRODUCT.check(product.parse(content), "the product")


@pytest.mark.parametrize(
    "sign", ["`", "@", "\n", '"', "\\", "\N{PILE OF POO}", "\0", "\u202e"]
)
def test_the_largest_product_becomes_a_comment(tmp_path: Path, sign: str) -> None:
    text = sign * 50_000
    row = {"what": text, "by": text, "why": text}
    facts = {"verdict": "reproduced", "said": text, "replaced": [row] * 30}
    content = product.written(product.made({"report": facts}, text, 1))
    assert len(content) <= product.MAX_BYTES
    path = tmp_path / "product.json"
    path.write_bytes(content)
    done, outputs = said_by_the_script(path, tmp_path)
    assert done.returncode == 0
    assert outputs.splitlines()[1] == "reproduced"
    assert len((tmp_path / "comment.md").read_text()) <= 65_536


def test_the_lists_are_those_of_mmrepro() -> None:
    assert {*product.VERDICTS} == {*ReproVerdict, product.NO_VERDICT}
    assert {*product.ENGINES} == {*ENGINES, product.NO_ENGINE}
    assert {*product.CONCLUSIONS} == {*SideConclusion}
    assert {*product.STATES} == {*OnRelease.model_fields["state"].annotation.__args__}


# --------------------------------------------------------- environments, and the report


def test_environments_are_verified_and_kept_under_their_digest(
    rehearsal: Rehearsal,
) -> None:
    before = rehearsal.digest
    job = rehearsal.build()
    assert job.result == "success"
    assert (rehearsal.docker / "verified").exists()
    assert rehearsal.digest in job.summary
    assert rehearsal.digest == before
    assert kept(rehearsal).is_dir()


def test_environments_that_are_not_as_their_wheels_are_not_kept(
    rehearsal: Rehearsal,
) -> None:
    shutil.rmtree(kept(rehearsal))
    program = rehearsal.programs / "mmrepro"
    program.write_text(program.read_text().replace('echo "$CACHE" >', "exit 1 #"))
    assert rehearsal.run("environments")["environments"].result == "failure"
    assert not kept(rehearsal).exists()


def kept(rehearsal: Rehearsal) -> Path:
    return rehearsal.folder / "run" / "caches" / f"mmrepro-{rehearsal.digest}"


def another_file(cache: Path) -> None:
    (cache / "sitecustomize.py").write_text("")


def other_content(cache: Path) -> None:
    next(cache.rglob("engine.py")).write_text("0.32.1\n")


def another_link(cache: Path) -> None:
    (cache / "python").symlink_to("/tmp")


def a_link_to_elsewhere(cache: Path) -> None:
    link = next(cache.rglob("python"))
    link.unlink()
    link.symlink_to("/tmp/python3")


def one_less(cache: Path) -> None:
    next(cache.rglob("engine.py")).unlink()


def a_program(cache: Path) -> None:
    next(cache.rglob("engine.py")).chmod(0o755)


def another_name(cache: Path) -> None:
    path = next(cache.rglob("engine.py"))
    path.rename(path.with_name("engine.pth"))


CHANGES = [
    another_file,
    other_content,
    another_link,
    a_link_to_elsewhere,
    one_less,
    a_program,
    another_name,
]


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_runs_over_environments_that_somebody_changed(
    rehearsal: Rehearsal, change: Any
) -> None:
    change(kept(rehearsal))
    box, answer = outcome(rehearsal)
    assert (box.result, answer.result) == ("failure", "skipped")
    assert rehearsal.containers == []


def test_a_fifo_among_the_environments_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(cache_digest.Odd):
        cache_digest.digest(tmp_path)


@pytest.mark.parametrize("event", [{}, {"issue": None}, {"issue": []}])
def test_an_event_without_an_issue_ends_the_box(
    rehearsal: Rehearsal, event: Any
) -> None:
    rehearsal.event = {"sender": rehearsal.event["sender"], **event}
    box = rehearsal.run("box")["box"]
    assert box.result == "failure"
    (annotation,) = box.annotations
    assert "no issue" in annotation.data
    assert rehearsal.containers == []


def test_the_report_is_the_issues_text(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    title = "$(touch x) `id` \ud800"
    event.write_text(json.dumps({"issue": {"title": title, "body": None}}))
    target = tmp_path / "issue.md"
    script = [sys.executable, str(ISSUE / "report.py"), str(event), str(tmp_path)]
    subprocess.run(script, check=True, cwd=tmp_path)
    assert target.read_text() == "# $(touch x) `id` ?\n\n"
    assert not (tmp_path / "x").exists()


# ---------------------------------------------------- calls that the container may make


def test_the_profile_has_what_bubblewrap_needs_and_no_other_way_to_the_kernel() -> None:
    profile = json.loads((ISSUE / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    always = {
        name
        for rule in profile["syscalls"]
        for name in rule["names"]
        if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule
    }
    assert {
        "clone",
        "unshare",
        "mount",
        "umount2",
        "pivot_root",
        "sethostname",
        "prctl",
        "seccomp",
    } <= always
    refused = {
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "keyctl",
        "add_key",
        "request_key",
        "init_module",
        "finit_module",
        "kexec_load",
        "open_by_handle_at",
        "setns",
        "open_tree",
        "move_mount",
        "fsopen",
        "mount_setattr",
        "quotactl",
        "swapon",
        "reboot",
        "settimeofday",
        "acct",
        "iopl",
        "ioperm",
        "process_vm_writev",
        "pidfd_getfd",
        "socket",
        "personality",
        "syslog",
        "chroot",
        "fanotify_init",
        "modify_ldt",
    }
    assert not refused & always
