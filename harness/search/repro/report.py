"""A bug report and the words beside it, read: the server, the client and the claim."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import (
    OverLimit,
    WorkFailed,
    device_of,
    is_file,
    is_folder,
    open_to_read,
    read_file,
    within_limits,
)
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine, has_option, option_of, spec_for
from mmrepro.engines.environments import existing, list_environments
from mmrepro.engines.features import named_by, shown_by
from mmrepro.engines.models import SCRIPT_BASES, Scripts
from mmrepro.engines.parsers import parser_kinds
from mmrepro.failure.documents.replay import Claim, ReportFacts
from mmrepro.search.replay.known import server_wanted
from mmrepro.search.repro.claim import claim_of, needs_a_gpu
from mmrepro.search.repro.issue import LIMITS, Issue, read_issue
from mmrepro.search.repro.made_request import made_body
from mmrepro.search.repro.options import ReproCommand
from mmrepro.search.repro.server_command import (
    ServerAsked,
    of_manifest,
    options_of,
    parse,
    plain_command,
    release_here,
    serves,
    translated,
)
from mmrepro.search.repro.speech import (
    MOST_RAW,
    Speech,
    SpokenVariant,
    asked_in,
    bodies_in,
    variants,
)
from mmrepro.traffic.capture import holds_case, with_plain_commands
from mmrepro.traffic.case import CASE_FILE, ServerWanted
from packaging.version import Version
from pydantic import ValidationError

_MAX_TEXT = 4 << 20
_HEAD = 1 << 20
NO_FILE: Final = Path()
_CLIENT_HINT: Final = 'mmrepro repro REPORT --client "python client.py"'
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
_PYTHON: Final = re.compile(r"^(?:\S*/)?python3\.\d+$")
_SEVERAL_GPUS: Final = re.compile(r"NCCL|NVLink", re.IGNORECASE)
"""In what a report says of its hardware."""


@dataclass(frozen=True)
class ReportClient:
    """Where requests come from: a script that is run, or a ``file`` that is read.

    Attributes:
        words: the command; with ``name`` in it for ``text``.
        text: of the script.
        script: where it lies; None: in a report.
        files: further ones of a report, by name.
        at_once: how many requests of a file are sent beside each other.
        offline: it has the engine in its own process.
    """

    shown: str
    words: tuple[str, ...] = ()
    name: str = ""
    text: str = ""
    script: Path | None = None
    file: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    at_once: int = 1
    offline: bool = False

    @property
    def texts(self) -> str:
        """All that it says."""
        return "\n".join([self.text, *self.files.values()])


@dataclass(frozen=True)
class ReproPlan:
    """What a report comes to: the server, the client, and the facts for its
    document."""

    server: ServerWanted
    client: ReportClient
    facts: ReportFacts
    variants: Sequence[SpokenVariant] = ()
    """Ways in which the model answers; the server has the first one."""
    streams: bool = False
    """The report is about a stream: each is held against the whole answer."""


def asked_for(options: ReproCommand) -> ReproPlan:
    """Read a report and the words beside it. Raises UsageError: what is missing, in a
    sentence."""
    issue = _issue(options)
    client = _client(options, issue)
    claim = _claim(options, issue)
    command = _server_text(options.server_command) or issue.server
    if not command and issue.engine and not (options.engine or client.file):
        words = [plain_command(issue.engine, client.text), *issue.options]
        words += _parser_options(issue, words)
        command = " ".join(words)
        issue.notes.append(f"The report has no server's command: {command} is taken.")

    facts = ReportFacts(
        source=options.file.name if options.file is not None else "",
        server=command,
        client=client.shown,
        claim=claim,
        notes=list(issue.notes),
    )
    claim.expected = bool(options.expect)
    if command:
        traffic = client.texts.strip() or _head(client.file)
        server = _translated_server(options, issue, command, traffic, facts)
        speech = issue.speech.model_copy(update=_asks(client.texts))
        ways = _spoken(server, speech, options, client.texts)
    else:
        server = _own_server(options, client)
        ways = []
    if ways:
        server = saying(server, ways[0].scripts)
        _tell_speech(facts, ways[0])
        facts.shows_output = _shows_output(options, speech, issue) and is_judged(
            ways[0]
        )
        facts.shows_sound = bool(issue.speech.raw) and _is_sound(issue.answer, ways[0])

    facts.asked = options.fixed
    if options.fixed == "newest":
        facts.asked = max(_here(server.engine, options.device), key=Version, default="")
    return ReproPlan(server, client, facts, ways, issue.streams)


def reported_release(options: ReproCommand) -> tuple[str, str]:
    """The engine and the release that a report names; "": it names none.

    Raises:
        UsageError: the report cannot be read.
    """
    issue = _issue(options)
    text = _server_text(options.server_command) or issue.server
    if not text:
        return issue.engine, issue.release
    command = parse(text)
    return command.engine, command.release or issue.release


def releases_of(plan: ReproPlan) -> Iterator[str]:
    """Releases that are started: the report's, and the one that it is compared with."""
    yield plan.server.release
    if plan.facts.asked:
        yield plan.facts.asked


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
    shown = {"raw", "reasoning", "content", "calls", "streamed", "unopened"}
    fields = [name for name in Speech.model_fields if name not in shown]
    return {name: getattr(speech, name) for name in fields}


