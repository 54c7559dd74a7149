"""A GitHub workflow run here: every ``run:`` step in the shell that GitHub gives it.

Real: bash with GitHub's flags, the merged variables, the files behind GITHUB_OUTPUT,
GITHUB_ENV, GITHUB_PATH and GITHUB_STEP_SUMMARY, outputs, ``needs``, the matrix,
conditions, time limits. Emulated by copying: a checkout (a clone of ``origin``),
artifacts (folders), a container (its variables and volumes; the steps run on this
machine). Whatever it does not know, it refuses."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from github_expressions import Unknown, evaluate, interpolated, text
from github_runner import Command, commands_in
from ruamel.yaml import YAML

SHELLS = {"bash": ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")}
"""As in actions/runner, ScriptHandlerHelpers.cs."""


@dataclass
class StepResult:
    name: str
    code: int
    output: str
    seconds: float

    @property
    def annotations(self) -> list[Command]:
        """All that GitHub's runner takes for commands: nothing else is written on
        purpose."""
        return commands_in(self.output.splitlines())


@dataclass
class JobResult:
    name: str
    result: str = "success"
    steps: list[StepResult] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    def step(self, name: str) -> StepResult:
        return next(step for step in self.steps if step.name == name)

    @property
    def annotations(self) -> list[Command]:
        return [one for step in self.steps for one in step.annotations]


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(path)
    return loaded


# ---------------------------------------------------------------- a run


@dataclass
class Night:
    """One run of a workflow, in ``folder``. Of ``github``, ``inputs`` and ``variables``
    GitHub would know; ``machine`` is the variables that a runner or an image has."""

    workflow: Path
    origin: Path
    folder: Path
    github: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    machine: Callable[[str], Mapping[str, str]] = lambda _: {}
    """By the job's name as it is shown."""
    without: frozenset[str] = frozenset()
    """Names of steps that are left out, because what they make is here already."""
    gone: frozenset[str] = frozenset()
    """Jobs, as they are shown, whose runner never answers."""
    actions: Mapping[str, Path] = field(default_factory=dict)
    """Composite actions by the names that the workflow has for them, and their
    folders."""
    jobs: dict[str, list[JobResult]] = field(default_factory=dict)

    def run(self) -> dict[str, list[JobResult]]:
        self.definition = load(self.workflow)
        waiting = dict(self.definition["jobs"])
        while waiting:
            ready = [n for n, j in waiting.items() if not set(_needs(j)) & set(waiting)]
            if not ready:
                raise Unknown(f"jobs that wait for each other: {list(waiting)}")
            name = ready[0]
            self.jobs[name] = self._job(name, waiting.pop(name))
        return self.jobs

    def again(self) -> dict[str, list[JobResult]]:
        """ "Re-run failed jobs": those that did not succeed, and all that need them."""
        stale: set[str] = set()
        for name, job in self.definition[
            "jobs"
        ].items():  # each after those that it needs
            if self.result(name) != "success" or stale & set(_needs(job)):
                stale.add(name)
        attempt = str(int(self.github["run_attempt"]) + 1)
        self.github = {**self.github, "run_attempt": attempt}
        before = self.jobs
        self.jobs = {name: jobs for name, jobs in before.items() if name not in stale}
        for name in (one for one in self.definition["jobs"] if one in stale):
            job = self.definition["jobs"][name]
            needed = stale & set(_needs(job))
            kept = [] if needed else [j for j in before[name] if j.result == "success"]
            self.jobs[name] = self._job(name, job, {j.name: j for j in kept})
        return self.jobs

    def result(self, name: str) -> str:
        """Of all of a job's machines together."""
        results = {job.result for job in self.jobs[name]}
        return next(r for r in ("failure", "skipped", "success") if r in results)

    def _contexts(self, job: Mapping[str, Any]) -> dict[str, Any]:
        needs = {
            name: {
                "result": self.result(name),
                "outputs": {
                    k: v for one in self.jobs[name] for k, v in one.outputs.items()
                },
            }
            for name in _needs(job)
        }
        return {
            "github": self.github,
            "inputs": self.inputs,
            "vars": self.variables,
            "needs": needs,
            "steps": {},
            "matrix": {},
            "env": self.definition.get("env", {}),
            "functions": {
                "always": lambda: True,
                "fromJSON": json.loads,
            },
        }

    def _job(
        self,
        name: str,
        job: Mapping[str, Any],
        kept: Mapping[str, JobResult] | None = None,
    ) -> list[JobResult]:
        _only(
            job,
            "name",
            "needs",
            "if",
            "runs-on",
            "timeout-minutes",
            "permissions",
            "outputs",
            "steps",
            "strategy",
            "container",
            "env",
        )
        contexts = self._contexts(job)
        whole = all(self.result(one) == "success" for one in _needs(job))
        if not _condition(job.get("if"), contexts, whole):
            return [JobResult(name, "skipped")]
        return [
            self._machine(
                name, job, {**contexts, "steps": {}, "matrix": values}, kept or {}
            )
            for values in _matrix(job.get("strategy", {}), contexts)
        ]

    def _machine(
        self,
        name: str,
        job: Mapping[str, Any],
        contexts: dict[str, Any],
        kept: Mapping[str, JobResult],
    ) -> JobResult:
        shown = text(interpolated(job.get("name", name), contexts))
        if shown in kept:
            return kept[shown]
        result = JobResult(shown)
        if shown in self.gone:
            result.result = "failure"
            return result
        machine = Machine(self, shown, job, contexts)
        for step in job["steps"]:
            machine.step(step, result)
        for key, value in job.get("outputs", {}).items():
            result.outputs[key] = text(interpolated(value, contexts))
        return result


