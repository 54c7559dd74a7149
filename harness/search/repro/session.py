"""From a bug report to a verdict: a replay of what the report's client sends to its
server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.machine.files import (
    device_of,
    is_file,
    is_folder,
    open_to_read,
    read_file,
    write_file,
)
from mmrepro.base.machine.limited import OverLimit, WorkFailed, within_limits
from mmrepro.base.records import FindingClass
from mmrepro.base.text.sanitize import one_line
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.events import Note
from mmrepro.campaign.search import Spent
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.base import option_of
from mmrepro.engines.environments.build import existing
from mmrepro.engines.environments.store import list_environments
from mmrepro.engines.models.script_file import BASES, Scripts
from mmrepro.failure.documents.replay import (
    REPLAY_FILE,
    Claim,
    Finding,
    OnRelease,
    Replaced,
    Replay,
    ReportFacts,
    ReproVerdict,
)
from mmrepro.runs.judge import derive
from mmrepro.runs.play.player import RECORDED
from mmrepro.search.oracle.judged import alike
from mmrepro.search.replay.attempts import CaseRun, StartingPoint
from mmrepro.search.replay.confirm import GIVE_UP
from mmrepro.search.replay.known import server_wanted
from mmrepro.search.replay.pursue import LOUD
from mmrepro.search.replay.session import Replaying, Rounds
from mmrepro.search.replay.store import AttemptWanted, WriteReplay
from mmrepro.search.repro.claim import BY_EACH, claim_of, concluded, matches
from mmrepro.search.repro.issue import LIMITS, Issue, read_issue
from mmrepro.search.repro.options import ReproCommand
from mmrepro.search.repro.server_command import (
    Translated,
    of_manifest,
    options_of,
    parse,
    plain_command,
    release_here,
    serves,
    translated,
)
from mmrepro.search.repro.speech import (
    Speech,
    SpokenVariant,
    asked_in,
    bodies_in,
    likeliest_first,
    variants,
)
from mmrepro.traffic.capture.client import (
    ClientRun,
    ClientWanted,
    beside,
    pictures_in,
    with_plain_addresses,
    with_plain_commands,
)
from mmrepro.traffic.capture.messages import UNSEEN_SIZE, Captured
from mmrepro.traffic.capture.read import holds_case, read
from mmrepro.traffic.case.expecting import checked
from mmrepro.traffic.case.files import read_case, write_case
from mmrepro.traffic.case.model import CASE_FILE, Case, Operation, ServerWanted
from mmrepro.traffic.drive import noise
from packaging.version import Version
from pydantic import ValidationError

_MAX_TEXT = 4 << 20
_HEAD = 1 << 20
_MOST_PICTURES = 100
"""That replace those which a client names and a report does not bring."""
_SLOW_ANSWER_S = 1.0
_MOST_IN_A_ROW, _IN_A_ROW_S, _MANY = 10, 20.0, 30
"""Times that requests without a failure are sent again; seconds of that; requests at
most."""
_EARLIER, _MAX_REPLAY = 200, 16 << 20
"""Replays among which the same failure is looked for, the newest; bytes of one."""
_WRITTEN_OTHERWISE: Final = (
    ".http",
    ".rest",
    ".ps1",
    ".bat",
    ".cmd",
    ".js",
    ".ts",
    ".mjs",
)
"""Files that are read as a report's block of that kind."""
_CLIENT_DIR: Final = "client"
_RUN_FILE: Final = "client.json"
_NO_FILE: Final = Path()
_TRIED: Final = re.compile(r"device-side assert|v1/worker/gpu/")
"""What a report says of a GPU, and a CPU may show as well: an index that is out of
range, which is an exception there; code of vLLM's second model runner, which asks for
Triton."""
_SEVERAL_GPUS: Final = re.compile(r"NCCL|NVLink", re.IGNORECASE)
"""In what a report says of its hardware."""

# ------------------------------------------------------------------------ what is asked