def _spoken(
    server: ServerWanted, speech: Speech, options: ReproCommand, client: str
) -> list[SpokenVariant]:
    """Ways in which the server's model may answer; []: it has random weights."""
    tool_parser = option_of(server.args, "--tool-call-parser")
    reasoning_parser = option_of(server.args, "--reasoning-parser")
    if options.script is not None and server.scripts is not None:
        given = server.scripts
        only = given.script[0]
        if len(given.script) > 1 or only.is_told or not only.text:
            return [SpokenVariant("says what --script has", given)]
        # A text alone is a raw output, as a report shows it; in no other pieces.
        return variants(_raw(speech, only.text), tool_parser, reasoning_parser)[:1]
    if options.model or server.model not in SCRIPT_BASES:
        return []
    parses = bool(tool_parser or reasoning_parser)
    if not (parses or speech.is_shown or speech.asks):
        return []
    if _OTHER_PROMPTS.search(client) and not (parses or speech.is_shown):
        return []
    return variants(speech, tool_parser, reasoning_parser)


def saying(server: ServerWanted, scripts: Scripts) -> ServerWanted:
    """The same server, whose model says ``scripts``."""
    return server.model_copy(update={"scripts": scripts})


def _raw(speech: Speech, text: str) -> Speech:
    """A speech whose model says ``text``."""
    return speech.model_copy(update={"raw": text[:MOST_RAW]})


def _shows_output(options: ReproCommand, speech: Speech, issue: Issue) -> bool:
    """Whether a report, or the user, shows what its model said. An answer is what a
    parser made of that, so it tells only where the fault is in the stream beside it."""
    if options.script is not None or speech.raw:
        return True
    return speech.is_shown and issue.streams and not speech.streamed


def is_judged(variant: SpokenVariant) -> bool:
    """Whether it is known what a sound parser makes of all that the model says; else
    nothing is held against the answers."""
    return all(answer.is_told for answer in variant.scripts.script)


def _is_sound(shown: Speech, variant: SpokenVariant) -> bool:
    """Whether an answer that a report shows is what a sound parser makes of all that
    the model says: then whatever is wrong with it no script can show."""
    (said,) = variant.scripts.script[:1]
    if not (shown.calls or shown.content) or not is_judged(variant):
        return False
    calls = [(call.name, call.arguments) for call in said.calls or []]
    same_calls = calls == [(call.name, call.arguments) for call in shown.calls]
    return same_calls and (said.content or "").strip() == shown.content.strip()


def _tell_speech(facts: ReportFacts, variant: SpokenVariant) -> None:
    """Say in the report's facts that the weights are not random."""
    for place, item in enumerate(facts.replaced):
        if item.model:
            why = f"its weights are a script: it {variant.what}"
            facts.replaced[place] = item.model_copy(update={"why": why})


# --------------------------------------------------------------------------- the report


