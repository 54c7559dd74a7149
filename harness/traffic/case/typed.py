"""What a person types to have the server of a case: the engine, its model, its own
command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from mmrepro.base.records import Setting
from mmrepro.engines.models import BESIDE, TINY, with_folders
from mmrepro.engines.serving import serving
from mmrepro.traffic.case.model import SCRIPT_FILE, Barrier, Case, ServerWanted

_MODEL_DIR: Final = BESIDE


def in_order(case: Case) -> bool:
    """Whether each request is sent when the one before has ended, whatever else it
    waits for."""
    for before, op in zip(case.operations, case.operations[1:], strict=False):
        ended = {b.op for b in map(Barrier.parse, op.after) if b.event == "end"}
        if before.id not in ended and "running<=0" not in op.after:
            return False
    return True


def server_command(
    case: Case, settings: list[Setting], model: str, port: int = 8000
) -> str:
    """The engine's own command for the server that the case needs, variables before
    it."""
    server = case.server
    length = str(server.max_model_len)
    begin = serving(server.engine).typed(server.engine, model, length, str(port))
    env = {s.name: s.value for s in settings if _of_use(s)} | server.env
    begin += server_options(settings, begin)
    variables = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join([*variables, shlex.join([*begin, *map(with_folders, server.args)])])


def server_options(settings: list[Setting], given: list[str]) -> list[str]:
    """What mmrepro itself set on the command line, without paths of its machine."""
    found: list[str] = []
    for setting in settings:
        named = setting.name.startswith("-") and setting.name not in given
        if named and "/" not in setting.value:
            found += [setting.name, *([setting.value] if setting.value else [])]
    return found


_PRIVATE: Final = ("NO_USAGE_STATS", "DO_NOT_TRACK", "LOGGING", "OFFLINE", "SAGEMAKER")


def _of_use(setting: Setting) -> bool:
    """A variable that is neither a path of this machine nor something that only mmrepro
    wants."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", setting.name) or "/" in setting.value:
        return False
    return not any(word in setting.name for word in _PRIVATE)


def _installed(server: ServerWanted, project: str) -> str:
    """The line that installs the release; of a source tree, which no index has, the
    release that lends it compiled files, and what lies over that."""
    package = project or server.engine
    # As engines.environments.TreeLabel writes it: 0.33.1.dev4+gabc123.src1a2b.on.0.33.0
    version, is_tree, kernels = server.release.partition(".on.")
    if not is_tree:
        return f"pip install {package}=={version}"
    python, _, _ = version.partition(".src")
    return f"pip install {package}=={kernels}  # and over it the Python of {python}"


def server_steps(case: Case, settings: list[Setting], project: str = "") -> list[str]:
    """What a reader types to have the server: the engine, the model, the server's
    command."""
    server = case.server
    written = server.model in TINY
    # A folder by its last part: where it lay is of no use to others.
    own = (
        f"./{Path(server.model).name}"
        if "/" in server.model.strip("/")
        else server.model
    )
    model = _MODEL_DIR if written else own
    lines = [serving(server.engine).install or _installed(server, project)]
    if written and case.operations:
        lines.append(f"python3 {SCRIPT_FILE} --write-model {_MODEL_DIR}")
    return [*lines, server_command(case, settings, model)]