@dataclass(frozen=True)
class _Client:
    """Where requests come from: a script that is run, or a ``file`` that is read.

    Attributes:
        words: the command; with ``name`` in it for ``text``.
        text: of the script.
        script: where it lies; None: in a report.
        files: further ones of a report, by name.
    """

    shown: str
    words: tuple[str, ...] = ()
    name: str = ""
    text: str = ""
    script: Path | None = None
    file: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> str:
        """All that it says."""
        return "\n".join([self.text, *self.files.values()])


@dataclass(frozen=True)
class _ReproAsked:
    """A report, read: the server, the client, and the facts that its document has."""

    server: ServerWanted
    client: _Client
    facts: ReportFacts
    variants: Sequence[SpokenVariant] = ()
    """Ways in which the model answers; the server has the first one."""


def asked_for(options: ReproCommand) -> _ReproAsked:
    """Read a report and the words beside it. Raises UsageError: what is missing, in a
    sentence."""
    issue = _issue(options)
    client = _client(options, issue)
    traffic = client.texts.strip() or _head(client.file)
    claim = _claim(options, issue)
    text = _server_text(options.server_command) or issue.server
    if not text and issue.engine and not (options.engine or client.file):
        text = plain_command(issue.engine, client.text)
        issue.notes.append(f"The report has no server's command: {text} is taken.")
    facts = ReportFacts(
        source=options.file.name if options.file not in (None, _NO_FILE) else "",
        server=text,
        client=client.shown,
        claim=claim,
        notes=list(issue.notes),
    )
    ways: list[SpokenVariant] = []
    if text:
        server = _translated_server(options, issue, text, traffic, facts)
        speech = issue.speech.model_copy(update=_asks(client.texts))
        ways = _spoken(server, speech, options, client.texts)
    else:
        server = _own_server(options, issue, client)
    if ways:
        server = _saying(server, ways[0].scripts)
        _tell_speech(facts, ways[0])

    fixed = options.fixed
    if fixed == "newest":
        fixed = max(_here(server.engine, options.device), key=Version, default="")
    facts.asked = fixed
    return _ReproAsked(server, client, facts, ways)


# ---------------------------------------------------------------- what the model says

_OTHER_PROMPTS: Final = re.compile(
    r"image_url|input_image|image_data|data:image/|token_ids|input_ids|input_embeds"
)
"""In a client's words: pictures, for which no model says scripts, and ids of another
vocabulary."""


def _asks(client: str) -> dict[str, Any]:
    """What a client's text asks for, by the fields of a speech. It is read in a child
    with limits."""
    try:
        read: dict[str, Any] = within_limits(
            lambda: asked_in(bodies_in(client)).model_dump(mode="json"),
            LIMITS,
            expected=UsageError,
        )
        speech = Speech.model_validate(read)
    except (OverLimit, WorkFailed, ValidationError, OSError):
        return {}
    shown = {"raw", "reasoning", "content", "calls"}
    return {
        name: getattr(speech, name) for name in Speech.model_fields if name not in shown
    }


def _spoken(
    server: ServerWanted,
    speech: Speech,
    options: ReproCommand,
    client: str,
) -> list[SpokenVariant]:
    """Ways in which the server's model may answer; []: it has random weights."""
    if options.script is not None or options.model or server.model not in BASES:
        return []
    tool_parser = option_of(server.args, "--tool-call-parser")
    reasoning_parser = option_of(server.args, "--reasoning-parser")
    parses = bool(tool_parser or reasoning_parser)
    if not (parses or speech.is_shown or speech.asks):
        return []
    if _OTHER_PROMPTS.search(client) and not (parses or speech.is_shown):
        return []
    return variants(speech, tool_parser, reasoning_parser)


def _saying(server: ServerWanted, scripts: Scripts) -> ServerWanted:
    return server.model_copy(update={"scripts": scripts})


def _tell_speech(facts: ReportFacts, variant: SpokenVariant) -> None:
    """Say in the report's facts that the weights are not random."""
    for place, item in enumerate(facts.replaced):
        if item.model:
            why = f"its weights are a script: it {variant.what}"
            facts.replaced[place] = item.model_copy(update={"why": why})


