"""Which names say that what they name is secret: ``SLACK_BOT_TOKEN``, ``dbPassword``, ``x-key``.

A name is taken apart at its joints and humps; its last words decide. What a model's vocabulary or a
cache calls ``token`` and ``key`` is none: ``image_token``, ``cache_key``.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Final


class Secrecy(IntEnum):
    """How much a name says of its value.

    ``TOKEN`` and ``WEAK`` are words of other things, too: only a value that looks like it is one.
    """

    NONE = 0
    WEAK = 1
    TOKEN = 2
    STRONG = 3


HINT: Final = re.compile(
    r"key|token|secret|pass|pwd|cred|auth|cookie|sig(?:nature)?\b|session|bearer|jwt|otp|dsn"
    r"|connection|conn_?str|sas|mnemonic|webhook|license",
    re.IGNORECASE,
)
"""Some part of every name that says something."""

_JOINTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STRONG_ENDS: Final = (
    *("password", "passwd", "passwort", "passphrase", "passcode", "secret", "credential", "pwd"),
    *("apikey", "accesskey", "secretkey", "privatekey", "authkey", "accountkey", "masterkey"),
    *("authorization", "cookie", "connectionstring", "connstr", "mnemonic", "bearer"),
)
_TOKEN_ENDS: Final = (
    *("authtoken", "accesstoken", "refreshtoken", "apitoken", "bottoken", "hftoken", "idtoken"),
    *("usertoken", "sessiontoken", "csrftoken", "xsrftoken", "sastoken", "bearertoken"),
)
_WEAK: Final = frozenset(
    {"auth", "sig", "signature", "session", "sessionid", "pass", "otp", "pin", "dsn", "license"}
    | {"csrf", "xsrf", "sas", "webhook", "authentication"}
)
_LOGINS: Final = frozenset(
    {"db", "smtp", "user", "root", "admin", "mysql", "pg", "postgres", "redis", "mail", "ftp"}
    | {"ldap", "basic", "auth", "http", "proxy", "mongo", "rabbitmq", "amqp", "login", "ssh"}
)
_KEYS: Final = frozenset(
    {"api", "access", "private", "secret", "account", "subscription", "encryption", "signing"}
    | {"master", "shared", "storage", "auth", "ssh", "service", "admin", "app", "application"}
    | {"client", "deploy", "host", "function", "hmac", "aes", "rsa", "jwt", "session", "webhook"}
    | {"root", "server", "tls", "ssl", "gpg", "pgp", "age", "vault", "license", "licence", "user"}
    | {"project", "org", "team", "fernet", "django", "flask", "rails", "openai", "anthropic"}
    | {"azure", "gemini", "google", "mistral", "cohere", "groq", "stripe", "sendgrid", "wandb"}
    | {"datadog", "dd", "sentry", "twilio", "github", "gitlab", "slack", "hf", "vllm", "sglang"}
    | {"aws", "gcp", "s3", "minio", "bearer", "security", "primary", "secondary"}
)
_PLAIN_KEYS: Final = frozenset(
    {"cache", "kv", "mm", "sort", "hash", "index", "lookup", "evict", "group", "item", "dict"}
    | {"foreign", "public", "block", "image", "prefix", "extra", "query", "value", "torch", "pool"}
    | {"config", "env", "num", "no", "any", "ghost", "partition", "shape", "map", "layer", "head"}
)
_MODEL_TOKENS: Final = frozenset(
    {"image", "video", "audio", "eos", "bos", "pad", "unk", "sep", "cls", "mask", "start", "end"}
    | {"stop", "vision", "next", "new", "last", "first", "per", "max", "min", "num", "prompt"}
    | {"output", "input", "special", "boi", "eoi", "soi", "generated", "sampled", "single", "think"}
    | {"draft", "target", "bonus", "modality", "placeholder", "text", "speech", "one", "each", "a"}
    | {"img", "the", "this", "that", "by", "of", "decode", "prefill", "mm", "accepted", "time"}
    | {"replacement", "newline", "fim", "added", "current", "total", "row", "begin", "every", "id"}
)
_ABOUT: Final = frozenset(
    {"file", "path", "dir", "length", "len", "type", "name", "ref", "policy", "url", "uri", "count"}
    | {
        "min",
        "max",
        "field",
        "manager",
        "store",
        "provider",
        "rotation",
        "expiry",
        "version",
        "arn",
    }
    | {"required", "enabled", "prompt", "size", "format", "header", "headers", "env", "var", "mode"}
    | {"hook", "class", "func", "error", "errors", "valid", "set", "missing", "empty", "check"}
    | {"server", "scheme", "level", "tokens", "ids", "factory", "manager", "params", "usage"}
    | {"only", "none", "true", "false", "is", "a", "was", "and", "or", "for", "to", "in"}
)
_INNER: Final = frozenset({"password", "passwd", "passphrase", "secret", "secrets", "credential"})
_HEADER_KEYS: Final = re.compile(
    r"(?:x-[a-z0-9-]{1,40}-|private-|job-|deploy-)(?:key|token|signature)", re.IGNORECASE
)


@lru_cache(maxsize=1 << 14)
def secrecy(name: str) -> Secrecy:
    """What ``name`` says of its value."""
    name = name.rsplit(".", 1)[-1][-80:]
    if _HEADER_KEYS.fullmatch(name):
        return Secrecy.STRONG
    if " " in name:  # a sentence
        return Secrecy.NONE
    words = [word.lower() for word in _JOINTS.findall(name) if not word.isdigit()]
    if not words:
        return Secrecy.NONE
    plural = words[-1]
    last = plural[:-1] if plural.endswith("s") and not plural.endswith("ss") else plural
    before = words[-2] if len(words) > 1 else ""
    joined = before + last
    if last == "jwt" or last.endswith(_STRONG_ENDS) or joined.endswith(_STRONG_ENDS):
        return Secrecy.STRONG
    if last == "key":
        shouted = name.isupper() and before and before not in _PLAIN_KEYS
        return Secrecy.STRONG if before in _KEYS or shouted else Secrecy.NONE
    if last == "pass" and (before in _LOGINS or (before and name.isupper())):
        return Secrecy.STRONG
    if last == "token" and plural == "token":
        return Secrecy.NONE if before in _MODEL_TOKENS else Secrecy.TOKEN
    if joined.endswith(_TOKEN_ENDS):
        return Secrecy.TOKEN
    if _INNER.intersection(words[:-1]) and last not in _ABOUT and plural not in _ABOUT:
        return Secrecy.STRONG
    if last in _WEAK or joined in ("sessionid", "webhookurl", "sharedaccesssignature"):
        return Secrecy.NONE if before in ("forward", "backward", "multi", "two") else Secrecy.WEAK
    return Secrecy.NONE


def kind_of(name: str) -> str:
    """What its placeholder is called."""
    name = name.lower()
    if "cookie" in name:
        return "cookie"
    return "password" if re.search(r"pass|pwd|credential", name) else "key"