def _has_report(options: ReproCommand) -> bool:
    return options.file is not None and options.file != NO_FILE


def _issue(options: ReproCommand) -> Issue:
    if options.file is None or not _has_report(options):
        return Issue()
    issue = read_issue(_text(options.file))
    if issue.other_engine and not options.server_command:
        raise UsageError(
            (
                f"The report is of {issue.other_engine}; mmrepro starts vLLM, SGLang "
                "and LMDeploy."
            ),
            hint='--server "vllm serve MODEL" to send its requests to one of these',
        )

    return issue


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


def _text(file: Path) -> str:
    try:
        return read_file(file, _MAX_TEXT).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error


def _head(file: Path | None) -> str:
    if file is None:
        return ""
    if is_folder(file):
        file = file / CASE_FILE
    with contextlib.suppress(OSError), open_to_read(file) as opened:
        return opened.read(_HEAD).decode("utf-8", "replace")
    return ""


# --------------------------------------------------------------------------- the client


def _client(options: ReproCommand, issue: Issue) -> ReportClient:
    """Raises UsageError: there is none, or it cannot be read."""
    if options.client:
        return _given_client(options.client)
    if issue.client:
        return _of_report(issue)
    if options.resume is not None and is_file(options.resume / CASE_FILE):
        return ReportClient("", file=options.resume / CASE_FILE)
    return (
        _without_requests(options, issue)
        or _made_client(issue)
        or _none(options, issue)
    )


def _without_requests(options: ReproCommand, issue: Issue) -> ReportClient | None:
    """No client, for a report that asks for none: it is of a start, or of what no
    request would show here; None: it asks for one."""
    is_start = FindingClass.START_FAILURE in issue.claim.classes
    if is_start or options.reported == "start-failure":
        return ReportClient("")
    is_of_weights = FindingClass.WRONG_ANSWER in issue.claim.classes
    of_others = needs_a_gpu(issue.claim) or is_of_weights
    if issue.server and of_others and not options.on_gpu:
        return ReportClient("")
    return None


def _made_client(issue: Issue) -> ReportClient | None:
    """A request for the words of its model that a report shows; None: none is known."""
    if issue.offline or issue.other_client:
        return None
    made = made_body(issue.speech, *_parsers(issue))
    if not made:
        return None
    issue.notes.append(
        "The report sends no request: one is made whose answer is what its model said."
    )
    issue.streams = True
    shown = "a request for the model's words that the report shows"
    return ReportClient(shown, name="body.json", text=made)


def _none(options: ReproCommand, issue: Issue) -> NoReturn:
    """Raises UsageError: why there is no client."""
    if issue.offline:
        raise UsageError(
            "The report runs the engine in its own process, by a script of which no "
            "engine's arguments are read.",
            hint='--client "python client.py" with the same requests to a server',
        )
    if issue.other_client:
        raise UsageError(
            f"The report's client is {issue.other_client}, which mmrepro does not run.",
            hint=_CLIENT_HINT,
        )
    what = "The report has" if _has_report(options) else "There is"
    raise UsageError(
        (
            f"{what} no client: no script with openai or requests, no curl, no "
            "request's body."
        ),
        hint=_CLIENT_HINT,
    )


def _parsers(issue: Issue) -> tuple[str, str]:
    """The parsers of calls and of thoughts: the server's, where it has a command."""
    if not issue.server:
        return issue.tool_parser, issue.reasoning_parser
    words = issue.server.split()
    return option_of(words, "--tool-call-parser"), option_of(
        words, "--reasoning-parser"
    )


def _parser_options(issue: Issue, words: Sequence[str]) -> list[str]:
    """Options of a server with the parsers that a report names, as far as ``words``
    lack them."""
    kinds = parser_kinds(issue.engine)
    named = {"tools": issue.tool_parser, "reasoning": issue.reasoning_parser}
    options: list[str] = []
    for kind, name in named.items():
        if name and kind in kinds and not has_option(words, kinds[kind].option):
            options += kinds[kind].args(name)
    return options