def _claim(options: ReproCommand, issue: Issue) -> Claim:
    """What the report observed, or ``--reported`` says. Raises UsageError: it is no
    such word."""
    given = claim_of(options.reported) if options.reported else None
    claim = issue.claim
    if options.on_gpu and not _SEVERAL_GPUS.search(claim.hardware):
        claim.hardware = ""  # it is here
    if given is None:
        return claim
    kept = {"exceptions": claim.exceptions, "hardware": claim.hardware}
    return given.model_copy(update=kept)


def _issue(options: ReproCommand) -> Issue:
    if options.file in (None, _NO_FILE):
        return Issue()
    try:
        text = read_file(options.file, _MAX_TEXT).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{options.file} cannot be read: {error.strerror}.") from error

    issue = read_issue(text)
    if issue.other_engine and not options.server_command:
        raise UsageError(
            (
                f"The report is of {issue.other_engine}; mmrepro starts vLLM, SGLang "
                "and LMDeploy."
            ),
            hint='--server "vllm serve MODEL" to send its requests to one of these',
        )

    return issue


def _server_text(given: str) -> str:
    """``--server``: a command, or a file with one: a script, a compose file, a pod."""
    if "\n" in given or not is_file(Path(given)):
        return given
    text = _text(Path(given))
    return of_manifest(text) or text


def _is_missing(path: str, script: Path | None) -> bool:
    """Whether a file that a client names is not beside it, and would be in its
    folder."""
    beside_it = script.parent if script is not None else Path("/nowhere")
    if is_file((beside_it / path).resolve()):
        return False
    return Path(path).is_absolute() or ".." not in Path(path).parts


def _head(file: Path | None) -> str:
    if file is None:
        return ""
    if is_folder(file):
        file = file / CASE_FILE
    with contextlib.suppress(OSError), open_to_read(file) as opened:
        return opened.read(_HEAD).decode("utf-8", "replace")
    return ""


# --------------------------------------------------------------------------- the client

_PYTHON: Final = re.compile(r"^(?:\S*/)?python3\.\d+$")


def _client(options: ReproCommand, issue: Issue) -> _Client:
    """Raises UsageError: there is none, or it cannot be read."""
    if options.client:
        return _given_client(options.client)
    if issue.client:
        return _of_report(issue)
    if options.resume is not None and is_file(options.resume / CASE_FILE):
        return _Client("", file=options.resume / CASE_FILE)
    is_start = FindingClass.START_FAILURE in issue.claim.classes
    if is_start or options.reported == "start-failure":
        return _Client("")  # the start is the failure
    if issue.offline:
        raise UsageError(
            "The report runs the engine in its own process (vllm.LLM, sglang.Engine, "
            "pipeline); mmrepro repro tests servers.",
            hint='--client "python client.py" with the same requests to a server',
        )

    what = "The report has" if options.file not in (None, _NO_FILE) else "There is"
    if issue.other_client:
        raise UsageError(
            f"The report's client is {issue.other_client}, which mmrepro does not run.",
            hint=(
                '--client "python client.py", or a file with curl lines or a '
                "request's body"
            ),
        )

    raise UsageError(
        (
            f"{what} no client: no script with openai or requests, no curl, no "
            "request's body."
        ),
        hint=(
            '--client "python client.py", or a file with curl lines or a '
            "request's body"
        ),
    )


def _of_report(issue: Issue) -> _Client:
    if issue.client_kind == "python":
        made = _script("client.py", issue.client, "a Python script of the report")
    elif issue.client_kind == "shell":
        named = next((name for name in issue.files if name.endswith(".py")), "")
        shown = f"{named} of the report" if named else "curl lines of the report"
        made = _script("client.sh", issue.client, shown)
    else:
        return _Client(
            "a request's body of the report", name="body.json", text=issue.client
        )

    return replace(made, files=issue.files)


