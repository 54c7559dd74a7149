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

_CPU_S = 20
_BASE_BYTES = 512 << 20
_PER_BYTE = 3
_MAX_REQUESTS = 2000
_MAX_ITEMS = 200_000
"""Of one container that are looked at."""

_ALLOWED = {
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
_INERT = frozenset(
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

_OPTIONS = (
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
_FIELDS = (
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
_MEDIA = ("image_data", "video_data", "audio_data", "modalities")
_SECRET = ("--api-key", "--admin-api-key", "--tokenizer-metrics-custom-labels-header")


class RefusedPickle(Exception):
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


class _Reader(pickle.Unpickler):
    """Looks no name up: what a file may name is made here, or refused."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed:
            return allowed
        if (module, name) == ("collections", "defaultdict"):
            return _default
        if module in ("copyreg", "copy_reg"):
            if name in ("_reconstructor", "__newobj__", "__newobj_ex__"):
                return _remade
        elif module.partition(".")[0] in _INERT:
            return type(name[-80:], (Inert,), {"kind": f"{module}.{name}"[:300]})
        raise RefusedPickle(f"{module}.{name}"[:200])


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
        summary = _summary(_Reader(source).load())
    except RefusedPickle as refused:
        summary = {"refused": str(refused)}
    except MemoryError:
        summary = {"error": "it needs more memory than it may have"}
    except Exception as error:
        summary = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    sys.stdout.write(encode(summary).encode("ascii", "replace").decode("ascii"))
    sys.stdout.flush()
    _leave()


def _leave() -> NoReturn:
    """End at once: what the file made is not taken apart, which may go deep."""
    import os

    os._exit(0)


def _lock(size: int) -> None:
    """Give up all that reading does not need. There is no way back."""
    import os  # noqa: F401 # _leave needs it

    memory = _BASE_BYTES + _PER_BYTE * size
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    gc.disable()
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises RefusedPickle: only these events belong to reading."""
    if event in ("pickle.find_class", "object.__getattr__"):
        return
    if event == "import" and arguments[0] == "os":  # by _leave
        return
    raise RefusedPickle(event)


# ------------------------------------------------------------------ what is printed


def _summary(value: Any) -> dict[str, Any]:
    """Return what is known of a dump of SGLang's: a mapping with ``requests``, or their
    list alone."""
    holder = value if isinstance(value, dict) else {"requests": value}
    rows = holder.get("requests")
    if not isinstance(rows, (list, tuple, deque)):
        return {"error": "it holds no requests"}
    requests: list[dict[str, Any]] = []
    for row in list(rows)[-_MAX_REQUESTS:]:
        request = _request(row)
        if request is not None:
            requests.append(request)
    if rows and not requests:
        return {"error": "it holds no requests"}
    command = holder.get("launch_command")
    return {
        "count": len(rows),
        "requests": requests,
        "options": _options(holder.get("resolved_config") or holder.get("server_args")),
        "command": _command(command) if isinstance(command, (list, tuple)) else [],
    }


def _request(row: Any) -> dict[str, Any] | None:
    """Return what is known of a request: (request, answer, begin, end); None: it is
    none."""
    if not isinstance(row, (list, tuple)) or len(row) < 2:
        return None
    fields = _state(row[0])
    if not fields:
        return None
    out = row[1] if isinstance(row[1], dict) else {}
    meta = out.get("meta_info")
    if not isinstance(meta, dict):
        meta = {}
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else None
    rid = fields.get("rid")
    text = fields.get("text")
    prompt_tokens = _count(fields.get("input_ids"))
    output_tokens = _count(out.get("output_ids"))
    return {
        "id": rid[:80] if isinstance(rid, str) else "",
        "created": _number(row[2]) if len(row) > 2 else None,
        "ended": _number(row[3]) if len(row) > 3 else None,
        "finished": reason is not None,
        "finish_reason": _short(kind),
        "prompt_chars": len(text) if isinstance(text, str) else 0,
        "prompt_tokens": prompt_tokens or _whole(meta.get("prompt_tokens")),
        "output_tokens": output_tokens or _whole(meta.get("completion_tokens")),
        "media": sum(_media(fields.get(name)) for name in _MEDIA[:3]),
        "fields": _fields(fields),
    }


def _fields(fields: dict[Any, Any]) -> dict[str, str]:
    """Return what the client set: numbers as they are, of everything else its kind."""
    kept: dict[str, str] = {}
    for name in _FIELDS:
        value = fields.get(name)
        if value in (None, False, -1):
            continue
        shown = _shown(value)
        if shown:
            kept[name] = shown

    # Several prompts in one request may have parameters each.
    sampling = fields.get("sampling_params")
    several = sampling if isinstance(sampling, list) else [sampling]
    for parameters in several[:4]:
        for name, value in list(_state(parameters).items())[:60]:
            if not isinstance(name, str) or value is None:
                continue
            shown = _shown(value)
            if shown:
                kept[name[:60]] = shown
    return kept


def _shown(value: Any) -> str:
    """Return a number as it is, and of everything else its kind and length; "": it is
    not set."""
    if isinstance(value, bool):
        return "true" if value else ""
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 64 else "a huge number"
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, (list, tuple, str, dict)):
        return "set"
    if not value:
        return ""
    if isinstance(value, str):
        return f"{len(value)} characters"
    if isinstance(value, dict):
        return f"{len(value)} entries"
    first = value[:8]
    if not all(type(item) in (int, float) for item in first):
        return f"{len(value)} items"
    numbers = ", ".join(_shown(item) or "0" for item in first)
    more = ", …" if len(value) > 8 else ""
    return f"[{numbers}{more}]"


def _options(args: Any) -> dict[str, str]:
    """Return the options of the server that say how it served."""
    fields = _state(args)
    shown: dict[str, str] = {}
    for name in _OPTIONS:
        value = fields.get(name)
        if not isinstance(value, (bool, int, float, str)) or value in (False, ""):
            continue
        is_number = type(value) is int
        shown[name] = _shown(value) if is_number else str(value)[:200]
    return shown


def _command(words: Any) -> list[str]:
    """Return the words of the server's command, without its keys."""
    shown: list[str] = []
    is_key = False
    for word in list(words)[:300]:
        text = str(word)[:300] if isinstance(word, (str, int, float)) else "?"
        name, equals, _ = text.partition("=")
        if is_key:
            text = "***"
        is_key = not equals and text in _SECRET
        if equals and name in _SECRET:
            text = f"{name}=***"
        shown.append(text)
    return shown


def _state(value: Any) -> dict[Any, Any]:
    """Return the fields of an object of the file, whatever way it was pickled."""
    for _ in range(4):
        if isinstance(value, dict):
            return value
        if not isinstance(value, Inert):
            return {}
        state = value.state
        if isinstance(state, dict):
            return state
        if isinstance(state, tuple) and len(state) == 2:
            # Of a class with __slots__: (dict, slots), each of which may be None.
            fields: dict[Any, Any] = {}
            for part in state:
                if isinstance(part, dict):
                    fields.update(part)
            return fields
        # ServerArgs since 0.5.22: _rebuild_server_args(class, fields, bookkeeping)
        held = [part for part in value.args if isinstance(part, (dict, Inert))]
        value = max(held, key=_entries, default=None)
    return {}


def _entries(part: Any) -> int:
    return len(part) if isinstance(part, dict) else 0


def _media(value: Any) -> int:
    """Return how many pictures, films or sounds a field holds."""
    if value is None:
        return 0
    if isinstance(value, (list, tuple)):
        return min(len(value), _MAX_ITEMS)
    return 1


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
