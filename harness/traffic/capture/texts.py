"""All texts of an operation, each handed to whoever changes them."""

from __future__ import annotations

import json
import random
import re
import string
import tempfile
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from mmrepro.base.errors import UsageError
from mmrepro.base.text import is_local
from mmrepro.engines.models import DOTS_OCR, QWEN2VL, TINY, write_tokenizer
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import FormPart, Message, Operation, Part

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHOWN: Final = ("image_data", "audio_data", "video_data", "file_data")
_ROLES: Final = frozenset(
    {"system", "user", "assistant", "tool", "developer", "function"}
)
_PROTOCOL: Final = frozenset(  # their values are the interface's words, not somebody's
    {
        "type",
        "reasoning_effort",
        "service_tier",
        "detail",
        "format",
        "encoding_format",
        "truncation",
    }
)
_WORDS: Final = frozenset(
    {"auto", "none", "required", "low", "medium", "high", "minimal"}
)
_NAMES: Final = frozenset({"name", "id", "tool_call_id", "title", "required", "$ref"})
_SCHEMA: Final = frozenset(
    {
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "description",
        "title",
        "additionalProperties",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "$defs",
        "$ref",
        "format",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "default",
        "pattern",
        "strict",
        "examples",
        "function",
        "name",
        "parameters",
        "json_schema",
        "schema",
        "input_schema",
        "cache_control",
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "definitions",
        "prefixItems",
        "additionalItems",
        "unevaluatedItems",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "if",
        "then",
        "else",
        "nullable",
        "readOnly",
        "deprecated",
    }
)
_GRAMMAR_FIELDS: Final = frozenset(  # of structured_outputs and response_format
    {
        "json",
        "json_object",
        "regex",
        "choice",
        "grammar",
        "structural_tag",
        "structures",
        "triggers",
        "backend",
        "whitespace_pattern",
        "disable_fallback",
        "disable_any_whitespace",
        "disable_additional_properties",
    }
)
_GRAMMARS: Final = ("structured_outputs", "response_format")
_CODE: Final = frozenset(
    {
        "pattern",
        "regex",
        "guided_regex",
        "stop_regex",
        "ebnf",
        "grammar",
        "guided_grammar",
        "structural_tag",
        "chat_template",
    }
)
_SEGMENTS: Final = frozenset(  # of the paths of engines' interfaces
    [
        "v1",
        "v2",
        "v3",
        "api",
        "inference",
        "chat",
        "completions",
        "embeddings",
        "models",
        "model",
        "responses",
        "messages",
        "audio",
        "images",
        "videos",
        "transcriptions",
        "translations",
        "speech",
        "voices",
        "generations",
        "edits",
        "variations",
        "files",
        "content",
        "batches",
        "threads",
        "runs",
        "steps",
        "assistants",
        "input_items",
        "input_tokens",
        "count_tokens",
        "cancel",
        "compact",
        "moderations",
        "score",
        "scores",
        "rerank",
        "reranking",
        "pooling",
        "classify",
        "tokenize",
        "detokenize",
        "tokenizer_info",
        "health",
        "health_generate",
        "live",
        "ready",
        "livez",
        "readyz",
        "healthz",
        "ping",
        "version",
        "load",
        "metrics",
        "generate",
        "generate_stream",
        "generate_from_file",
        "invocations",
        "encode",
        "render",
        "parallel",
        "realtime",
        "sessions",
        "get_model_info",
        "model_info",
        "get_server_info",
        "server_info",
        "get_load",
        "get_loads",
        "get_memory_pool_size",
        "flush_cache",
        "flush",
        "reset_prefix_cache",
        "reset_mm_cache",
        "reset_encoder_cache",
        "start_profile",
        "stop_profile",
        "sleep",
        "wake_up",
        "is_sleeping",
        "pause",
        "resume",
        "is_paused",
        "collective_rpc",
        "abort_request",
        "abort_requests",
        "load_lora_adapter",
        "unload_lora_adapter",
        "lora_adapters",
        "update_weights",
        "update_weights_from_disk",
        "update_weights_from_tensor",
        "update_weights_from_distributed",
        "init_weights_update_group",
        "init_weight_transfer_engine",
        "start_weight_update",
        "finish_weight_update",
        "get_weights_by_name",
        "get_world_size",
        "release_memory_occupation",
        "resume_memory_occupation",
        "slow_down",
        "separate_reasoning",
        "parse_function_call",
        "open_session",
        "close_session",
        "set_internal_state",
        "get_internal_state",
        "start_expert_distribution_record",
        "stop_expert_distribution_record",
        "dump_expert_distribution_record",
        "scale_elastic_ep",
        "is_scaling_elastic_ep",
        "pause_generation",
        "continue_generation",
        "configure_logging",
        "distserve",
        "engine_info",
        "p2p_initialize",
        "p2p_connect",
        "free_cache",
        "terminate",
        "interactive",
        "docs",
        "redoc",
        "openapi.json",
        "hello_world",
        "echo",
        "dynamic_lora",
        "debug",
        "server_status",
        "add_logits",
        "flexible",
        "vertex_generate",
    ]
)
_FIELDS: Final = frozenset(
    [
        "model",
        "file",
        "files",
        "image",
        "image[]",
        "images",
        "mask",
        "prompt",
        "language",
        "response_format",
        "temperature",
        "stream",
        "n",
        "size",
        "quality",
        "seed",
        "purpose",
        "user",
        "top_p",
        "top_k",
        "min_p",
        "max_completion_tokens",
        "max_tokens",
        "timestamp_granularities[]",
        "timestamp_granularities",
        "include[]",
        "to_language",
        "hotwords",
        "audio",
        "video",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "stream_include_usage",
        "style",
        "background",
        "stream_continuous_usage_stats",
        "vllm_xargs",
        "chunking_strategy",
        "moderation",
        "output_format",
        "output_compression",
        "input_fidelity",
        "id",
        "url",
        "custom_id",
        "endpoint",
        "completion_window",
    ]
)
_ENDINGS: Final = frozenset(
    [
        "wav",
        "mp3",
        "flac",
        "ogg",
        "oga",
        "opus",
        "m4a",
        "aac",
        "amr",
        "webm",
        "mp4",
        "mov",
        "mkv",
        "avi",
        "mpeg",
        "mpga",
        "gif",
        "png",
        "jpg",
        "jpeg",
        "webp",
        "bmp",
        "tiff",
        "pdf",
        "txt",
        "json",
        "jsonl",
        "csv",
        "md",
        "html",
        "zip",
        "gz",
        "bin",
    ]
)
_OPEN_WORDS: Final = (
    frozenset(  # values of headers and queries that are the interface's
        [
            "true",
            "false",
            "none",
            "null",
            "auto",
            "json",
            "text",
            "gzip",
            "deflate",
            "identity",
            "br",
            "close",
            "keep-alive",
            "no-cache",
            "asc",
            "desc",
            "default",
            "low",
            "medium",
            "high",
            "minimal",
            "yes",
            "no",
            "on",
            "off",
            "all",
            "any",
            "wait",
            "abort",
            "keep",
            "drain",
            "tags",
            "level",
            "lora",
            "weights",
            "kv_cache",
            "get",
            "post",
            "user",
            "assistant",
            "batch",
            "fine-tune",
            "vision",
            "evals",
        ]
    )
)
_NUMBER: Final = re.compile(r"-?\d{0,6}(?:\.\d{1,6})?")
_FIELD_WORD: Final = re.compile(
    r"-?\d{0,6}(?:\.\d{1,6})?|[a-z]{2,3}(?:-[A-Za-z]{2,4})?|text|json|verbose_json"
    r"|diarized_json"
    r"|b64_json|url|auto|low|medium|high|word|segment|disabled|float|base64|none"
)
"""Numbers, languages, formats."""
_PARAMETER: Final = re.compile(r"[A-Za-z][\w.\[\]-]{0,40}")
_MEDIA_TYPE: Final = re.compile(
    r"[a-z]{1,20}/[\w.+-]{1,60}(?:; ?charset=[\w-]{1,20})?", re.IGNORECASE
)
_STRUCTURED: Final = (
    "tools",
    "tool_choice",
    "response_format",
    "guided_json",
    "structured_outputs",
)