def _given_client(text: str) -> _Client:
    whole = Path(text)
    if is_folder(whole) or is_file(whole):
        return _of_file(whole, text)
    try:
        words = shlex.split(with_plain_commands(text))
    except ValueError as error:
        raise UsageError(f"--client cannot be read: {error}.") from error

    if text.lstrip().startswith("curl "):
        return _script("client.sh", text, text)
    scripts = [Path(word) for word in words[1:] if is_file(Path(word))]
    if not words or not scripts:
        raise UsageError(
            (
                f"--client {text}: there is no such file, and no script in it that is "
                "here."
            ),
            hint='--client "python client.py"',
        )

    script = scripts[0]
    command: list[str] = []
    for word in words:
        is_script = word == str(script)
        command.append(script.name if is_script else _PYTHON.sub("python3", word))
    client = _script(script.name, _text(script), text)
    return replace(client, words=tuple(command), script=script.resolve())


def _of_file(file: Path, shown: str) -> _Client:
    """By what it is: a script, a request's body, or what a replay reads."""
    if is_folder(file) or file.suffix in (".har", ".jsonl", ".log"):
        return _Client(shown, file=file)
    text = _text(file)
    if file.suffix in (".py", ".sh") or text.startswith("#!"):
        made = _script(file.name, text, shown)
    elif file.suffix in _WRITTEN_OTHERWISE:
        issue = read_issue(f"````{file.suffix[1:]}\n{text}\n````")
        if not issue.client:
            what = issue.other_client or "nothing that is read here"
            raise UsageError(
                f"{file} is {what}; mmrepro runs Python and shells.",
                hint=(
                    '--client "python client.py", or a file with curl lines or '
                    "a request's body"
                ),
            )

        made = replace(_of_report(issue), shown=shown)
    elif (
        file.suffix != ".json" and "curl " in text and not text.lstrip().startswith("{")
    ):
        made = _script(file.name, text, shown, as_shell=True)
    else:
        return _Client(shown, file=file)

    return replace(made, script=file.resolve())


def _text(file: Path) -> str:
    try:
        return read_file(file, _MAX_TEXT).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error


def _script(name: str, text: str, shown: str, *, as_shell: bool = False) -> _Client:
    shell = (
        as_shell
        or name.endswith(".sh")
        or text.startswith(("#!/bin/", "#!/usr/bin/env bash"))
    )
    words = ("bash", name) if shell else ("python3", name)
    text = with_plain_commands(text) if shell else text
    return _Client(shown, words=words, name=name, text=text)


# --------------------------------------------------------------------------- the server


def _here(engine: str, device: str) -> list[str]:
    """Releases of an engine whose environment for that device is on this machine."""
    made = (environment.manifest for environment in list_environments(sizes=False))
    wanted = engine, device_of(device)
    return [m.release for m in made if (m.engine, m.device) == wanted and not m.commit]


def _translated_server(
    options: ReproCommand, issue: Issue, text: str, traffic: str, facts: ReportFacts
) -> ServerWanted:
    command = parse(text)
    if options.engine and options.engine != command.engine:
        raise UsageError(
            f"--engine {options.engine}, and the command starts {command.engine}.",
            hint="leave --engine out",
        )

    release = options.release
    if not release:
        named = command.release or issue.release
        here = _here(command.engine, options.device)
        if not named and facts.source:
            listed = ", ".join(sorted(here, key=Version)) or "none"
            raise UsageError(
                f"The report names no release of {command.engine}; here are {listed}.",
                hint="--release VERSION",
            )

        release, said = release_here(command.engine, named, here)
        release = release or named
        facts.notes += [said] if said else []
        if not release:
            raise UsageError(
                f"No release of {command.engine} is named, and none is installed here.",
                hint="--release VERSION",
            )

    known, has = None, lambda name: False
    environment = existing(spec_for(command.engine, release, options.device))
    if environment is not None:
        packages = environment.site_packages
        known = options_of(command.engine, packages) or None
        has = partial(serves, command.engine, release, packages)

    made: Translated = translated(
        command, known, traffic, gpu=bool(options.on_gpu), serves=has
    )
    facts.replaced, facts.notes = list(made.replaced), [*facts.notes, *made.notes]
    base = {
        "engine": command.engine,
        "release": release,
        "model": made.model,
        "max_model_len": made.max_model_len,
        "args": [*made.args, *options.server_args],
        "env": dict(made.env),
    }
    given = ("model", "max_model_len", "scripts")
    asked = {k: v for k, v in options.asked.items() if k in given}
    env = {**made.env, **options.asked.get("env", {})}
    wanted = ServerWanted.model_validate({**base, **asked, "env": env})
    get_engine(wanted.engine).environment_spec(wanted.release, "cpu")
    return wanted


