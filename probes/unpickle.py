"""Reads a pickle of SGLang's without running anything of it. A program of its own.

It is started by :mod:`mmrepro.probes.request_dumps` as ``python -I -S unpickle.py <
FILE``, and prints one JSON document. Three walls stand between the file and this
machine: no name of the pickle is looked up (each becomes an :class:`Inert`, which keeps
its arguments, or is refused), an audit hook refuses every operation on files,
processes, sockets, modules and code, and the limits of the process leave it no file
descriptor, no child, and a bounded share of memory and time."""

from __future__ import annotations

import gc
import json
import pickle  # only its Unpickler, with find_class replaced
import resource
import sys
from collections import OrderedDict, defaultdict, deque
from typing import Any, NoReturn

CPU_S = 20
BASE_BYTES = 512 << 20
PER_BYTE = 3
MAX_REQUESTS = 2000
MAX_ITEMS = 200_000
"""Of one container that are looked at."""

ALLOWED = {
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "tuple"): tuple,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "complex"): complex,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "deque"): deque,
}
"""All that is really made: containers of what else is in the file."""
INERT = frozenset(
    {
        "sglang",
        "torch",
        "numpy",
        "PIL",
        "transformers",
        "tokenizers",
        "msgspec",
        "pydantic",
        "pydantic_core",
        "fastapi",
        "starlette",
        "datetime",
        "uuid",
        "enum",
        "pathlib",
        "decimal",
        "fractions",
        "array",
        "_codecs",
        "copyreg",
        "collections",
        "zoneinfo",
    }
)
"""Packages whose names a dump may hold. None of them is imported."""

OPTIONS = (
    "model_path",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "tp_size",
    "pp_size",
    "dp_size",
    "ep_size",
    "nnodes",
    "mem_fraction_static",
    "max_running_requests",
    "max_total_tokens",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "page_size",
    "attention_backend",
    "sampling_backend",
    "grammar_backend",
    "mm_attention_backend",
    "speculative_algorithm",
    "disaggregation_mode",
    "disable_radix_cache",
    "disable_cuda_graph",
    "disable_overlap_schedule",
    "enable_dp_attention",
    "enable_multimodal",
    "enable_lora",
    "watchdog_timeout",
    "device",
    "version",
)
"""Of ``ServerArgs``; never its keys."""
FIELDS = (
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "stream",
    "return_hidden_states",
    "lora_path",
    "lora_id",
    "custom_logit_processor",
    "session_params",
    "bootstrap_host",
    "bootstrap_room",
    "priority",
    "input_embeds",
    "require_reasoning",
    "return_routed_experts",
    "positional_embed_overrides",
    "image_max_dynamic_patch",
)
"""Of ``GenerateReqInput``, that a client sets; the fields of ``sampling_params`` are
all a client's. Texts are not printed: they are the user's."""
MEDIA = ("image_data", "video_data", "audio_data", "modalities")
SECRET = ("--api-key", "--admin-api-key", "--tokenizer-metrics-custom-labels-header")


class Refused(Exception):
    """The pickle asks for something that no dump of requests holds."""


class Inert:
    """What a name of the file would have made: nothing but what the file holds of
    it."""

    kind = ""

    def __new__(cls, *args: Any, **more: Any) -> Inert:
        made = object.__new__(cls)
        made.args, made.state, made.items = args, more or None, []
        return made

    def __init__(self, *args: Any, **more: Any) -> None:
        self.args: tuple[Any, ...]
        self.state: Any
        self.items: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    add = append

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


def _remade(cls: Any, *rest: Any) -> Inert:
    """In place of ``copyreg._reconstructor`` and ``__newobj__``."""
    if isinstance(cls, type) and issubclass(cls, Inert):
        return cls()
    return Inert(cls, *rest)


class Reader(pickle.Unpickler):  # find_class looks nothing up
    def find_class(self, module: str, name: str) -> Any:
        if found := ALLOWED.get((module, name)):
            return found
        if (module, name) == ("collections", "defaultdict"):
            return _default
        if module in ("copyreg", "copy_reg"):
            if name in ("_reconstructor", "__newobj__", "__newobj_ex__"):
                return _remade
        elif module.partition(".")[0] in INERT:
            return type(name[-80:], (Inert,), {"kind": f"{module}.{name}"[:300]})
        raise Refused(f"{module}.{name}"[:200])


def _default(*args: Any) -> Any:
    return defaultdict(None)


def main() -> None:
    """Read standard input, print what it holds."""
    size = int(sys.argv[1])
    source = sys.stdin.buffer
    encode = json.JSONEncoder().encode
    encode({"a": ["\u00e4", 1.5, None]})  # whatever it loads late is loaded now
    _lock(size)
    try:
        found = summary(Reader(source).load())
    except Refused as refused:
        found = {"refused": str(refused)}
    except MemoryError:
        found = {"error": "it needs more memory than it may have"}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    sys.stdout.write(encode(found).encode("ascii", "replace").decode("ascii"))
    sys.stdout.flush()
    _leave()


def _leave() -> NoReturn:
    """At once: what the file made is not taken apart, which may go deep."""
    import os

    os._exit(0)


