"""Options that several commands have, each declared once."""

from __future__ import annotations

from collections.abc import Iterable

from mmrepro.base.errors import UsageError
from mmrepro.base.options import ENGINE, EVIDENCE, LIMITS, OUTPUT, Option
from mmrepro.base.units import exact_duration, parse_duration

WEEK_S = 7 * 86400.0
"""Seconds above which a limit is a slip; what the clocks of the system can hold is far
above."""


def read_window(text: str) -> tuple[float, float]:
    """Return the seconds of ``60..120``, ``1m..2m``, ``..30s`` or ``5m..``. Raises
    UsageError."""
    begin, dots, end = text.partition("..")
    begin_s = _seconds_or_0(begin)
    end_s = _seconds_or_0(end)
    if not dots or (end and begin_s >= end_s):
        raise UsageError(f"--window {text} is no span of time.", hint="--window 1m..2m")
    return begin_s, end_s if end else WEEK_S


def _seconds_or_0(text: str) -> float:
    """Return the seconds of a duration; 0 for nothing and for zeros, which are no
    duration elsewhere."""
    return parse_duration(text) if text.strip("0 ") else 0.0


def write_window(window: tuple[float, float]) -> str:
    begin, end = window
    return f"{exact_duration(begin) if begin else 0}..{exact_duration(end)}"


FIRST = Option("Only so many requests of the recording, the first ones.", "N", least=1)
WINDOW = Option(
    "Only requests that were sent in this time after the first one, e.g. 1m..2m.",
    "FROM..TO",
    read=read_window,
    write=write_window,
)
SCENARIO = Option(
    "Name of a scenario, NAME:VARIANT, or a FILE.py with one.",
    "SCENARIO",
    argument=True,
    required=True,
    names="scenario",
)
PLACE = Option(
    "Folder; or its number in mmrepro incidents, its id, or last.",
    "DIR|N|ID|last",
    argument=True,
    required=True,
    names="record",
)


def read_address(text: str) -> str:
    """Return the address of ``127.0.0.1:8000`` or ``8000`` with its scheme."""
    if not text or "://" in text:
        return text
    if text.isdecimal():
        return f"http://127.0.0.1:{text}"
    # A word without a port is more likely a wrong command than a host.
    return f"http://{text}" if ":" in text or text == "localhost" else text


URL = Option(
    "The server, e.g. http://127.0.0.1:8000 or 127.0.0.1:8000.",
    "URL",
    argument=True,
    required=True,
    read=read_address,
)
HEADER = Option(
    "Header of each request, e.g. 'Authorization: Bearer KEY'. May be repeated.",
    "NAME: VALUE",
    name="--header",
    private=True,
)
SCENARIOS = Option(
    "Only these scenarios.", "SCENARIO…", argument=True, shown="all", names="scenario"
)
ENGINE_NAME = Option(
    "vllm, sglang, lmdeploy or minivllm.", "ENGINE", name="--engine", names="engine"
)
RULES = Option(
    "Your own rules for lines of logs, tried before all others: mmrepro help logs.",
    "FILE",
    EVIDENCE,
    name="--rules",
)
VARIANT = Option(
    "Variant of the scenario; see mmrepro show SCENARIO.", "NAME", names="variant"
)
RELEASE = Option(
    "Release of the engine.", "VERSION", shown="the scenario's", names="release"
)
SOURCE = Option(
    "In place of a release: the Python of a checkout (or one revision), of an "
    "unpacked sdist or wheel, or of vllm==X.",
    "DIR[@REV]",
    name="--source",
    configurable=False,
)
KERNELS = Option(
    "With --source: the release that lends its compiled files and packages.",
    "VERSION",
    shown="the nearest that has a wheel",
    names="release",
    configurable=False,
)
COMMIT = Option("In place of a release: this commit's wheel, from --index.", "SHA")
COMMIT_DATE = Option(
    "Resolve the commit's requirements as of then.", "DATE", shown="today"
)
INDEX = Option(
    "Address of the commits' wheels; {commit} is replaced by the commit.",
    "URL",
    private=True,
    variable="MMREPRO_COMMIT_INDEX",
    runs_code=True,
)
MITIGATION = Option(
    "Apply a mitigation; see mmrepro show SCENARIO. May be repeated.",
    "NAME",
    name="--mitigation",
    distinct=True,
    names="mitigation",
)
FLIP = Option(
    "Toggle a factor, as mmrepro ablate does. May be repeated.",
    "FACTOR",
    name="--flip",
    distinct=True,
    names="factor",
)
OPTION = Option(
    "Option of the scenario; see mmrepro show SCENARIO. May be repeated.",
    "NAME[=VALUE]",
    name="--option",
)
REPEAT = Option("Number of runs.", "N", least=1, most=1000)
SEED = Option("Random seed.", "N", least=0)
SHRINK = Option(
    "Shrink what is found to the requests that it needs.", name="--shrink/--no-shrink"
)

BOX = Option(
    "Run the servers in a box: no network, none of your files (mmrepro help box).",
    group=LIMITS,
    name="--box/--no-box",
    configurable=False,  # a file in a stranger's folder could say so
    runs_code=True,
)