def _of_report(issue: Issue) -> ReportClient:
    if issue.client_kind == "python":
        client = _script("client.py", issue.client, "a Python script of the report")
    elif issue.client_kind == "shell":
        scripts = [name for name in issue.files if name.endswith(".py")]
        shown = f"{scripts[0]} of the report" if scripts else "curl lines of the report"
        client = _script("client.sh", issue.client, shown)
    elif issue.client_kind == "offline":
        shown = "a script of the report, with the engine in its own process"
        client = _script("client.py", issue.client, shown)
        client = replace(client, offline=True)
    elif issue.client_kind == "batch":
        shown = "a file of requests of the report"
        at_once = len(issue.client.strip().splitlines())
        return ReportClient(
            shown, name="batch.jsonl", text=issue.client, at_once=at_once
        )
    else:
        shown = "a request's body of the report"
        return ReportClient(shown, name="body.json", text=issue.client)

    return replace(client, files=issue.files)


def _given_client(text: str) -> ReportClient:
    """``--client``: a file, a folder, a curl line, or a command with a script in it."""
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
    if not scripts:
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
    offline = _has_own_engine(client)
    return replace(
        client, words=tuple(command), script=script.resolve(), offline=offline
    )


def _of_file(file: Path, shown: str) -> ReportClient:
    """By what it is: a script, a request's body, or what a replay reads."""
    if is_folder(file) or file.suffix in (".har", ".jsonl", ".log"):
        return ReportClient(shown, file=file)

    text = _text(file)
    is_json = file.suffix == ".json" or text.lstrip().startswith("{")
    if file.suffix in (".py", ".sh") or text.startswith("#!"):
        client = _script(file.name, text, shown)
    elif file.suffix in _WRITTEN_OTHERWISE:
        client = replace(_of_block(file, text), shown=shown)
    elif "curl " in text and not is_json:
        client = _script(file.name, text, shown, as_shell=True)
    else:
        return ReportClient(shown, file=file)

    return replace(client, script=file.resolve(), offline=_has_own_engine(client))


def _has_own_engine(client: ReportClient) -> bool:
    """Whether a script makes an engine in its own process, as a report's may."""
    if not client.name.endswith(".py"):
        return False
    return read_issue(f"````python\n{client.text}\n````").client_kind == "offline"


def _of_block(file: Path, text: str) -> ReportClient:
    """A file that is read as a report's block of that kind."""
    issue = read_issue(f"````{file.suffix[1:]}\n{text}\n````")
    if issue.client:
        return _of_report(issue)
    what = issue.other_client or "nothing that is read here"
    raise UsageError(
        f"{file} is {what}; mmrepro runs Python and shells.", hint=_CLIENT_HINT
    )


def _script(
    name: str, text: str, shown: str, *, as_shell: bool = False
) -> ReportClient:
    of_shell = text.startswith(("#!/bin/", "#!/usr/bin/env bash"))
    if as_shell or of_shell or name.endswith(".sh"):
        plain = with_plain_commands(text)
        return ReportClient(shown, words=("bash", name), name=name, text=plain)
    return ReportClient(shown, words=("python3", name), name=name, text=text)


# --------------------------------------------------------------------------- the server


def _server_text(given: str) -> str:
    """``--server``: a command, or a file with one: a script, a compose file, a pod."""
    if "\n" in given or not is_file(Path(given)):
        return given
    text = _text(Path(given))
    return of_manifest(text) or text


def _here(engine: str, device: str) -> list[str]:
    """Releases of an engine whose environment for that device is on this machine."""
    wanted = engine, device_of(device)
    releases: list[str] = []
    for environment in list_environments(sizes=False):
        made = environment.manifest
        # A commit, or a tree on a release's kernels, has the number of no release.
        is_release = not made.commit and not made.kernels
        if (made.engine, made.device) == wanted and is_release:
            releases.append(made.release)
    return releases