def _lock(size: int) -> None:
    """Give up all that reading does not need. There is no way back."""
    import os  # noqa: F401 # _leave needs it

    memory = BASE_BYTES + PER_BYTE * size
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    gc.disable()
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("pickle.find_class", "import", "object.__getattr__") or (
        event == "import" and arguments[0] != "os"
    ):
        raise Refused(event)


# ------------------------------------------------------------------ what is printed


def summary(value: Any) -> dict[str, Any]:
    """What is known of a dump of SGLang's: a mapping with ``requests``, or their list
    alone."""
    holder = value if isinstance(value, dict) else {"requests": value}
    rows = holder.get("requests")
    if not isinstance(rows, (list, tuple, deque)):
        return {"error": "it holds no requests"}
    found = [
        r for row in list(rows)[-MAX_REQUESTS:] if (r := _request(row)) is not None
    ]
    if rows and not found:
        return {"error": "it holds no requests"}
    command = holder.get("launch_command")
    return {
        "count": len(rows),
        "requests": found,
        "options": _options(holder.get("resolved_config") or holder.get("server_args")),
        "command": _command(command) if isinstance(command, (list, tuple)) else [],
    }


def _request(row: Any) -> dict[str, Any] | None:
    if not isinstance(row, (list, tuple)) or len(row) < 2:
        return None
    fields = _state(row[0])
    if not fields:
        return None
    out = row[1] if isinstance(row[1], dict) else {}
    about = out.get("meta_info")
    about = about if isinstance(about, dict) else {}
    reason = about.get("finish_reason")
    text, tokens = fields.get("text"), fields.get("input_ids")
    rid = fields.get("rid")
    return {
        "id": rid[:80] if isinstance(rid, str) else "",
        "created": _number(row[2]) if len(row) > 2 else None,
        "ended": _number(row[3]) if len(row) > 3 else None,
        "finished": reason is not None,
        "finish_reason": _short(reason.get("type")) if isinstance(reason, dict) else "",
        "prompt_chars": len(text) if isinstance(text, str) else 0,
        "prompt_tokens": _count(tokens) or _whole(about.get("prompt_tokens")),
        "output_tokens": _count(out.get("output_ids"))
        or _whole(about.get("completion_tokens")),
        "media": sum(_media(fields.get(name)) for name in MEDIA[:3]),
        "fields": _fields(fields),
    }


def _fields(fields: dict[Any, Any]) -> dict[str, str]:
    """What the client set: numbers as they are, of everything else its kind."""
    found = {}
    for name in FIELDS:
        value = fields.get(name)
        if value not in (None, False, -1) and (shown := _shown(value)):
            found[name] = shown
    sampling = fields.get("sampling_params")
    for one in (sampling if isinstance(sampling, list) else [sampling])[:4]:
        for name, value in list(_state(one).items())[:60]:
            if isinstance(name, str) and value is not None and (shown := _shown(value)):
                found[name[:60]] = shown
    return found


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else ""
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 64 else "a huge number"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        if value and all(type(item) in (int, float) for item in value[:8]):
            shown = ", ".join(_shown(item) or "0" for item in value[:8])
            return f"[{shown}{', …' if len(value) > 8 else ''}]"
        return f"{len(value)} items" if value else ""
    if isinstance(value, str):
        return f"{len(value)} characters" if value else ""
    if isinstance(value, dict):
        return f"{len(value)} entries" if value else ""
    return "set"


def _options(args: Any) -> dict[str, str]:
    fields = _state(args)
    found = {}
    for name in OPTIONS:
        value = fields.get(name)
        if isinstance(value, (bool, int, float, str)) and value not in (False, ""):
            found[name] = str(value)[:200] if type(value) is not int else _shown(value)
    return found


def _command(words: Any) -> list[str]:
    shown: list[str] = []
    hide = False
    for word in list(words)[:300]:
        text = str(word)[:300] if isinstance(word, (str, int, float)) else "?"
        name, equals, _ = text.partition("=")
        if hide:
            text = "***"
        hide = not equals and text in SECRET
        shown.append(f"{name}=***" if equals and name in SECRET else text)
    return shown


def _state(value: Any) -> dict[Any, Any]:
    """The fields of an object of the file, whatever way it was pickled."""
    for _ in range(4):
        if isinstance(value, dict):
            return value
        if not isinstance(value, Inert):
            return {}
        state = value.state
        if isinstance(state, tuple) and len(state) == 2:  # __slots__: (dict, slots)
            first, second = (one if isinstance(one, dict) else {} for one in state)
            return {**first, **second}
        if isinstance(state, dict):
            return state
        # ServerArgs since 0.5.22: _rebuild_server_args(class, fields, bookkeeping)
        held = [a for a in value.args if isinstance(a, (dict, Inert))]
        value = max(
            held, key=lambda a: len(a) if isinstance(a, dict) else 0, default=None
        )
    return {}


def _media(value: Any) -> int:
    if value is None:
        return 0
    return min(len(value), MAX_ITEMS) if isinstance(value, (list, tuple)) else 1


def _count(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple)) else 0


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 53 else 0


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < 1e15 else None


def _short(value: Any) -> str:
    return value[:40] if isinstance(value, str) else ""


if __name__ == "__main__":
    main()