DEVICE = Option(
    "Where the engine runs; auto takes a GPU where there is one.",
    group=ENGINE,
    choices=("auto", "cpu", "cuda"),
)
MODEL = Option("Folder of a model that is served instead of a tiny one.", "DIR", ENGINE)
RANK_OPTIONS = {
    "TP": ("--tensor-parallel-size", "-tp", "--tp-size", "--tp"),
    "PP": ("--pipeline-parallel-size", "-pp", "--pp-size", "--pp"),
    "DP": ("--data-parallel-size", "-dp", "--dp-size", "--dp"),
    "EP": ("--expert-parallel-size", "-ep", "--ep-size", "--ep"),
}
"""Options of vLLM, SGLang and LMDeploy: in how many ranks of each group a server runs
the model."""
FEATURE_OPTIONS = {"--runner": "runner-", "--front": "front-"}
"""``--runner v2`` is ``--server-arg={feature:runner-v2}``, for an engine that has
several model runners or front ends."""


def options_as_typed(words: Iterable[str]) -> list[str]:
    """Options of a server as a person types them: ``--runner v2`` for
    ``{feature:runner-v2}``."""
    typed: list[str] = []
    for word in words:
        for option, prefix in FEATURE_OPTIONS.items():
            begin = f"{{feature:{prefix}"
            if word.startswith(begin) and word.endswith("}"):
                typed += [option, word[len(begin) : -1]]
                break
        else:
            typed.append(word)
    return typed


SERVER_ARG = Option(
    "One more option of the server, e.g. --server-arg=--dtype=float32. May be "
    "repeated. --tensor-parallel-size 2 and the like may be written as they are, and "
    "so may, for vLLM, --runner v1, v2 or default (what the release chooses on a GPU) "
    "and --front python or rust.",
    "ARG",
    ENGINE,
    name="--server-arg",
    attached=True,
    runs_code=True,
)
SERVER_ENV = Option(
    "Environment variable of the server. May be repeated.",
    "NAME=VALUE",
    ENGINE,
    attached=True,
    runs_code=True,
)
MAX_MODEL_LEN = Option(
    "Tokens that a prompt and its answer may have.", "N", ENGINE, least=64
)
START_MODE = Option(
    "How servers are started; see mmrepro run --help.",
    group=ENGINE,
    variable="MMREPRO_START_MODE",
)

TIMEOUT = Option(
    "Time limit of one run; building the environment does not count.",
    "SECONDS",
    LIMITS,
    name="--timeout",
    least=1,
    most=WEEK_S,
)
BUDGET = Option(
    (
        "Time for the whole command, e.g. 25m or 2h: no run is started that is not expected "
        "to end in time."
    ),
    "TIME",
    LIMITS,
    name="--budget",
    read=parse_duration,
    write=exact_duration,
)
JOBS = Option("Number of runs at a time.", "N", LIMITS, least=1, most=64)
RAY = Option(
    "Run on the machines of a Ray cluster.", "auto|HOST:PORT", LIMITS, runs_code=True
)
FRESH = Option(
    "Run everything again; use no result of an earlier run.", group=LIMITS, once=True
)
RESUME = Option(
    "Continue what was interrupted; no run is repeated.", "DIR", LIMITS, once=True
)
DRY_RUN = Option(
    "Print what would be run and how long it takes; run nothing.",
    group=LIMITS,
    once=True,
)

CONTRACT_PROBE = Option(
    "Check each step of the engine against the multimodal prefill contract.",
    group=EVIDENCE,
    name="--contract-probe/--no-contract-probe",
)
QUIET = Option(
    "Print the verdict and the path of its page, nothing else.",
    group=OUTPUT,
    short="-q",
    once=True,
)
VERBOSE = Option("Print each event as it happens.", group=OUTPUT, short="-v", once=True)
TRUST = Option(
    (
        "Run the FILE.py that is named, for what parsing alone does not show. Read "
        "it first: it can do what you can."
    ),
    once=True,
    configurable=False,
    runs_code=True,
)
YES = Option("Download without asking.", group=OUTPUT, short="-y", once=True)
FULL = Option("Print every section, not the summary alone.", group=OUTPUT, once=True)
SECRETS_FILE = Option(
    "Texts to replace wherever they occur, one a line.", "FILE", OUTPUT
)
FORCE = Option("Write over files that are there.", group=OUTPUT, once=True)
MARKDOWN = Option("Print the whole page, as docs/ has it.", group=OUTPUT, once=True)
LEDGER = Option("Folder of the ledger.", "DIR", argument=True, names="campaign")
QUARANTINE = Option(
    "TOML with the cells that are not to fail the run.",
    "FILE",
    OUTPUT,
    configurable=False,
)
NIGHT = Option(
    "Which nightly run.", "NAME", OUTPUT, configurable=False, shown="the newest"
)
OUT = Option("Folder of the results.", "DIR", OUTPUT, once=True)
JSON = Option("Print one JSON document on stdout.", group=OUTPUT, once=True)
EVENTS = Option(
    "Write what happens to FILE as JSON lines; - is stdout.",
    "FILE|-",
    OUTPUT,
    once=True,
)