def _translated_server(
    options: ReproCommand, issue: Issue, text: str, traffic: str, facts: ReportFacts
) -> ServerWanted:
    """The server of a command, with a small model of the same kind; ``facts`` gets
    what was replaced."""
    command = parse(text)
    if options.engine and options.engine != command.engine:
        raise UsageError(
            f"--engine {options.engine}, and the command starts {command.engine}.",
            hint="leave --engine out",
        )

    release = options.release or _release_of(options, issue, command, facts)
    known, has = _installed(command.engine, release, options.device)
    named = command.release or issue.release
    is_start = FindingClass.START_FAILURE in facts.claim.classes
    made = translated(
        command,
        known,
        traffic,
        gpu=bool(options.on_gpu),
        serves=has,
        is_other=bool(named) and named != release and not is_start,
    )
    facts.replaced, facts.notes = list(made.replaced), [*facts.notes, *made.notes]
    # What the user asks for comes last.
    args = [*made.args, *_as_reported(command.engine, release, issue, facts)]
    server: dict[str, object] = {
        "engine": command.engine,
        "release": release,
        "model": made.model,
        "max_model_len": made.max_model_len,
        "args": [*args, *options.server_args],
        "env": {**made.env, **options.asked.get("env", {})},
    }
    for name in ("model", "max_model_len", "scripts"):
        if name in options.asked:
            server[name] = options.asked[name]
    if options.model:
        _tell_model(facts, options.model)
    wanted = ServerWanted.model_validate(server)
    get_engine(wanted.engine).environment_spec(wanted.release, "cpu")
    return wanted


def _tell_model(facts: ReportFacts, model: str) -> None:
    """Say in the report's facts that the user chose the model."""
    for place, item in enumerate(facts.replaced):
        if item.model:
            by = Path(model).name if is_folder(Path(model)) else model
            given = {"by": by, "why": "--model", "essential": False, "needs": None}
            facts.replaced[place] = item.model_copy(update=given)


def _as_reported(
    engine: str, release: str, issue: Issue, facts: ReportFacts
) -> list[str]:
    """Options with which the server runs the code that the report's traceback, its
    title or its command names."""
    name = shown_by(engine, release, facts.claim.hardware)
    shown = f"shows {facts.claim.hardware}"
    if not name:
        name = named_by(engine, release, f"{issue.title}\n{facts.server}")
        shown = "names it"
    if not name:
        return []
    facts.notes.append(f"The report {shown}: the server runs with {name}.")
    return [f"{{feature:{name}}}"]


def _release_of(
    options: ReproCommand, issue: Issue, command: ServerAsked, facts: ReportFacts
) -> str:
    """The installed release that is nearest to the report's; ``facts`` gets a sentence
    on that. Raises UsageError: none is named, or none is here."""
    named = command.release or issue.release
    here = _here(command.engine, options.device)
    if not named and facts.source:
        listed = ", ".join(sorted(here, key=Version)) or "none"
        raise UsageError(
            f"The report names no release of {command.engine}; here are {listed}.",
            hint="--release VERSION",
        )

    nearest, sentence = release_here(command.engine, named, here)
    if sentence:
        facts.notes.append(sentence)
    release = nearest or named
    if not release:
        raise UsageError(
            f"No release of {command.engine} is named, and none is installed here.",
            hint="--release VERSION",
        )
    return release


def _installed(
    engine: str, release: str, device: str
) -> tuple[Mapping[str, bool] | None, Callable[[str], bool]]:
    """The options of a release, and which architectures it serves: by its source, where
    it is installed."""
    environment = existing(spec_for(engine, release, device))
    if environment is None:
        return None, lambda architecture: False
    packages = environment.site_packages
    options = options_of(engine, packages) or None
    return options, partial(serves, engine, release, packages)


def _own_server(options: ReproCommand, client: ReportClient) -> ServerWanted:
    """Without a command: a case's own, or what the options say. Raises UsageError."""
    named = {"engine": options.engine} if options.engine else {}
    place = client.file or NO_FILE
    is_case = client.file is not None and holds_case(place)
    if not (named or options.resume or is_case):
        what = "The report has" if _has_report(options) else "There is"
        raise UsageError(
            f"{what} no server's command.",
            hint='--server "vllm serve MODEL --flags …"',
        )
    return server_wanted(place, options.resume, named | options.asked)
