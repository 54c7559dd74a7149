"""A case as a file without mmrepro: ``reproduce.py``, and a test for an engine's own
tree.

The script starts nothing and talks to 127.0.0.1 only; the reader starts the server, by
the command in it. The test starts the engine's server as the engine's own tests do."""

import ast
import base64
import io
import json
import lzma
import pprint
import re
import tempfile
import textwrap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Final

from mmrepro import __version__
from mmrepro.base.errors import UsageError
from mmrepro.base.records import FindingClass, Setting, StandIn
from mmrepro.base.text import one_line
from mmrepro.engines.folders import folders
from mmrepro.engines.models import ADAPTERS, TINY, VECTOR_WIDTHS, TinyModel, named_in
from mmrepro.engines.serving import serving
from mmrepro.failure.documents.replay import Finding
from mmrepro.traffic import Picture
from mmrepro.traffic.case import (
    IMAGES_DIR,
    LEAVE_S,
    SCRIPT_FILE,
    Case,
    Content,
    Noise,
    Operation,
    in_order,
    opened_body as opened,
    pictures,
    server_options,
    server_steps,
    wire,
    with_placed_folders as placed,
)

INLINE_BYTES: Final = 512 << 10
"""Of pictures that are kept by their bytes; more than that lies in files beside the
script."""
_LEAST_DEADLINE_S: Final = 10.0
"""On another machine the server may be slower than where it was measured."""
_CELL: Final = 14
_WIDTH: Final = 98
_UNTESTED: Final = ("401", "403", "404", "405", "407", "429", "501", "503")
"""Beginnings of what was observed of a request that the engine never worked on."""
_UNTOLD: Final = (
    "expectation",
    "metrics",
    "residue",
    "cache-bound",
    "wrong-answer",
    "cross-talk",
)
"""Classes of which a script says nothing where it has no numbers to compare."""
_PROMISES: Final = (
    "allowed-token-ids",
    "bad-words",
    "stop-text",
    "logit-bias",
    "max-tokens",
    "text-offset",
    "schema",
    "tool-choice",
    "finish-tool-calls",
    "stream-parts",
    "stream-text",
    "stream-finish",
    "script-text",
    "script-reasoning",
    "script-calls",
    "script-finish",
    "script-tags",
    "refusal",
    "prompt-tokens",
)
"""Of what breaks the protocol: what a script cannot see by one answer's form."""
_ABSENT: Final = {
    "hang": "every request was answered",
    "death": "the server lives",
    "failing": "a small request is answered after the others as before them",
    "server-error": "no request failed in the server",
    "protocol": "every answer is whole",
    "canary": "the small request is answered as before",
}


def script(
    finding: Finding,
    case: Case,
    folder: Path | None,
    *,
    settings: list[Setting],
    deadline_s: float | None,
    project: str = "",
    stand_ins: Sequence[StandIn] = (),
) -> str:
    """The text of ``reproduce.py`` for ``case``, whose pictures lie below ``folder``.

    Args:
        project: the engine's name on the package index, if it is not its own.
        stand_ins: what replaced something of the engine where the failure was found.

    Raises:
        UsageError: a picture's file is missing.
    """
    facts = _facts(finding, case, folder, deadline_s)
    kind = finding.finding_class.value
    more = {
        "commands": server_steps(case, settings, project),
        "stand_ins": [*_stand_in_lines(case, stand_ins)],
        "absent": _ABSENT.get(kind, "every answer is as expected"),
        "elsewhere": (
            f"Whether it shows ({kind}) is judged by: mmrepro replay case.json"
        ),
    }
    return _filled("reproduce.py.j2", **facts, **more)


