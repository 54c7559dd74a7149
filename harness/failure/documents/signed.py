"""A signature of the record of hashes, made and verified by OpenSSH's ``ssh-keygen``.

What is signed is the head of the record, as a line of text: the hash of its last line,
and through it all that the record covers."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mmrepro.base.errors import BadIncident, UsageError
from mmrepro.base.machine import is_file

_NAMESPACE: Final = "mmrepro"
"""A signature that was made for something else is none of an incident."""
_TIMEOUT_S: Final = 300.0
"""A key may ask for its passphrase."""


def sign_head(head: str, key: Path) -> str:
    """The signature of a head by a private key, or by the agent that has it.

    Raises:
        UsageError: the key cannot be used, or there is no ``ssh-keygen``.
    """
    if not is_file(key):
        raise UsageError(
            f"There is no key {key}.", hint=f"ssh-keygen -t ed25519 -f {key}"
        )
    done = _ssh_keygen("sign", ["-f", str(key)], head)
    if done.returncode != 0:
        raise UsageError(f"{key} signed nothing: {_last_line(done.stderr)}.")
    return done.stdout


def signer_of(place: Path, head: str, signature: bytes, signers: Path) -> str:
    """Who of ``signers``, a file of allowed signers as OpenSSH has it, signed a head.

    ``place``: of the incident, for sentences.

    Raises:
        BadIncident: it is signed by none of them, or another head is.
        UsageError: there is no such file, or no ``ssh-keygen``.
    """
    if not is_file(signers):
        raise UsageError(
            f"There is no file {signers} of allowed signers.",
            hint="a line in it: NAME ssh-ed25519 AAAA…, as ssh-keygen(1) says",
        )
    with tempfile.TemporaryDirectory(prefix="mmrepro-signature-") as folder:
        file = Path(folder, "signature")
        file.write_bytes(signature)
        given = ["-f", str(signers), "-s", str(file)]
        found = _ssh_keygen("find-principals", given, head)
        for name in found.stdout.splitlines():
            if _ssh_keygen("verify", [*given, "-I", name], head).returncode == 0:
                return name
    raise BadIncident(
        f"{place} is not signed as it is by anybody in {signers}.",
        hint="get it again from whoever made it, or judge it without --signers",
    )


def _ssh_keygen(
    act: str, arguments: Sequence[str], head: str
) -> subprocess.CompletedProcess[str]:
    command = ["ssh-keygen", "-Y", act, "-n", _NAMESPACE, *arguments]
    try:
        return subprocess.run(
            command,
            input=f"{head}\n",
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise UsageError(
            "There is no ssh-keygen here.", hint="install OpenSSH's client"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"ssh-keygen did not end in {_TIMEOUT_S:.0f} s.") from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].rstrip(".") if lines else "it says no reason"
