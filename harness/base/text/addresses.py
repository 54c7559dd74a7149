"""Whether an address is of this machine, as every reader of addresses would have it.

Programs differ in how they read an address: what comes before an @, a backslash, a tab
inside, a number in place of four. So only the plain form of a local address counts as
local."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_DROPPED: Final = re.compile(r"[\t\r\n]+")
"""urlsplit, as browsers do, reads an address as if these were not in it."""
_ENDS: Final = "".join(map(chr, range(0x21)))
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*+):")
_ADDRESS: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]{1,20}:)?[/\\]{2}\S*")
_WITHOUT_SLASHES: Final = frozenset({"http", "https", "ws", "wss", "ftp"})
"""Schemes that some readers take without the two slashes as well."""
_PLAIN: Final = re.compile(r"[!-~]+")


def is_address(text: str) -> bool:
    """Whether ``text`` is nothing but an address: a scheme, two slashes and no
    blank."""
    return _ADDRESS.fullmatch(_bare(text)) is not None


def is_local_host(host: str) -> bool:
    """Whether ``host`` is this machine, written plainly: ``localhost`` or a number of
    the loopback interface, IPv6 without brackets."""
    if host.lower() == "localhost":
        return True
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(number, "ipv4_mapped", None) or number).is_loopback


def is_local(address: str) -> bool:
    """Whether ``address``, with its scheme or as ``HOST[:PORT]``, is one of this
    machine."""
    if not _PLAIN.fullmatch(address) or "@" in address or "\\" in address:
        return False
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port
    except ValueError:
        return False
    host = parts.hostname or ""
    written = f"[{host}]" if ":" in host else host
    # What is between the slashes is the host and its port, and nothing that another
    # reader splits.
    rest = parts.netloc.lower().removeprefix(written)
    return rest in ("", ":", f":{port}") and is_local_host(host)


def goes_out(address: str) -> bool:
    """Whether whoever fetches ``address`` may talk to another machine than this one."""
    bare = _bare(address)
    scheme = _SCHEME.match(bare)
    name = scheme[1].lower() if scheme else ""
    if name == "data":
        return False
    after = bare[scheme.end() :] if scheme else bare
    if name == "file":
        return (
            after.startswith("//")
            and after[2:3] not in ("/", "")
            and not is_local(bare)
        )
    if after[:2].replace("\\", "/") == "//" or name in _WITHOUT_SLASHES:
        return not is_local(address.strip(" "))
    return False


def _bare(address: str) -> str:
    return _DROPPED.sub("", address).strip(_ENDS)