def upstream_test(
    finding: Finding,
    case: Case,
    folder: Path | None,
    *,
    settings: list[Setting],
    deadline_s: float | None,
    checked: str = "",
) -> str:
    """A test file in the engine's own manner, which fails where the finding is.

    That of vLLM is for a folder two below ``tests``, whose ``utils.py`` has
    ``RemoteOpenAIServer`` (as in November 2026); that of SGLang uses
    ``sglang.test.test_utils``, which is in its wheel.

    Args:
        checked: where it was run, and what came of it: sentences.

    Raises:
        UsageError: the engine's tests have no such manner, the class says nothing that
            a test could compare, the model is not one that a file can hold, or a
            picture is missing.
    """
    _check_testable(finding, case)
    facts = _facts(finding, case, folder, deadline_s)
    if not facts["model"]:
        raise UsageError(
            f"The model {one_line(case.server.model, 80)} cannot be written by a test.",
            hint="mmrepro replay case.json --model qwen2-vl",
        )

    kind = finding.finding_class
    serves = serving(case.server.engine)
    length = serves.length_option
    given = [length, str(case.server.max_model_len)]
    given += server_options(settings, [length])
    given, on_cpu = _parted(given, serves.cpu_options)
    sentence = kind.expected.partition(",")[0].lower()
    more = {
        "manner": serves.tests.manner,
        "checked": textwrap.fill(_comment(checked or "It was not run."), _WIDTH),
        "arguments": literal([*given, *case.server.args]),
        # popen_launch_server gives --device by itself.
        "cpu_arguments": literal(on_cpu) if on_cpu else "",
        "variables": literal(case.server.env) if case.server.env else "",
        "name": re.sub(r"[^a-z0-9]+", "_", sentence).strip("_"),
        "canary": kind.value in ("canary", "death", "failing"),
    }
    return _filled("upstream_test.py.j2", **facts, **more)


def _check_testable(finding: Finding, case: Case) -> None:
    """Raises UsageError: no test of the engine's own could show the finding."""
    kind = finding.finding_class
    engine = case.server.engine
    by_script = f"python3 {SCRIPT_FILE}, beside the finding"
    if not serving(engine).tests.manner:
        tested = [name for name in folders() if serving(name).tests.manner]
        raise UsageError(
            f"An upstream test is written for {' and '.join(tested)}, not for {engine}.",
            hint=by_script,
        )

    if not case.operations and kind is not FindingClass.START_FAILURE:
        raise UsageError(f"{finding.id} has no requests that a test could send.")
    if kind.value in _UNTOLD and not finding.expectations:
        raise UsageError(
            f"A test has nothing to compare for {kind}: {finding.server.label} is "
            "judged by whole replays.",
            hint="mmrepro replay case.json",
        )

    others = _beside(case)
    if others:
        raise UsageError(
            f"A test writes one model, and this server needs {', '.join(others)} "
            "besides.",
            hint=by_script,
        )


def _parted(words: list[str], options: Sequence[str]) -> tuple[list[str], list[str]]:
    """``words`` without those options and their values; and these, but for
    ``--device``."""
    kept: list[str] = []
    taken: list[str] = []
    left_out: list[str] = []
    place = kept
    for word in words:
        # An option's values follow it: they go where it goes.
        if word == "--device":
            place = left_out
        elif word.startswith("--"):
            place = taken if word in options else kept
        place.append(word)

    return kept, taken


def _request(
    op: Operation,
    made: Mapping[str, Picture],
    urls: Mapping[str, str],
    *,
    concurrent: bool,
) -> dict[str, Any]:
    """How the script has a request; what is empty is left out."""
    more: dict[str, Any] = {
        "after": op.after if concurrent else None,
        "leave": op.leave,
        "values": op.values,
        "method": op.method if op.method != "POST" else None,
    }
    target = f"{op.path}?{op.query}" if op.query else op.path
    request = {"id": op.id, "path": target, **_body(op, made, urls, more)}
    for name, value in more.items():
        if value:
            request[name] = value

    return request


def _facts(
    finding: Finding, case: Case, folder: Path | None, deadline_s: float | None
) -> dict[str, Any]:
    """What all files of a case are filled with."""
    made = pictures(case, folder)
    requests = _requests(case, made)
    common = _common([request["body"] for request in requests if "body" in request])
    expectations = {}
    for expected in finding.expectations:
        expectations[expected.operation] = expected.model_dump(
            exclude={"operation"}, exclude_none=True
        )

    deadline = round(2 * (deadline_s or 0.0), 1)
    return {
        **_words_of(finding, case),
        **_traffic_of(case, requests),
        **_images_of(case, made),
        **_models_of(case),
        "deadline": max(_LEAST_DEADLINE_S, deadline),
        "requests": literal(requests),
        "common": literal(common) if common else "",
        "marker": _MODEL,
        "expectations": literal(expectations) if expectations else "",
    }