class Machine:
    """What one job has while its steps run."""

    def __init__(
        self, night: Night, shown: str, job: Mapping[str, Any], contexts: dict[str, Any]
    ) -> None:
        self.night, self.contexts = night, contexts
        folder = re.sub(r"\W+", "-", shown).strip("-")
        self.folder = (
            night.folder / f"attempt-{night.github.get('run_attempt', '1')}" / folder
        )
        self.workspace = self.folder / "workspace"
        self.temporary = self.folder / "temp"
        for one in (self.workspace, self.temporary, self.folder / "home"):
            one.mkdir(parents=True)
        contexts["runner"] = {"temp": str(self.temporary)}
        contexts["github"] = {**contexts["github"], "workspace": str(self.workspace)}
        self.numbers = itertools.count()
        """Of the files of steps, those of actions among them."""
        self.seconds = 60 * float(interpolated(job["timeout-minutes"], contexts))
        self.volumes = [
            v.split(":")[1] for v in job.get("container", {}).get("volumes", [])
        ]
        github = {
            f"GITHUB_{key.upper()}": value
            for key, value in night.github.items()
            if key != "token" and isinstance(value, str)
        }
        self.variables: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temporary),
            **github,
            **night.machine(shown),
        }
        self._add(night.definition.get("env", {}))
        self._add(job.get("env", {}))

    def _add(self, variables: Mapping[str, Any]) -> None:
        self.variables.update(self._interpolated(variables))

    def _interpolated(self, variables: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for key, value in variables.items():
            one = text(interpolated(value, self.contexts))
            for volume in self.volumes:
                if one == volume or one.startswith(f"{volume}/"):
                    one = f"{self.folder}{one}"
            found[key] = one
        return found

    def step(self, step: Mapping[str, Any], result: JobResult) -> None:
        _only(
            step,
            "name",
            "id",
            "if",
            "env",
            "run",
            "uses",
            "with",
            "continue-on-error",
            "shell",
        )
        name = step.get("name", step.get("uses", "").partition("@")[0])
        if name in self.night.without:
            return
        if not _condition(step.get("if"), self.contexts, result.result == "success"):
            return
        began = time.monotonic()
        given = {
            k: interpolated(v, self.contexts) for k, v in step.get("with", {}).items()
        }
        action = self.night.actions.get(step.get("uses", "").partition("@")[0])
        if action is not None:
            outputs = self._composite(action, given, result)
            if "id" in step:
                self.contexts["steps"][step["id"]] = {"outputs": outputs}
            return
        if "uses" in step:
            code, output = self._uses(name, step["uses"], given)
        else:
            code, output = self._run(step, result)
        result.steps.append(StepResult(name, code, output, time.monotonic() - began))
        if code and not step.get("continue-on-error", False):
            result.result = "failure"

    def _run(self, step: Mapping[str, Any], result: JobResult) -> tuple[int, str]:
        if "${{" in step["run"]:
            raise Unknown("an expression inside a script")
        shell = step.get("shell") or self.night.definition["defaults"]["run"]["shell"]
        number = next(self.numbers)
        if shell not in SHELLS:
            raise Unknown(f"the shell {shell}")
        script = self.temporary / f"step-{number}.sh"
        script.write_text(step["run"])
        files = {
            name: self.temporary / f"{name.lower()}-{number}"
            for name in (
                "GITHUB_OUTPUT",
                "GITHUB_ENV",
                "GITHUB_PATH",
                "GITHUB_STEP_SUMMARY",
            )
        }
        for path in files.values():
            path.touch()
        variables = {
            **self.variables,
            **self._interpolated(step.get("env", {})),
            **{name: str(path) for name, path in files.items()},
        }
        try:
            done = subprocess.run(
                [*SHELLS[shell], str(script)],
                cwd=self.workspace,
                env=variables,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.seconds,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            code, output = 124, f"{error}"
        self.variables.update(_pairs(files["GITHUB_ENV"]))
        for folder in files["GITHUB_PATH"].read_text().split():
            self.variables["PATH"] = f"{folder}:{self.variables['PATH']}"
        result.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        if "id" in step:
            self.contexts["steps"][step["id"]] = {
                "outputs": _pairs(files["GITHUB_OUTPUT"])
            }
        return code, output

    def _composite(
        self, folder: Path, given: Mapping[str, Any], result: JobResult
    ) -> dict[str, str]:
        """The steps of an action: it has inputs and steps of its own, and the job's
        variables. Its outputs, which the job's result gets as well."""
        definition = load(folder / "action.yml")
        declared = definition["inputs"]
        _only(given, *declared)
        inputs = {
            name: given.get(name, interpolated(facts.get("default", ""), self.contexts))
            for name, facts in declared.items()
        }
        outside = self.contexts
        github = {**outside["github"], "action_path": str(folder)}
        self.contexts = {**outside, "inputs": inputs, "steps": {}, "github": github}
        try:
            for step in definition["runs"]["steps"]:
                self.step(step, result)
            outputs = {
                name: text(interpolated(facts["value"], self.contexts))
                for name, facts in definition.get("outputs", {}).items()
            }
            result.outputs.update(outputs)
            return outputs
        finally:
            self.contexts = outside

    # ----------------------------------------------------------------- emulated actions

    def _uses(self, name: str, action: str, given: dict[str, Any]) -> tuple[int, str]:
        known = {
            "actions/checkout": self._checkout,
            "actions/upload-artifact": self._upload,
            "actions/download-artifact": self._download,
            "actions/cache/restore": self._restore,
            "actions/cache/save": self._save,
        }
        if action.partition("@")[0] not in known:
            raise Unknown(action)
        return known[action.partition("@")[0]](given)

    def _checkout(self, given: dict[str, Any]) -> tuple[int, str]:
        _only(given, "persist-credentials")
        subprocess.run(
            [
                "git",
                "clone",
                "--quiet",
                "--depth",
                "1",
                f"file://{self.night.origin}",
                ".",
            ],
            cwd=self.workspace,
            check=True,
        )
        return 0, ""

    def _upload(self, given: dict[str, Any]) -> tuple[int, str]:
        _only(given, "name", "path", "overwrite", "if-no-files-found", "retention-days")
        source = self.workspace / given["path"]
        target = self._artifacts / text(given["name"])
        files = [p for p in _shown(source) if p.is_file()]
        if not files:
            return int(given.get("if-no-files-found") == "error"), "no files were found"
        if target.exists():
            if not given.get("overwrite"):
                return 1, f"an artifact called {target.name} is there"
            shutil.rmtree(target)
        for path in files:
            copy = target / path.relative_to(
                source if source.is_dir() else source.parent
            )
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)  # an artifact keeps no modes
        return 0, f"{len(files)} files"

    def _download(self, given: dict[str, Any]) -> tuple[int, str]:
        _only(given, "name", "path", "pattern", "merge-multiple")
        into = self.workspace / given["path"]
        if "name" in given:
            if not (self._artifacts / given["name"]).exists():
                return 1, f"Artifact '{given['name']}' not found"
            found = [self._artifacts / given["name"]]
        else:
            there = sorted(self._artifacts.iterdir())
            found = [p for p in there if fnmatchcase(p.name, given["pattern"])]
        # One artifact is not put into a folder of its own, whether or not it was named.
        flat = len(found) == 1 or given.get("merge-multiple", False)
        for one in found:
            shutil.copytree(one, into if flat else into / one.name, dirs_exist_ok=True)
        return 0, f"{len(found)} artifacts"

    def _restore(self, given: dict[str, Any]) -> tuple[int, str]:
        _only(given, "path", "key", "fail-on-cache-miss")
        kept = self.night.folder / "caches" / given["key"]
        if not kept.is_dir():
            return int(given.get("fail-on-cache-miss", False)), "no cache of this key"
        shutil.copytree(kept, self.workspace / given["path"], symlinks=True)
        return 0, ""

    def _save(self, given: dict[str, Any]) -> tuple[int, str]:
        _only(given, "path", "key")
        kept = self.night.folder / "caches" / given["key"]
        if kept.exists():
            return 0, "a cache is never written again"
        shutil.copytree(self.workspace / given["path"], kept, symlinks=True)
        return 0, ""

    @property
    def _artifacts(self) -> Path:
        folder = self.night.folder / "artifacts"
        folder.mkdir(exist_ok=True)
        return folder


def _shown(folder: Path) -> Iterator[Path]:
    """All below ``folder`` that upload-artifact takes: nothing hidden. Or a file
    alone."""
    if folder.is_file():
        yield folder
    for path in sorted(folder.rglob("*")):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else needs


def _condition(condition: Any, contexts: Mapping[str, Any], otherwise: bool) -> bool:
    if condition is None:
        return otherwise
    value = bool(evaluate(condition, contexts))
    return value if "always()" in condition else value and otherwise


def _matrix(
    strategy: Mapping[str, Any], contexts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    _only(strategy, "fail-fast", "matrix")
    axes = {k: interpolated(v, contexts) for k, v in strategy.get("matrix", {}).items()}
    _only({k: v for k, v in axes.items() if not isinstance(v, list)})
    if {"include", "exclude"} & set(axes) or (
        axes and strategy.get("fail-fast") is not False
    ):
        raise Unknown(f"{dict(strategy)}")
    return [
        dict(zip(axes, values, strict=True))
        for values in itertools.product(*axes.values())
    ]


def _pairs(path: Path) -> dict[str, str]:
    """NAME=VALUE lines, and NAME<<END with the lines until END, as the runner reads
    both."""
    found = {}
    lines = iter(path.read_text().splitlines())
    for line in lines:
        name, opens, end = line.partition("<<")
        if opens and "=" not in name:
            found[name] = "\n".join(iter(lines.__next__, end))
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise Unknown(line)
        found[name] = value
    return found


def _only(given: Mapping[str, Any], *known: str) -> None:
    if more := set(given) - set(known):
        raise Unknown(", ".join(sorted(map(str, more))))