def _own_server(options: ReproCommand, issue: Issue, client: _Client) -> ServerWanted:
    """Without a command: a case's own, or what the options say. Raises UsageError."""
    named = {"engine": options.engine} if options.engine else {}
    place = client.file or _NO_FILE
    if not (named or options.resume or (client.file and holds_case(place))):
        what = "The report has" if options.file not in (None, _NO_FILE) else "There is"
        raise UsageError(
            f"{what} no server's command.",
            hint='--server "vllm serve MODEL --flags …"',
        )

    return server_wanted(place, options.resume, named | options.asked)


# -------------------------------------------------------------------------- the session


class Reproducing(Replaying):
    """A bug report in progress."""

    kind = "replay"
    options: ReproCommand

    def __init__(self, options: ReproCommand, *, write: WriteReplay) -> None:
        """``write`` as of a replay. Raises UsageError: what the report lacks."""
        self.asked = asked_for(options)
        self._held = contextlib.ExitStack()
        self._client_ran = False
        super().__init__(replace(options, server=self.asked.server), write=write)

    @property
    def facts(self) -> ReportFacts:
        assert self.replay.report is not None
        return self.replay.report

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Replay]) -> None:
        recorded, scripted = self.case, bool(self.asked.client.words)
        if scripted:
            # What is journaled is the same before and after the client has run.
            self.case = recorded.keeping([])
        super().begin(campaign)
        self.replay.report = self.asked.facts
        replaced = [item.words for item in self.asked.facts.replaced]
        self.replay.limits += replaced
        if scripted and recorded.operations:
            self._known(recorded, _read_run(self.folder))
        for line in [*replaced, *self.facts.notes]:
            campaign.emit(Note(text=line))

    def run(self) -> None:
        """All of it, to the verdict."""
        assert self._files is not None
        claim = self.facts.claim
        # Nothing that is run on a CPU could confirm or refute it.
        if claim.hardware and not _TRIED.search(claim.hardware):
            why = (
                f"not testable here: the report has {claim.hardware!r}, which needs a "
                "GPU"
            )
            self._conclude(ReproVerdict.NEEDS_HARDWARE, why)
            return

        silent = [kind for kind in claim.classes if kind not in BY_EACH]
        # One start less than measuring them: a hang is noticed some seconds later.
        deadlines = derive([_SLOW_ANSWER_S])
        if self.asked.client.words and not self._files.case.operations:
            deadlines = self._recorded().deadlines or deadlines
        quiet = GIVE_UP if _failed_before(self.replay, self._files.case) else 1
        starts = FindingClass.START_FAILURE in claim.classes
        start = StartingPoint(
            brief=True,
            loud=not silent,
            deadlines=deadlines,
            starts=starts,
            classes=tuple(claim.classes),
            quiet=quiet,
        )
        rounds = Rounds(self, self._files, start)
        if self._files.case.operations or not self._client_ran:
            rounds.run()
            self._said_otherwise(rounds)
            self._in_a_row(rounds)
        self._on_fixed(rounds)
        for finding in self.replay.findings:
            finding.same_as = _earlier(finding, self.folder)
        self._conclude(*concluded(self.replay))

    def end(self, state: Any, failure: str) -> Replay:
        self._held.close()
        return super().end(state, failure)

    def _conclude(self, verdict: ReproVerdict, said: str) -> None:
        self.facts.verdict, self.facts.said = verdict, said
        assert self._files is not None
        self._files.write()

    # ------------------------------------------------------------------ its client

    def _expecting(self, case: Case) -> Case:
        """What is expected of a client's requests is put to them when they are
        known."""
        if self.asked.client.words and not case.operations:
            checked(self.options.expect)
            return case
        return super()._expecting(case)

    def _captured(self) -> Captured:
        client, options = self.asked.client, self.options
        if client.words or not client.shown:
            return Captured(Case(server=options.server), {})
        file = client.file or self._held.enter_context(
            beside(None, client.text, client.name)
        )
        return read(
            file / client.name,
            options.server,
            host=options.host,
            concurrency=options.concurrency,
        )

    def _recorded(self) -> Any:
        """Run the client on a server of its own, and make a case of what it sent."""
        client = self.asked.client
        folder, words, changed = self._client_folder()
        wanted = ClientWanted(
            client.words,
            folder,
            script=words,
            image=self.options.container,
            ports=_ports(self.facts.server),
            limit_s=self.options.client_timeout,
        )
        what = f"the client ({client.shown}), which nobody vouches for"
        order = CaseRun("client", what, self.servers, _CLIENT_DIR, client=wanted)
        result = self.attempt(order)
        run = result.client or ClientRun()
        case, contents = self._recording(run)
        write_case(case, self.folder, contents)
        (self.folder / _CLIENT_DIR).mkdir(exist_ok=True)
        write_file(self.folder / _CLIENT_DIR / _RUN_FILE, run.model_dump_json())
        self._known(case, run)

        lines = list(changed)
        if run.isolation:
            lines.append(f"The client ran {run.isolation}.")
        lines += run.notes
        printed = run.output.strip().rpartition("\n")[2]
        if printed and not case.operations:
            lines.append(f"The last line of the client: {one_line(printed, 160)}")
        for line in filter(None, lines):
            self.campaign.emit(Note(text=line))
        return result

    def _client_folder(self) -> tuple[Path, str, list[str]]:
        """The folder in which the client is run, with its files and what replaces its
        pictures; all that the client says; and what was changed, in sentences."""
        client = self.asked.client
        text, changed = with_plain_addresses(client.text)
        words = with_plain_addresses(client.texts)[0]
        self.facts.notes += changed
        files: dict[str, str] = {}
        for name, content in client.files.items():
            files[name] = with_plain_addresses(content)[0]
        missing = [
            path
            for path in pictures_in(client.texts)
            if _is_missing(path, client.script)
        ][:_MOST_PICTURES]
        for path in filter(os.path.isabs, missing):
            # A whole path lies outside the client's folder, where nothing can be written.
            text = text.replace(path, Path(path).name)
            for name in files:
                files[name] = files[name].replace(path, Path(path).name)

        folder = self._held.enter_context(beside(client.script, text, client.name))
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        width, height = UNSEEN_SIZE
        for path in missing:
            name = Path(path).name if Path(path).is_absolute() else path
            picture = folder / name
            picture.parent.mkdir(parents=True, exist_ok=True)
            write_file(picture, noise(picture.name, 1, UNSEEN_SIZE).png)
            replaced = Replaced(
                what=path,
                by=f"noise of {width} x {height}",
                why="the picture is not here",
            )
            self.facts.replaced.append(replaced)
            self.replay.limits.append(replaced.words)
            changed.append(replaced.words)

        return folder, words, changed

    def _recording(self, run: ClientRun) -> tuple[Case, Any]:
        """The case of what the client sent, and its pictures; without requests where there
        are none, or they cannot be read."""
        file = self.folder / _CLIENT_DIR / RECORDED
        nothing = Case(server=self.options.server)
        if not is_file(file) or not json.loads(file.read_bytes())["log"]["entries"]:
            return nothing, {}
        try:
            captured = read(file, self.options.server)
        except UsageError as error:
            run.notes.append(error.message)
            return nothing, {}

        case = captured.case.model_copy(update={"server": self.options.server})
        return self._expecting(case), captured.contents

    def _known(self, case: Case, run: ClientRun) -> None:
        """What the client sent is the case."""
        assert self._files is not None
        for way in self._ways[:1]:
            if way.scripts != self.options.server.scripts:
                self.facts.notes.append(f"When it is replayed, its model {way.what}.")
            server = _saying(case.server, way.scripts)
            case = case.model_copy(update={"server": server})
        self._files.case = case
        replay, facts = self.replay, self.facts
        replay.origin = case.origin
        replay.requests, replay.images = len(case.operations), len(case.images)
        self._client_ran = run.ran
        facts.isolation, facts.output, facts.died = run.isolation, run.output, run.died
        facts.notes += run.notes
        if run.ended:
            facts.notes.append(f"It was ended: {run.ended}.")

    # ------------------------------------------------------------- what else is said

    @property
    def _ways(self) -> list[SpokenVariant]:
        """How the model answers when the requests are replayed. The client gets the
        plainest answers: it may read them."""
        return likeliest_first(self.asked.variants, self.facts.claim.about)

    def _said_otherwise(self, rounds: Rounds) -> None:
        """Nothing showed with what the model said first: let it answer otherwise."""
        assert self._files is not None
        replay, case = self.replay, self._files.case
        for variant in self._ways:
            if variant.scripts == case.server.scripts:
                continue  # it was played first
            shown = [f for f in replay.findings if matches(f, self.facts.claim)]
            if shown or replay.unconfirmed or replay.untestable:
                return
            if replay.nothing_tested or not replay.answers:
                return
            other = case.model_copy(
                update={"server": _saying(case.server, variant.scripts)}
            )
            what = f"its model {variant.what}"
            try:
                rounds.once_more(other, what)
            except Spent:
                return
            if not (replay.findings or replay.unconfirmed):
                said = f"Where {what}: nothing as well."
                self.facts.notes.append(said)
                self.campaign.emit(Note(text=said))

    # -------------------------------------------------------------- what comes and goes

    def _in_a_row(self, rounds: Rounds) -> None:
        """Nothing of a loud failure showed, and requests were answered: send them again
        and again on one server. A race between two threads shows in a part of the
        tries."""
        assert self._files is not None
        replay, case, claim = self.replay, self._files.case, self.facts.claim
        if replay.findings or replay.unconfirmed or replay.untestable:
            return
        loud = LOUD - {FindingClass.START_FAILURE}
        if claim.classes and loud.isdisjoint(claim.classes):
            return
        answered = [
            answer.seconds or 0.0 for answer in replay.answers if not answer.refused
        ]
        if not answered or len(case.operations) > _MANY:
            return
        times = int(min(_MOST_IN_A_ROW, _IN_A_ROW_S / max(0.1, sum(answered))))
        if times < 2:
            return
        what = f"its requests {times} times in a row"
        try:
            rounds.once_more(in_a_row(case, times), what)
        except Spent:
            return

        if not (replay.findings or replay.unconfirmed):
            said = f"Sent {times} times in a row on one server: nothing as well."
            self.facts.notes.append(said)
            self.campaign.emit(Note(text=said))

    # ------------------------------------------------------------------ another release

    def _on_fixed(self, rounds: Rounds) -> None:
        """Replay a confirmed finding on the release that is to have the fix: one that the
        report is about, if there is one."""
        release, replay = self.facts.asked, self.replay
        confirmed = [finding for finding in replay.findings if finding.confirmed]
        if not release or not confirmed:
            return
        if release == self.options.server.release:
            replay.limits.append(f"--fixed {release}: it is the release that was run")
            return
        claimed = [f for f in confirmed if matches(f, self.facts.claim)]
        finding = (claimed or confirmed)[0]
        try:
            self.facts.fixed.append(self._held_against(finding, release, rounds))
        except Spent:
            replay.limits.append(
                f"{finding.id} was not replayed on {release}: --budget"
            )

        rounds.plays.grew(finding)

    def _held_against(
        self, finding: Finding, release: str, rounds: Rounds
    ) -> OnRelease:
        """The case that is left, on another release. Raises Spent."""
        case, _ = read_case(self.folder / finding.case_file)
        server = case.server.model_copy(update={"release": release})
        other = case.model_copy(update={"server": server})
        what = f"{finding.id}: on {release}"
        seen = rounds.plays.play(AttemptWanted(other, "confirm", 1, what))

        def on(state: Any, said: str) -> OnRelease:
            return OnRelease(
                release=release, finding=finding.id, state=state, said=said
            )

        if seen.has(finding.bucket):
            return on("still", seen.sightings[0].said)
        kinds = [sighting.finding_class for sighting in seen.sightings]
        if FindingClass.START_FAILURE in kinds and finding.finding_class not in kinds:
            return on("not-tested", seen.sightings[0].said)
        for sighting in seen.sightings:
            if sighting.finding_class in LOUD:
                return on("other", sighting.said)
        lines = [f"{op}: {words}" for op, words in seen.observed.items()]
        observed = "; ".join(lines[:3])
        not_served = {"401", "403", "404", "405"}
        if seen.answers and not_served.issuperset(seen.answers.values()):
            return on("not-tested", observed)
        return on("fixed", observed)


