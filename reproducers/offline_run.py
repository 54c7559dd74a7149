"""Runs a script that has an engine in its own process, with another model in it, and
prints what it asks of that.

Started in an engine's environment, beside the script, with the name of a file of
settings: ``script``; ``entries``: classes whose arguments are replaced, each with the
field of the model and the options that the server of mmrepro has, and what a release
that lacks them has ``instead``; ``calls``: methods that ask, each with the path of the
API that asks the same. Whatever else the script
gives the engine becomes the engine's default: nothing that it names is loaded or sent
for. Standard library only."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

MARK = "\x1ecall "
"""Begins a line that is for mmrepro."""
_MOST_CALLS = 2_000
_NOT_READ = "a script with its own engine is not read for this release"


def _replaced(entry: dict[str, Any]) -> None:
    """Give each object of a class the options of the settings, and defaults besides."""
    module = importlib.import_module(entry["module"])
    kind = getattr(module, entry["class"])
    before = getattr(kind, "__post_init__", None)

    def after_init(self: Any, *args: Any, **kwargs: Any) -> None:
        for field in dataclasses.fields(self):
            if field.default is not dataclasses.MISSING:
                setattr(self, field.name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                setattr(self, field.name, field.default_factory())
        known = {field.name for field in dataclasses.fields(self)}
        for name, value in entry["options"].items():
            if name in known:
                setattr(self, name, value)
        if before is not None:
            before(self, *args, **kwargs)

    kind.__post_init__ = after_init


def _configured(entry: dict[str, Any]) -> None:
    """Make a class of the settings' model and configuration, whatever it is given."""
    kind = getattr(importlib.import_module(entry["module"]), entry["class"])
    before = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, **_model_and_configuration(entry))

    kind.__init__ = init


def _called_otherwise(entry: dict[str, Any]) -> None:
    """Call a function with the settings' model and configuration, whatever it is
    given; ``also``: modules that have it under the same name."""
    before = getattr(importlib.import_module(entry["module"]), entry["function"])

    def made(*args: Any, **kwargs: Any) -> Any:
        return before(**_model_and_configuration(entry))

    for place in (entry["module"], *entry["also"]):
        setattr(importlib.import_module(place), entry["function"], made)


def _model_and_configuration(entry: dict[str, Any]) -> dict[str, Any]:
    config = importlib.import_module(entry["config_module"])
    config = getattr(config, entry["config_class"])
    known = {field.name for field in dataclasses.fields(config)}
    renamed = entry.get("renamed", {})
    options = {renamed.get(name, name): v for name, v in entry["options"].items()}
    options = {name: value for name, value in options.items() if name in known}
    model = entry["options"][entry["model"]]
    return {entry["model"]: model, entry["config"]: config(**options)}


def _watched(call: dict[str, Any], told: list[int]) -> None:
    """Print what a method is asked, before it is called."""
    module = importlib.import_module(call["module"])
    kind = getattr(module, call["class"])
    method = getattr(kind, call["method"])
    form = inspect.signature(method)

    @functools.wraps(method)
    def asked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = form.bind(*args, **kwargs).arguments
            for body in _bodies(given, call):
                _tell({"path": call["path"], "body": body}, told)
        except Exception as error:
            print(f"mmrepro: a call is not recorded: {error}", file=sys.stderr)
        return method(*args, **kwargs)

    setattr(kind, call["method"], asked)


def _tell(request: dict[str, Any], told: list[int]) -> None:
    if len(told) >= _MOST_CALLS:
        return
    told.append(1)
    line = json.dumps(request, default=str)
    print(f"\n{MARK}{line}", flush=True)


def _bodies(given: dict[str, Any], call: dict[str, Any]) -> list[dict[str, Any]]:
    """Bodies of the requests that ask the same as a call."""
    prompts: Any = None
    for name in call["prompts"]:
        if given.get(name) is not None:
            prompts = given[name]
            break
    parameters: Any = None
    for name in call["parameters"]:
        if given.get(name) is not None:
            parameters = given[name]
            break
    several = isinstance(prompts, (list, tuple)) and not _is_one(prompts)
    prompts = list(prompts) if several else [prompts]
    if not isinstance(parameters, (list, tuple)):
        parameters = [parameters] * len(prompts)
    made = []
    for prompt, chosen in zip(prompts, parameters, strict=False):
        body = _asked(prompt, call["field"], call.get("ids", call["field"]))
        if call["nested"]:
            body["sampling_params"] = _fields(chosen)
        else:
            body.update(_fields(chosen))
        made.append(body)
    return made


def _is_one(prompts: Any) -> bool:
    """Whether a list is one prompt: token ids, or the messages of a chat."""
    first = prompts[0] if prompts else None
    return isinstance(first, int) or (isinstance(first, dict) and "role" in first)


def _asked(prompt: Any, field: str, ids: str) -> dict[str, Any]:
    """``ids``: the field for token ids."""
    if isinstance(prompt, dict) and "prompt_token_ids" in prompt:
        prompt = list(prompt["prompt_token_ids"])
    elif isinstance(prompt, dict) and "prompt" in prompt:
        prompt = prompt["prompt"]
    if field == "messages" and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    is_of_ids = isinstance(prompt, (list, tuple)) and prompt and type(prompt[0]) is int
    return {ids if is_of_ids else field: prompt}


def _fields(parameters: Any) -> dict[str, Any]:
    """Parameters that differ from the defaults, as far as JSON has them."""
    pairs = list(_changed(parameters))
    if isinstance(parameters, dict):
        pairs = list(parameters.items())
    kept = {}
    for name, value in pairs:
        if str(name).startswith("_") or value is None:
            continue
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            value = _fields(value)
            if not value:
                continue
        kept[str(name)] = value
    return kept


def _changed(parameters: Any) -> Any:
    """Yield fields of a record that differ from those of one that was given nothing."""
    names: Any = getattr(parameters, "__struct_fields__", None)
    names = names or getattr(parameters, "__dataclass_fields__", ())
    try:
        plain = type(parameters)()
    except Exception:  # it cannot be made of nothing: all of its fields are told
        plain = None
    for name in names:
        value = getattr(parameters, name, None)
        if plain is None or value != getattr(plain, name, None):
            yield name, value


def _enter(entry: dict[str, Any]) -> None:
    """Replace what an entry names; where a release lacks that, what it has ``instead``.

    Raises:
        ImportError, AttributeError: the release has neither.
    """
    try:
        if "function" in entry:
            _called_otherwise(entry)
        elif "config" in entry:
            _configured(entry)
        else:
            _replaced(entry)
    except (ImportError, AttributeError):
        if "instead" not in entry:
            raise
        older = {**entry, **entry["instead"]}
        del older["instead"]
        _enter(older)


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for entry in settings["entries"]:
        try:
            _enter(entry)
        except (ImportError, AttributeError) as error:
            sys.exit(f"mmrepro: {_NOT_READ}: {error}")
    told: list[int] = []
    missing = []
    for call in settings["calls"]:
        try:
            _watched(call, told)
        except (ImportError, AttributeError) as error:
            missing.append(f"mmrepro: {call['method']} is not there: {error}")
    if len(missing) == len(settings["calls"]):
        print(*missing, sep="\n", file=sys.stderr)

    script = settings["script"]
    code = compile(Path(script).read_text(encoding="utf-8"), script, "exec")
    # This file stays the main module: a process that the engine spawns imports that,
    # and is not to run the script again.
    sys.argv = [script]
    sys.path.insert(0, ".")
    exec(code, {"__name__": "__main__", "__file__": script})  # noqa: S102


if __name__ == "__main__":
    main()