def _requests(case: Case, made: Mapping[str, Picture]) -> list[dict[str, Any]]:
    urls = {picture.data_url: name for name, picture in made.items()}
    concurrent = not in_order(case)
    requests = []
    for op in case.operations:
        requests.append(_request(op, made, urls, concurrent=concurrent))

    return requests


def _words_of(finding: Finding, case: Case) -> dict[str, Any]:
    """What the file says of itself, and which class of failure it looks for."""
    kind = finding.finding_class.value
    observed = f"{finding.observation}. Expected: {finding.expectation}."
    random = "; its texts and images are random ones" if case.origin.anonymised else ""
    as_found = []
    for operation, seen in finding.observed.items():
        if seen[:3] in _UNTESTED:
            as_found.append(operation)

    untold: Sequence[str] = _UNTOLD
    # Some promises of a protocol do not show by one answer's form.
    promise = finding.bucket.rpartition("/")[2]
    if kind == "protocol" and promise in _PROMISES:
        untold = (*_UNTOLD, kind)
    return {
        "title": _comment(f"{finding.title}."),
        "said": textwrap.fill(_comment(observed), _WIDTH),
        "as_found": literal(as_found) if as_found else "",
        "note": _comment(f"Made by mmrepro {__version__}{random}."),
        "kind": kind,
        "untold": untold,
    }