class Changes:
    """What becomes of each text; all of it stays here."""

    def prompt(self, text: str) -> str:
        """Text that becomes tokens of the prompt."""
        return text

    def text(self, text: str) -> str:
        """Any other."""
        return text

    def name(self, name: str) -> str:
        """An identifier."""
        return name

    def ids(self, ids: list[int]) -> list[int]:
        """A prompt as ids of tokens."""
        return ids

    def code(self, text: str) -> bool:
        """Whether a pattern, grammar or template stays."""
        return True

    def data(self, payload: str) -> str:
        """An image, sound or film in a text: a data: URL, or Base64."""
        return payload


class Gathered(Changes):
    """What there is to change, in its order."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.texts: list[str] = []
        self.names: list[str] = []
        self.of_ids: list[list[int]] = []

    def prompt(self, text: str) -> str:
        self.prompts.append(text)
        return text

    def text(self, text: str) -> str:
        self.texts.append(text)
        return text

    def name(self, name: str) -> str:
        self.names.append(name)
        return name

    def ids(self, ids: list[int]) -> list[int]:
        self.of_ids.append(ids)
        return ids


def rewritten(operation: Operation, by: Changes) -> Operation:
    """Return the operation with each of its texts as ``by`` gives it; its body is taken
    apart."""
    if operation.body is not None and "\\u" in operation.body:
        operation = operation.model_copy(update={"body": _whole(operation.body)})
    operation = opened(operation)
    update: dict[str, Any] = {}

    # ``by`` may count or draw by chance: the order of these steps is a part of what
    # comes out.
    parameters: dict[str, Any] = {}
    for name, value in _coded(operation.parameters, by).items():
        change = _structured if name in _STRUCTURED else _plain
        parameters[name] = change(name, value, by)
    update["parameters"] = parameters
    headers: dict[str, str] = {}
    for name, value in operation.headers.items():
        headers[name] = _open(name, value, by)
    update["headers"] = headers
    update["path"] = _path(operation.path, by)
    update["query"] = _query(operation.query, by)
    if operation.model:
        update["model"] = by.text(operation.model)
    if operation.messages is not None:
        messages = [_message(message, by) for message in operation.messages]
        update["messages"] = messages
    if isinstance(operation.prompt, str):
        update["prompt"] = by.prompt(operation.prompt)
    elif operation.prompt is not None:
        update["prompt"] = by.ids(operation.prompt)
    if operation.body is not None:  # it is no JSON
        update["body"] = _broken(operation.body, by)
    if operation.data is not None:
        update["data"] = by.data(operation.data)
    if operation.form is not None:
        update["form"] = [_form_part(part, by) for part in operation.form]
    return operation.model_copy(update=update)


_STRING = re.compile(
    r'"(?:[^"\\]|\\.)*"\s*:|"(?P<string>(?:[^"\\]|\\.)+)(?:"|$)', re.DOTALL
)
"""A name, or a string; the last one may lack its end."""
_HOST = re.compile(r"https?://[^/?#]*/?")
"""The part of an address that says which machine it is."""


def _open(name: str, value: str, by: Changes) -> str:
    """Change the value of a header, or in a query: what is one of the protocol's own
    words stays."""
    name = name.lower()
    if name in ("content-type", "accept"):
        media_type = _MEDIA_TYPE.match(value)
        return media_type[0] if media_type else "*/*"
    if name == "anthropic-version" or "${" in value:
        return value
    if value.lower() in _OPEN_WORDS or _NUMBER.fullmatch(value):
        return value
    return by.text(value)


def _query(query: str, by: Changes) -> str:
    pairs: list[str] = []
    for pair in query.split("&"):
        name, sign, value = pair.partition("=")
        if name and not _PARAMETER.fullmatch(name):
            name = by.name(name)
        pairs.append(name + sign + quote(_open(name, value, by)))
    return "&".join(pairs)


def _path(path: str, by: Changes) -> str:
    """Change a path. The interface's own segments stay, and those that stand for a
    value of an answer; ids, users and whatever else somebody names have other names."""
    parts: list[str] = []
    for part in path.split("/"):
        own = not part or part in _SEGMENTS or "${" in part
        parts.append(part if own else by.name(part))
    return "/".join(parts)


def _file_name(name: str, by: Changes) -> str:
    """Return another name with the same ending, by which servers tell kinds of
    files."""
    stem, dot, ending = name.rpartition(".")
    if not dot or ending.lower() not in _ENDINGS:
        return by.name(name)
    if stem:
        stem = by.name(stem)
    return stem + dot + ending


def _whole(text: str) -> str:
    """Return JSON without halves of characters, which are no text."""
    try:
        whole = json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    return whole.encode("utf-8", "replace").decode()


def _broken(text: str, by: Changes) -> str:
    """Change the strings of what is nearly JSON, but for names; of anything else all of
    it."""
    if not text.lstrip().startswith(("{", "[")):
        return by.text(text)

    def changed(match: re.Match[str]) -> str:
        string = match["string"]
        if string is None:
            return match[0]
        return match[0].replace(string, by.text(string))

    return _STRING.sub(changed, text)


def _form_part(part: FormPart, by: Changes) -> FormPart:
    update: dict[str, Any] = {}
    if part.name and part.name not in _FIELDS:
        update["name"] = by.name(part.name)
    if part.filename:
        update["filename"] = _file_name(part.filename, by)
    if part.media_type and not _MEDIA_TYPE.fullmatch(part.media_type):
        update["media_type"] = ""
    if part.data is not None:
        update["data"] = by.data(part.data)
    elif part.text is not None and not _is_open_field(part):
        update["text"] = by.text(part.text)
    return part.model_copy(update=update)


def _is_open_field(part: FormPart) -> bool:
    """Whether a field's text is the model, or one of the interface's own words."""
    if part.name == "model":
        return True
    own = part.name in _PROTOCOL | {"response_format", "language", "temperature"}
    return own and _FIELD_WORD.fullmatch(part.text or "") is not None


def _message(message: Message, by: Changes) -> Message:
    content: str | list[Part] | None = message.content
    if isinstance(content, list):
        content = [_part(part, by) for part in content]
    elif content:
        content = by.prompt(content)
    role = message.role if message.role in _ROLES else by.name(message.role)
    more = {name: _calls(name, value, by) for name, value in message.more.items()}
    return message.model_copy(update={"role": role, "content": content, "more": more})


def _part(part: Part, by: Changes) -> Part:
    if part.text is not None:
        return Part(text=by.prompt(part.text))
    if part.raw is not None:
        raw = {name: _raw(name, value, by) for name, value in part.raw.items()}
        return Part.model_construct(raw=raw)
    if part.uuid:
        return part.model_copy(update={"uuid": by.name(part.uuid)})
    return part


def _is_own(value: str) -> bool:
    """Whether a text is an address of this machine, whose host says nothing of
    anybody."""
    return value.startswith(("http://", "https://")) and is_local(value)


def _raw(name: str, value: Any, by: Changes) -> Any:
    """Change a part of a message that is kept as it is."""
    if isinstance(value, dict):
        return {key: _raw(key, item, by) for key, item in value.items()}
    if isinstance(value, list):
        return [_raw(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL:
        return value
    host = _HOST.match(value) if _is_own(value) else None
    if host is not None:
        place, question, query = value[host.end() :].partition("?")
        return host[0] + _path(place, by) + question + _query(query, by)
    if name == "text":
        return by.prompt(value)
    # A long text under a name that is not known is taken for a picture or sound.
    if _is_data(name, value) or len(value) > 1000:
        return by.data(value)
    return by.text(value)


def _is_data(name: str, value: str) -> bool:
    """Whether a text is an image, sound or film, or names one."""
    return name in ("url", "data", *_SHOWN) or value[:5].lower() == "data:"


def _calls(name: str, value: Any, by: Changes) -> Any:
    """Change fields of a message: tool calls, names, a model's reasoning."""
    if name == "arguments" and isinstance(value, str):
        try:
            arguments = json.loads(value)
        except (ValueError, RecursionError):
            return by.text(value)
        return json.dumps(_structured("", arguments, by))
    if isinstance(value, dict):
        return {key: _calls(key, item, by) for key, item in value.items()}
    if isinstance(value, list):
        return [_calls(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL:
        return value
    return by.name(value) if name in _NAMES else by.text(value)


def _coded(fields: dict[str, Any], by: Changes) -> dict[str, Any]:
    """Drop the patterns, grammars and templates that do not stay."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        is_code = name in _CODE and isinstance(value, str)
        if not is_code or by.code(value):
            kept[name] = value
    return kept


def _structured(name: str, value: Any, by: Changes) -> Any:
    """Change tools, and schemas of answers: names of properties are names."""
    if isinstance(value, dict):
        changed: dict[str, Any] = {}
        words = _SCHEMA | _GRAMMAR_FIELDS if name in _GRAMMARS else _SCHEMA
        for key, item in _coded(value, by).items():
            new_key = key if key in words else by.name(key)
            changed[new_key] = _structured(key, item, by)
        return changed
    if isinstance(value, list):
        return [_structured(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL | _CODE or value in _WORDS:
        return value
    return by.name(value) if name in _NAMES else by.text(value)


_CALLED: Final = ("tool_use", "function_call")
"""Items of /v1/messages and /v1/responses in which a model has called a tool."""


def _called(item: dict[str, Any], by: Changes) -> dict[str, Any]:
    """Change a call as its tool is changed: names of arguments are names."""
    changed: dict[str, Any] = {}
    for key, value in item.items():
        if key == "name" and isinstance(value, str):
            changed[key] = by.name(value)
        elif key == "input":
            changed[key] = _structured("", value, by)
        elif key == "arguments":
            changed[key] = _calls(key, value, by)
        else:
            changed[key] = _plain(key, value, by)
    return changed


def _schema_text(text: str, by: Changes) -> str:
    """Change a schema that is written as a text, as SGLang takes it."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return by.text(text)
    return json.dumps(_structured("", schema, by))


def _plain(name: str, value: Any, by: Changes) -> Any:
    """Change parameters: their names are the interface's."""
    if isinstance(value, dict):
        if value.get("type") in _CALLED:
            return _called(value, by)
        changed: dict[str, Any] = {}
        for key, item in _coded(value, by).items():
            # Keys of metadata are made up by whoever asks.
            new_key = by.name(key) if name == "metadata" else str(key)
            changed[new_key] = _plain(key, item, by)
        return changed
    if isinstance(value, list):
        of_ids = all(type(item) is int for item in value)
        if value and of_ids and name in ("prompt", "input_ids"):
            return by.ids(value)
        return [_plain(name, item, by) for item in value]
    if not isinstance(value, str) or name in _PROTOCOL | _CODE or value in _WORDS:
        return value
    if name == "role" and value in _ROLES:
        return value
    if name in ("prompt", "text", "content"):
        return by.prompt(value)
    if name == "json_schema":
        return _schema_text(value, by)
    return by.data(value) if _is_data(name, value) else by.text(value)


# ------------------------------------------------------------------ random text

FILE = "tokenizer.json"
_FILLERS: Final = 1000
_ENOUGH_WORDS: Final = 400
_MOST_WORDS: Final = 4000
_WORD = re.compile(r"[a-z]{3,8}")
_FILLER = re.compile(r"<t\d+>")
_SIGNS: Final = "".join(
    sorted(set(string.digits + string.punctuation) - set("<>|\\\"'"))
)


class Vocabulary:
    """A tokenizer, and pieces of text that are a token each, whatever pieces stand
    beside them.

    Words where it knows many. Else (one token a byte) signs and digits, of which no
    word comes about by chance.

    Args:
        model: folder with ``tokenizer.json``; None: the tiny models' tokenizer.
        kind: name of the tiny model, for its special tokens.
        avoid: words, in small letters, that are no pieces.
    """

    def __init__(
        self, model: Path | None, kind: str, avoid: Collection[str] = ()
    ) -> None:
        self._tokenizer = _tokenizer(model, kind)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {
            id: token.content for id, token in added.items() if token.special
        }
        self.size = self._tokenizer.get_vocab_size()
        self.ends = len(self._tokenizer.encode("").ids)
        """Special tokens that a plain prompt gets at its ends."""
        words = self._words(avoid)
        self.joint = " " if words else ""
        self.pieces: Sequence[str] = words
        self._more: Sequence[str] = []
        if not words:
            self.pieces = [sign for sign in _SIGNS if self._is_a_token(sign)]
            self._more = self._spare()

    def _is_a_token(self, sign: str) -> bool:
        """Whether a sign is a token, also beside itself: some tokenizers join such."""
        return len(self.encode(sign)) == 1 and len(self.encode(sign * 2)) == 2

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def other(self, used: Collection[str], chance: random.Random) -> str | None:
        """Return a piece that is none of ``used``; None: there is no other."""
        # Some are drawn first: to look through all pieces takes long where few are used.
        for _ in range(8):
            piece = chance.choice(self.pieces)
            if piece not in used:
                return piece
        left = [piece for piece in self.pieces if piece not in used]
        if not left:
            left = [piece for piece in self._more if piece not in used]
        return chance.choice(left) if left else None

    def text(self, pieces: Sequence[str]) -> str:
        """Join pieces; no joint stands at either side of a special token."""
        if not self.joint:
            return "".join(pieces)
        special = set(self.special.values())
        joined: list[str] = []
        before = ""
        for piece in pieces:
            if before and before not in special and piece not in special:
                joined.append(self.joint)
            joined.append(piece)
            before = piece
        return "".join(joined)

    # ------------------------------------------------------------------ pieces

    def _words(self, avoid: Collection[str]) -> list[str]:
        """Return words that are a token each; none, if there are too few."""
        # Tokenizers mark a word that follows a space.
        known = {token.lstrip("Ġ▁") for token in self._tokenizer.get_vocab()}
        words = sorted(w for w in known if _WORD.fullmatch(w) and w not in avoid)
        random.Random("words").shuffle(words)  # noqa: S311
        words = words[: _MOST_WORDS * 2]

        # At the beginning and behind another one: both are one token, and no more.
        pairs = [f"{word} {word}" for word in words]
        doubled = self._tokenizer.encode_batch(pairs, add_special_tokens=False)
        alone = self._tokenizer.encode_batch(words, add_special_tokens=False)
        fitting: list[str] = []
        for word, two, single in zip(words, doubled, alone, strict=True):
            if len(two.ids) == 2 and len(single.ids) == 1:
                fitting.append(word)
        return fitting[:_MOST_WORDS] if len(fitting) >= _ENOUGH_WORDS else []

    def _spare(self) -> list[str]:
        """Return the tokens that only fill a tiny model's vocabulary."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        contents = [token.content for token in added]
        return sorted(content for content in contents if _FILLER.fullmatch(content))


def _tokenizer(model: Path | None, kind: str) -> Tokenizer:
    """Raises UsageError."""
    from tokenizers import Tokenizer

    if model is None:
        return _tiny(kind == "dots-ocr")
    try:
        return Tokenizer.from_file(str(model / FILE))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(
            f"{model} has no {FILE} that can be read, which lengths are counted with.",
            hint=(
                "name a folder with a tokenizer, or leave it away for the tiny "
                "models' own"
            ),
        ) from error


@cache
def _tiny(dots: bool) -> Tokenizer:
    from tokenizers import Tokenizer

    with tempfile.TemporaryDirectory(prefix="mmrepro-") as folder:
        special = DOTS_OCR if dots else QWEN2VL
        write_tokenizer(Path(folder), 256 + len(special.tokens) + _FILLERS, special)
        return Tokenizer.from_file(f"{folder}/{FILE}")


@cache
def _tokenizer_of(server_model: str) -> Tokenizer:
    known = server_model in TINY
    return _tokenizer(None if known else Path(server_model), server_model)


def encoded_by(server_model: str, text: str) -> list[int]:
    """Return ids of a text's tokens, without special ones at its ends, by the model of
    a case's server (a tiny one's name, or a folder). Raises UsageError: there is no
    such tokenizer."""
    return list(_tokenizer_of(server_model).encode(text, add_special_tokens=False).ids)


# ------------------------------------------------------------------ common beginnings

T = TypeVar("T", bound=Hashable)


def branches(texts: Sequence[Sequence[T]]) -> Iterator[tuple[Sequence[T], int]]:
    """Yield each of ``texts``, sorted and each once, and how many units it shares with
    the one before."""
    before: Sequence[T] = ()
    for units in texts:
        yield units, common(before, units)
        before = units


def common(one: Sequence[T], other: Sequence[T]) -> int:
    """Return the length of the longest common prefix."""
    low = 0
    high = min(len(one), len(other))
    # Comparing slices is much faster than unit by unit.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def places(texts: Sequence[Sequence[T]]) -> list[list[int]]:
    """Return for each of the sorted ``texts`` where others part from it, ascending."""
    shared = [length for _, length in branches(texts)]
    with_next = [*shared[1:], 0]
    parted: list[set[int]] = [set() for _ in texts]
    forwards = range(len(texts))
    _add_places(forwards, shared, parted)
    _add_places(reversed(forwards), with_next, parted)
    return [sorted(lengths) for lengths in parted]


def _add_places(
    order: Iterable[int], shared: Sequence[int], parted: list[set[int]]
) -> None:
    """Add where each text parts from those that come before it in ``order``. ``shared``
    is how much each has in common with the one right before it."""
    # What a text shares with all before it falls from the nearest one on: the stack
    # holds the lengths that are left.
    stack: list[int] = []
    for place in order:
        near = shared[place]
        while stack and stack[-1] >= near:
            stack.pop()
        if near:
            stack.append(near)
        parted[place].update(stack)
