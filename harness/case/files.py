"""A case on disk: ``case.json`` and the pictures beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrepro.case.model import CASE_FILE, IMAGES_DIR, Case, Content
from mmrepro.errors import UnwritableOutput, UsageError
from mmrepro.machine.files import is_folder, read_file, write_file
from mmrepro.records import Unfit, parsed

MAX_CASE_BYTES = 64 << 20
MOST_VALUES = 6_000_000
"""Prompts of token ids that fill as much."""
MAX_IMAGE_BYTES = 64 << 20


def read_case(file: Path) -> tuple[Case, Path]:
    """The case in ``file``, or in the folder ``file``, and the folder that its pictures lie below.

    Raises:
        UsageError: it cannot be read, is too large, or is no case; says where in the file.
    """
    file = file / CASE_FILE if is_folder(file) else file
    try:
        data = read_file(file, MAX_CASE_BYTES)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
    try:
        return parsed(Case, data, most_values=MOST_VALUES), file.parent
    except Unfit as error:
        raise UsageError(f"{file} is no case: {error}.") from error


def case_text(case: Case) -> str:
    """``case.json``: to be read and compared by people, so what is at its default is left out."""
    return json.dumps(_plain(case), indent=1, ensure_ascii=False) + "\n"


def write_case(case: Case, folder: Path, contents: Mapping[str, bytes] | None = None) -> Path:
    """Write ``case.json``, and of ``contents`` (by SHA-256) the pictures that the case has.

    Raises:
        UnwritableOutput: the folder cannot be written.
    """
    wanted = {image.sha256 for image in case.images.values() if isinstance(image, Content)}
    contents = contents or {}
    given = sorted(wanted & contents.keys())
    file = folder / CASE_FILE
    try:
        (folder / IMAGES_DIR if given else folder).mkdir(parents=True, exist_ok=True)
        for name in given:  # one at a time: they may be a night's
            write_file(folder / IMAGES_DIR / name, contents[name])
        write_file(file, case_text(case))
    except OSError as error:
        raise UnwritableOutput(f"{folder} cannot be written: {error.strerror or error}.") from error
    return file


def read_contents(case: Case, folder: Path | None) -> dict[str, bytes]:
    """The pictures of ``case`` that lie below ``folder``, by SHA-256, for ``write_case``.

    Raises:
        UsageError: one of them cannot be read.
    """
    contents = {}
    for name, image in case.images.items():
        if isinstance(image, Content) and image.sha256 not in contents:
            contents[image.sha256] = read_content(name, image, folder)
    return contents


def read_content(name: str, image: Content, folder: Path | None) -> bytes:
    """Raises UsageError: the file is missing, or another one."""
    file = (folder or Path()) / IMAGES_DIR / image.sha256
    try:
        data = read_file(file, MAX_IMAGE_BYTES)
    except OSError as error:
        raise UsageError(
            f"The image {name} is kept by content, and {file} cannot be read: {error.strerror}.",
            hint=f"put {IMAGES_DIR}/ beside {CASE_FILE}",
        ) from error
    if hashlib.sha256(data).hexdigest() != image.sha256:
        raise UsageError(f"The image {name} is not what {file} holds: its SHA-256 is another.")
    return data


def case_digest(case: Case) -> str:
    """SHA-256 of what decides a play: not its title, its origin, or what a recording showed."""
    plain = _plain(case)
    for name in ("title", "origin"):
        plain.pop(name, None)
    for operation in plain.get("operations", []):
        for name in ("at_s", "recorded"):
            operation.pop(name, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _plain(case: Case) -> dict[str, Any]:
    plain: dict[str, Any] = case.model_dump(mode="json", exclude_defaults=True)
    plain = {"schema_version": case.schema_version, **plain}
    images = plain.get("images", {})
    for name, image in case.images.items():  # its kind is the default of its class
        images[name] = {"kind": image.kind, **images[name]}
    return plain