def in_a_row(case: Case, times: int) -> Case:
    """Repeat a case ``times`` times, each when all requests before it have ended."""
    operations = list(case.operations)
    before = operations
    for number in range(2, times + 1):
        names = {op.id: f"{op.id[:50]}-{number}" for op in case.operations}
        ended = [f"{op.id}.end" for op in before]
        before = []
        for op in case.operations:
            renamed = _renamed_operation(op, names)
            if not op.after:
                renamed = renamed.model_copy(update={"after": ended})
            before.append(renamed)
        operations += before

    return case.model_copy(update={"operations": operations})


def _renamed_operation(op: Operation, names: Mapping[str, str]) -> Operation:
    """An operation under its new name, at no time of its own."""
    expect = op.expect
    if expect:
        others = [names[other] for other in expect.others]
        expect = expect.model_copy(update={"others": others})
    update = {
        "id": names[op.id],
        "after": [_renamed(text, names) for text in op.after],
        "values": {name: _renamed(of, names) for name, of in op.values.items()},
        "expect": expect,
        "at_s": None,
    }
    return op.model_copy(update=update)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A barrier, or a place in an answer: it begins with an operation."""
    op, dot, rest = text.partition(".")
    return f"{names.get(op, op)}{dot}{rest}"


def _failed_before(replay: Replay, case: Case) -> bool:
    """Whether the client saw a failure when it was recorded: it may come and go."""
    if replay.report is not None and replay.report.died:
        return True
    for op in case.operations:
        status = op.recorded.status if op.recorded is not None else None
        if status is not None and status >= 500:
            return True
    return False


def _earlier(finding: Finding, folder: Path) -> str:
    """The folder of an earlier finding with the same bucket, among the replays beside
    ``folder``; "": there is none, or it has a name."""
    if finding.known is not None:
        return ""
    files = [f for f in folder.parent.glob(f"*/{REPLAY_FILE}") if f.parent != folder]
    files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[:_EARLIER]:
        try:
            others = json.loads(read_file(file, _MAX_REPLAY))["findings"]
            for other in others:
                if alike(other["bucket"], finding.bucket):
                    return f"{file.parent.name}/{other['folder']}"
        except (OSError, ValueError, LookupError, TypeError):
            continue

    return ""


def _ports(command: str) -> tuple[int, ...]:
    """The port that a command says, if it says one."""
    port = parse(command).port if command else None
    return (port,) if port else ()


def _read_run(folder: Path) -> ClientRun:
    try:
        return ClientRun.model_validate_json(
            (folder / _CLIENT_DIR / _RUN_FILE).read_bytes()
        )
    except (OSError, ValueError):
        return ClientRun()


def releases_of(asked: _ReproAsked) -> Iterator[str]:
    """Releases that are started: the report's, and the one that it is compared with."""
    yield asked.server.release
    if asked.facts.asked:
        yield asked.facts.asked
