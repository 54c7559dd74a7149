"""Whether an HTTP error is an engine's own, or that of something which stands before
it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_GATEWAY = (502, 504)
_DELIVERY = 520
"""No engine answers with these; 520 and on are content delivery networks' own."""
_ERROR_FIELDS = frozenset({"message", "type", "param", "code", "object"})


def not_the_engines(status: int | None, body: str) -> str:
    """Why an answer with this status and body is none of an engine; "": it may be
    one."""
    if status is None:
        return ""
    if not 100 <= status < 600:
        return f"{status} is no status"
    if status < 400:
        return ""
    if status in _GATEWAY or status >= _DELIVERY:
        return f"{status} is said by what stands before a server"

    text = _without_status(body)
    if text.startswith("<"):
        return f"the answer {status} is a page, not the engine's own error"
    code = _error_code(text)
    if isinstance(code, int) and 400 <= code < 600 and code != status:
        return f"the answer {status} holds an error {code}"
    return ""


def foreign_error(status: int | None, body: str) -> str:
    """Why the error that answers a completion is none of an engine, by its status and
    its form; "": it may be one. Engines answer with "Internal Server Error", FastAPI's
    ``detail``, or an error object that has its status as a number, by itself with
    ``"object": "error"`` or as the one field ``error`` (vLLM 0.11 to 0.33, SGLang 0.5.6
    to 0.5.23, LMDeploy 0.6.4 to 0.18.0, minivllm). A validation error of SGLang is its
    message alone; the Rust front end of vLLM has a word for its code; ``/v1/messages``
    of both has Anthropic's form."""
    why = not_the_engines(status, body)
    if why or status is None or status < 400:
        return why

    text = _without_status(body)
    if text[:1] not in ("{", "["):
        if status < 500 or text in ("", "Internal Server Error"):
            return ""
        return f"the answer {status} is a text that no engine has"
    try:
        document = json.loads(text)
    except ValueError:
        # Long bodies are recorded in part: what is left has no form to judge.
        return ""
    if _has_an_engines_form(document, status):
        return ""
    return f"the answer {status} is in no engine's form"


def _has_an_engines_form(document: Any, status: int) -> bool:
    error = document
    if isinstance(document, dict):
        if document.keys() == {"detail"} and isinstance(document["detail"], str | list):
            return True
        if document.keys() == {"error"}:
            error = document["error"]
        elif document.keys() == {"type", "error"}:
            return document["type"] == "error" and _is_of_messages(document["error"])
        elif document.get("object") != "error":
            return False

    if not isinstance(error, dict):
        return False
    if "message" not in error or not error.keys() <= _ERROR_FIELDS:
        return False
    if isinstance(error.get("code"), str):
        return _is_rust_error(error, status)
    # A refusal may have no code; where there is one, it is the answer's status.
    if status >= 500 or "code" in error:
        return "type" in error and error.get("code") == status
    return True


def _is_of_messages(error: Any) -> bool:
    """Whether it has the form that ``/v1/messages`` has: a type and a message, and no
    status. Anthropic's own service, and gateways to it, add the id of the request."""
    if not isinstance(error, dict) or error.keys() != {"type", "message"}:
        return False
    return all(isinstance(value, str) for value in error.values())


def _is_rust_error(error: Mapping[str, object], status: int) -> bool:
    """Whether an error with a word for its code has the form of vLLM's Rust front end
    (0.22 to 0.33). Gateways write the status as text, or fields that are null."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = str(error["code"])
    return error.get("type") == kind and code.isidentifier() and all(error.values())


def _without_status(body: str) -> str:
    """The body, without the status that was written before it."""
    return re.sub(r"\AHTTP \d{3}(?: with an empty body|:? ?)", "", body.strip()).strip()


def _error_code(text: str) -> object:
    """The code that an error's document holds, as a number where it is one."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None

    error = document.get("error")
    code = (error if isinstance(error, dict) else document).get("code")
    if isinstance(code, str) and code.isdecimal() and len(code) < 4:
        return int(code)
    return code
