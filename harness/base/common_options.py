"""Options that several commands have, each declared once."""

from __future__ import annotations

from mmrepro.base.options import ENGINE, EVIDENCE, LIMITS, OUTPUT, WHAT, Option

WEEK_S = 7 * 86400.0
"""Seconds above which a limit is a slip; what the clocks of the system can hold is far above."""
START_MODE_VARIABLE = "MMREPRO_START_MODE"

# ---------------------------------------------------------------- what to run

SCENARIO = Option(
    "SCENARIO", "Name of a scenario, or a FILE.py with one.", metavar="SCENARIO", required=True
)
ENGINE_NAME = Option(
    "ENGINE", "vllm, sglang, lmdeploy or minivllm.", metavar="ENGINE", required=True
)
VARIANT = Option("--variant", "Variant of the scenario; see mmrepro show SCENARIO.", WHAT, "NAME")
RELEASE = Option("--release", "Release of the engine.", WHAT, "VERSION", default="the scenario's")
COMMIT = Option(
    "--commit", "In place of a release: this commit's wheel, from --index.", WHAT, "SHA"
)
COMMIT_DATE = Option(
    "--commit-date", "Resolve the commit's requirements as of then.", WHAT, "DATE", default="today"
)
INDEX = Option(
    "--index",
    "Address of the commits' wheels; {commit} stands for the commit.",
    WHAT,
    "URL",
    private=True,
    variable="MMREPRO_COMMIT_INDEX",
)
MITIGATION = Option(
    "--mitigation", "Apply a mitigation; see mmrepro show SCENARIO. May be repeated.", WHAT, "NAME",
    distinct=True,
)  # fmt: skip
FLIP = Option(
    "--flip",
    "Toggle a factor, as mmrepro ablate does; see mmrepro show SCENARIO. May be repeated.",
    WHAT,
    "FACTOR",
    distinct=True,
)
OPTION = Option(
    "--option", "Option of the scenario; see mmrepro show SCENARIO. May be repeated.", WHAT,
    "NAME[=VALUE]",
)  # fmt: skip
REPEAT = Option("--repeat", "Number of runs.", WHAT, "N", least=1, most=1000)
SEED = Option("--seed", "Random seed.", WHAT, "N", least=0)
SHRINK = Option("--shrink/--no-shrink", "Shrink what is found to the requests that it needs.", WHAT)

# ---------------------------------------------------------------- the engine

DEVICE = Option(
    "--device",
    "Where the engine runs; auto takes a GPU where there is one.",
    ENGINE,
    choices=("auto", "cpu", "cuda"),
)
MODEL = Option("--model", "Folder of a model that is served instead of a tiny one.", ENGINE, "DIR")
SERVER_ARG = Option(
    "--server-arg",
    "One more option of the server, e.g. --server-arg=--dtype=float32. May be repeated.",
    ENGINE,
    "ARG",
    attached=True,
)
SERVER_ENV = Option(
    "--env",
    "Environment variable of the server. May be repeated.",
    ENGINE,
    "NAME=VALUE",
    attached=True,
)
MAX_MODEL_LEN = Option(
    "--max-model-len", "Tokens that a prompt and its answer may have.", ENGINE, "N", least=64
)
START_MODE = Option(
    "--start-mode",
    "How servers are started; see mmrepro run --help.",
    ENGINE,
    variable=START_MODE_VARIABLE,
)

# ---------------------------------------------------------------- how long and where

TIMEOUT = Option(
    "--timeout",
    "Time limit of one run; building the environment does not count.",
    LIMITS,
    "SECONDS",
    least=1,
    most=WEEK_S,
)
BUDGET = Option("--budget", "Time for all of it, e.g. 25m or 2h.", LIMITS, "TIME")
JOBS = Option("--jobs", "Number of runs at a time.", LIMITS, "N", least=1, most=64)
RAY = Option("--ray", "Run on the machines of a Ray cluster.", LIMITS, "auto|HOST:PORT")
FRESH = Option(
    "--fresh", "Run everything again; use no result of an earlier run.", LIMITS, repeated=False
)
RESUME = Option(
    "--resume", "Continue what was interrupted; no run is repeated.", LIMITS, repeated=False
)
RESUME_DIR = RESUME.but(help="Continue what is in this folder; no run is repeated.", metavar="DIR")
DRY_RUN = Option(
    "--dry-run", "Print what would be run and how long it takes; run nothing.", LIMITS,
    repeated=False,
)  # fmt: skip

# ---------------------------------------------------------------- output

OUT = Option("--out", "Folder of the results.", OUTPUT, "DIR", repeated=False)
JSON = Option("--json", "Print one JSON document on stdout.", OUTPUT, repeated=False)
EVENTS = Option(
    "--events",
    "Write what happens to FILE as JSON lines; - is stdout.",
    OUTPUT,
    "FILE|-",
    repeated=False,
)
CONTRACT_PROBE = Option(
    "--contract-probe/--no-contract-probe",
    "Check each step of the engine against the multimodal prefill contract.",
    EVIDENCE,
)
