"""The commands: where each is, what it does, and in which order help lists them."""

COMMANDS = {
    "demo": ("demo:demo", "Show a recorded incident. Nothing is downloaded."),
    "run": ("run:run", "Drive a real engine into a known failure."),
    "diagnose": ("live:diagnose", "Find out what is wrong with a live server."),
    "logs": ("logs:logs", "Find out what ended a server, from its logs and dumps."),
    "why": ("why:why", "Find out why a server does not start."),
    "find": (
        "find:find",
        "Look up an error message, log or issue among the known failures.",
    ),
    "repro": ("repro:repro", "Test a bug report: its server and its client."),
    "replay": ("replay:replay", "Shrink recorded traffic to what fails."),
    "capture": ("capture:capture", "Write recorded traffic as a trace without texts."),
    "fuzz": ("replay:fuzz", "Look for failures that nobody has reported."),
    "upgrade": ("upgrade:upgrade", "Compare two releases under your traffic."),
    "ablate": ("ablate:ablate", "Find out which setting is the cause."),
    "bisect": ("bisect:bisect", "Find the release that brought or fixed a failure."),
    "bisect-run": ("bisect:bisect_run", "Test one source tree, for git bisect run."),
    "test-tree": ("test_tree:test_tree", "Run an engine's own tests on one tree."),
    "commit": ("commit:commit", "Find out what a commit of an engine changes."),
    "matrix": ("matrix:app", "Scenarios × releases, night after night."),
    "resume": ("incidents:resume", "Continue the campaign in a folder."),
    "list": ("scenarios:list_scenarios", "List the known failure modes."),
    "show": ("scenarios:show", "Show one failure mode: symptom, cause, mitigations."),
    "incidents": ("incidents:incidents", "List what ran here, newest first."),
    "open": ("incidents:open_", "Open the page of an incident or a campaign."),
    "report": ("report:report", "Make a report again."),
    "judge": ("report:judge", "Judge recorded evidence again."),
    "new": ("new:new", "Write a scenario for you to fill in."),
    "watch": ("live:watch", "Check a live server's health at an interval."),
    "bundle": ("report:bundle", "Pack an incident for an upstream issue."),
    "share": ("share:share", "Write one page with its evidence inside, redacted."),
    "check": ("check:check", "Show what this machine can do."),
    "kv-budget": (
        "kv_budget:kv_budget",
        "Compute an engine's KV cache from its setting.",
    ),
    "env": ("env:app", "The cached environments of engines."),
    "mcp": ("mcp:mcp", "Serve these commands as tools for an agent."),
    "schema": ("schema:schema", "Print the JSON Schema of what a command prints."),
    "help": ("help:help_", "Print a page of the documentation, or all commands."),
}
"""By name: where a command is (``module:name`` below ``mmrepro.cli``), and what it
does."""
GROUPS = {
    "First": ("demo",),
    "A server that hangs, died or does not start": (
        "diagnose",
        "logs",
        "why",
        "find",
        "watch",
        "check",
    ),
    "A bug report, or traffic that breaks a server": (
        "repro",
        "replay",
        "capture",
        "fuzz",
        "run",
        "list",
        "show",
    ),
    "Releases to guard": (
        "upgrade",
        "matrix",
        "bisect",
        "bisect-run",
        "test-tree",
        "commit",
        "ablate",
    ),
    "What ran here": (
        "incidents",
        "open",
        "report",
        "judge",
        "bundle",
        "share",
        "resume",
    ),
    "Tools": ("new", "kv-budget", "env", "mcp", "schema", "help"),
}
"""The commands by what brings a person here."""
EVERYDAY = frozenset(
    {
        "demo",
        "diagnose",
        "logs",
        "why",
        "find",
        "check",
        "repro",
        "replay",
        "run",
        "list",
        "upgrade",
        "matrix",
    }
)
"""The commands that ``mmrepro --help`` lists; ``mmrepro help all`` has the rest."""
ALIASES = {"ls": "list", "doctor": "check", "explain": "show"}
"""What people type who know other tools."""
PAGES = {
    "demo": "index.md",
    "run": "verdicts.md",
    "find": "logs.md",
    "watch": "live-servers.md",
    "bundle": "live-servers.md",
    "share": "live-servers.md",
    "check": "why.md",
    "list": "catalogue.md",
    "show": "catalogue.md",
    "judge": "verdicts.md",
    "new": "first-scenario.md",
    "env": "wheelhouse.md",
    "bisect-run": "bisect.md",
    "test-tree": "source.md",
    "commit": "source.md",
    "mcp": "maintainers.md",
    "resume": "troubleshooting.md",
    "incidents": "options.md",
    "open": "options.md",
    "report": "options.md",
    "schema": "options.md",
    "help": "commands.md",
}
"""Where a command is described that has no page of its own name."""
FOLDED = {
    "accept": (
        "What only a GPU can show is a nightly run's file and a recipe: mmrepro help gpu.",
        "mmrepro matrix run docs/gpu.toml --out accepted",
    ),
    "claims": (
        "The claims of a report are part of mmrepro show.",
        "mmrepro show SCENARIO --claims",
    ),
    "collide": (
        "The search for two pictures of one pad value is a script of its scenario.",
        "python -m mmrepro.scenarios.pad_value_collision.collide --help",
    ),
    "probe": (
        "One kind of evidence is collected by mmrepro diagnose.",
        "mmrepro diagnose URL --only KIND",
    ),
    "warm": (
        "Engines are kept imported by mmrepro env warm, with the same words.",
        "mmrepro env warm --help",
    ),
}
"""Commands that became an option of another one: a sentence, and what is typed
instead."""
START_ENGINES = frozenset(
    {
        "run",
        "repro",
        "replay",
        "fuzz",
        "upgrade",
        "ablate",
        "bisect",
        "bisect-run",
        "env warm",
    }
)
"""Commands that ask for the extra before they do anything: a server would start in
vain."""
