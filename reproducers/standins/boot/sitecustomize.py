"""Starts the stand-ins of a run in every Python process of the engine.

``MMREPRO_STAND_INS`` names their folders, separated like PATH. The folders are on
``PYTHONPATH`` as well, so that a package in one of them is found before the installed
one. A folder's ``standin.py`` is run here, in order. A stand-in that fails ends the
process: `site` would print the error and go on, and the run would be judged without
what its report lists."""

import importlib.util
import os
import sys
import traceback
from pathlib import Path

_EXIT_CODE = 70  # EX_SOFTWARE


def start(folder: Path) -> None:
    file = folder / "standin.py"
    if not file.is_file():
        return
    name = f"mmrepro_stand_in_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


for entry in os.environ.get("MMREPRO_STAND_INS", "").split(os.pathsep):
    if not entry:
        continue
    try:
        start(Path(entry))
    except BaseException:
        traceback.print_exc()
        print(f"mmrepro: the stand-in in {entry} failed", file=sys.stderr, flush=True)
        os._exit(_EXIT_CODE)