def _traffic_of(case: Case, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the requests need of the script: parts that none needs are left out."""
    operations = case.operations
    return {
        "concurrent": not in_order(case),
        "streaming": any(opened(op).stream for op in operations),
        "leaving": any(op.leave for op in operations),
        "clocked": any(LEAVE_S.match(op.leave) for op in operations),
        "valued": any(op.values for op in operations),
        "raw": any("raw" in request for request in requests),
        "named": any("model" in request for request in requests),
    }


def _images_of(case: Case, made: Mapping[str, Picture]) -> dict[str, Any]:
    images = {name: tuple(facts) for name, facts in _images(case, made).items()}
    kinds = {facts[0] for facts in images.values()}
    forms = "; ".join(_KINDS[kind] for kind in sorted(kinds))
    return {
        "images": literal(images) if images else "",
        "image_kinds": f"By name: {forms}.",
        "noise": "noise" in kinds,
        "blocks": "blocks" in kinds,
        "inline": "bytes" in kinds,
        "files": "file" in kinds,
        "pixels": bool(kinds & {"noise", "blocks"}),
    }


def _models_of(case: Case) -> dict[str, Any]:
    """The model and those beside it, packed; empty where it is somebody's own."""
    facts: dict[str, Any] = {
        "model": "",
        "weights": "",
        "scripted": case.server.scripts is not None,
        "vector_widths": dict(VECTOR_WIDTHS),
        "beside": {},
    }
    tiny = case.server.tiny
    if tiny is not None:
        facts["model"], facts["weights"] = _model(tiny)
        for name in _beside(case):
            facts["beside"][name] = _model(TINY.get(name) or ADAPTERS[name])
    return facts


def _filled(template: str, **facts: Any) -> str:
    """The file, with the modules imported that it uses."""
    fill = partial(_templates().get_template(template).render, **facts)
    used = set()
    for node in ast.walk(ast.parse(fill(imports=()))):
        if isinstance(node, ast.Name):
            used.add(node.id)

    imports = [module for module in _MODULES if module.partition(".")[0] in used]
    text: str = fill(imports=imports)
    return text


_MODEL: Final = "MMREPRO-MODEL"
"""In a body that is sent as it is: where the script puts the served model's name."""


def _body(
    op: Operation,
    made: Mapping[str, Picture],
    urls: Mapping[str, str],
    more: dict[str, Any],
) -> dict[str, Any]:
    """How the script has the body: its fields, without the model, or its bytes.
    ``more`` gets the headers, and the model's name where it is not the served one's."""
    op = placed(op, None)
    sent = wire(op.model_copy(update={"values": {}, "query": ""}), made, _MODEL)
    usual = {"Content-Type": "application/json"} if sent.body else {}
    more["headers"] = sent.headers if sent.headers != usual else None
    if not op.apart or not sent.body:
        try:
            return {"raw": sent.body.decode("ascii")}
        except UnicodeDecodeError:
            return {"raw": sent.body}

    fields = json.loads(sent.body)
    named = fields.pop("model", "")
    more |= {} if named == _MODEL else {"model": [named]}
    return {"body": _short(fields, urls)}


_MODULES: Final = (
    "argparse",
    "base64",
    "http.client",
    "json",
    "os",
    "pathlib",
    "socket",
    "struct",
    "sys",
    "tempfile",
    "threading",
    "time",
    "unittest",
    "zlib",
)
"""That a script may use, as it imports them."""


_KINDS: Final = {
    "noise": '("noise", seed, width, height)',
    "blocks": '("blocks", side of a block, width, height, their colours)',
    "bytes": '("bytes", the file, its type)',
    "file": '("file", its name, its type)',
}


def _stand_in_lines(case: Case, stand_ins: Sequence[StandIn]) -> Iterator[str]:
    """What is not as in production: the model, and each stand-in, in sentences."""
    if case.server.tiny is not None:
        weights = "random weights"
        if case.server.scripts is not None:
            weights = "weights that say a script"
        text = (
            f"The model is a tiny one with {weights} ({case.server.model}), a stand-in."
        )
        yield textwrap.fill(text, _WIDTH)

    for stand_in in stand_ins:
        text = (
            f"Where it was found, the stand-in {stand_in.name} replaced "
            f"{stand_in.replaces}: {stand_in.why}."
        )
        yield textwrap.fill(_comment(text), _WIDTH)

    if stand_ins:
        yield (
            "Without them the server needs a GPU: there, leave out the options "
            "for a CPU."
        )


def _beside(case: Case) -> list[str]:
    """Tiny models and adapters that its server or requests need besides the model."""
    texts = list(case.server.args)
    for op in case.operations:
        texts.append(op.model_dump_json())

    return named_in(texts)


@lru_cache(maxsize=8)
def _model(tiny: TinyModel) -> tuple[str, str]:
    """Files of a tiny model, and its weights' file, seed, names, shapes and spread,
    and what is placed in them, packed."""
    placed = tiny.placed()
    shapes: list[list[object]] = []
    for name, shape in tiny.shapes():
        weight = [name, list(shape), *tiny.spread(name)]
        if name in placed:
            weight += [placed[name].cells, placed[name].vectors]
        shapes.append(weight)
    weights = [tiny.weights_file, tiny.seed, shapes]
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(tiny.write(Path(folder)).iterdir()):
            # The script makes the weights by their seed.
            if file.suffix != ".safetensors":
                texts[file.name] = file.read_text()

    return _packed(json.dumps(texts).encode()), _packed(json.dumps(weights).encode())


def _packed(data: bytes) -> str:
    """Write bytes as a string that Python has, a long one over several lines."""
    text = base64.b85encode(lzma.compress(data, preset=lzma.PRESET_EXTREME)).decode()
    if len(text) <= _WIDTH - 8:
        return repr(text)
    pieces = textwrap.wrap(text, _WIDTH - 8, break_on_hyphens=False)
    return "(\n" + "\n".join(f"    {piece!r}" for piece in pieces) + "\n)"


# ---------------------------------------------------------------------- images


def _images(case: Case, made: Mapping[str, Picture]) -> dict[str, list[Any]]:
    """How the script gets each picture: by seed, by the colours of its blocks, by its
    bytes."""
    images: dict[str, list[Any]] = {}
    inline = 0
    for name, picture in made.items():
        recipe = case.images[name]
        if isinstance(recipe, Noise) and 0 <= recipe.seed < 2**128:
            images[name] = ["noise", recipe.seed, *recipe.size]
            continue
        packed = _blocks(picture)
        if packed is not None:
            images[name] = ["blocks", _CELL, picture.width, picture.height, packed]
            continue

        kind = picture.media_type
        size = len(picture.png)
        # A file lies beside the script only where the case has its bytes.
        if isinstance(recipe, Content) and inline + size > INLINE_BYTES:
            images[name] = ["file", f"{IMAGES_DIR}/{recipe.sha256}", kind]
            continue
        inline += size
        images[name] = ["bytes", base64.b85encode(picture.png).decode(), kind]

    return images


def _blocks(picture: Picture) -> str | None:
    """The colours of the picture's blocks of ``_CELL`` pixels, packed; None: it has
    others."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(picture.png)) as opened:
            if opened.format != "PNG" or opened.mode != "RGB" or opened.info:
                return None
            pixels = np.array(opened)
    except (OSError, ValueError, SyntaxError):
        return None

    cells = pixels[::_CELL, ::_CELL]
    height, width = pixels.shape[:2]
    again = cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1)[:height, :width]
    if not np.array_equal(again, pixels):
        return None
    return base64.b85encode(zlib.compress(cells.tobytes(), 9)).decode()


def _short(value: Any, urls: Mapping[str, str]) -> Any:
    """``value`` with parts of messages as people write them; the script makes them
    whole again."""
    if isinstance(value, list):
        return [_short(item, urls) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"type", "text"} and value["type"] == "text" and urls:
        return {"text": value["text"]}
    image = _short_image(value, urls)
    if image is not None:
        return image
    return {key: _short(item, urls) for key, item in value.items()}


def _short_image(part: dict[str, Any], urls: Mapping[str, str]) -> Any:
    """A part of a message that is one of the case's images; None: it is none."""
    if set(part) - {"uuid"} != {"type", "image_url"}:
        return None
    address = part["image_url"]
    if not isinstance(address, dict) or address.keys() != {"url"}:
        return None
    url = str(address.get("url"))
    if url not in urls:
        return None
    uuid = {"uuid": part["uuid"]} if "uuid" in part else {}
    return {"image": urls[url], **uuid}


def _common(bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """The fields that all bodies have alike, taken out of them."""
    if len(bodies) < 2:
        return {}
    alike = {}
    for key, value in bodies[0].items():
        if key in ("messages", "prompt"):
            continue
        # No body has an ellipsis: it stands for a field that is not there.
        if all(body.get(key, ...) == value for body in bodies):
            alike[key] = value

    for body in bodies:
        for key in alike:
            body.pop(key)

    return alike


# ---------------------------------------------------------------------- Python


def literal(value: Any) -> str:
    """Write ``value`` as Python has it, to be read by people: long repetitions are
    products."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + "".join(f"    {_indented(item)},\n" for item in value) + "]"
    if isinstance(value, dict):
        lines = (f"    {key!r}: {_indented(item)},\n" for key, item in value.items())
        return "{\n" + "".join(lines) + "}"
    return _indented(value)


def _indented(value: Any) -> str:
    text = pprint.pformat(
        _shortened(value), width=_WIDTH - 6, compact=True, sort_dicts=False
    )
    return text.replace("\n", "\n    ")


class _Product:
    """A string that is one unit over and over, e.g. ``'ab' * 1000``."""

    def __init__(self, unit: str, times: int, rest: str) -> None:
        self.text = f"{unit!r} * {times}" + (f" + {rest!r}" if rest else "")

    def __repr__(self) -> str:
        return self.text


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shortened(item) for item in value)
    if isinstance(value, str) and len(value) > 120:
        return _product(value)
    return value


def _product(text: str) -> str | _Product:
    """Write a text as a repetition of one to 32 characters; the text itself if it is
    none."""
    for size in range(1, 33):
        unit = text[:size]
        times, rest = divmod(len(text), size)
        if text == unit * times + text[:rest]:
            return _Product(unit, times, text[:rest])

    return text


def _comment(text: str) -> str:
    """Write a text on one line, in a docstring that it cannot end."""
    return one_line(text, 600).replace("\\", "/").replace('"""', "'''").rstrip('"')


@cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(  # noqa: S701 - Python is written, not HTML
        loader=PackageLoader("mmrepro.reports", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
