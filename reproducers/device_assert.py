"""Device-side asserts on purpose, each in a child: what it says, and what can still be
used.

``python device_assert.py --device cuda --json``; torch and the standard library are all
it needs.

An index out of range, and ``masked_scatter`` with more ones than rows, are refused when
the device gets there: some later call raises it, the device's own words are on stderr.
Each child tells which call raised what, and whether CUDA can be used in that process
again; then the exception ends it, as an engine's would. With ``--device cpu`` both are
refused at once, in other words. Ends with 0 where the children were refused, 1 where
not, 4 where there is no CUDA."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

REFUSED, NOT_REFUSED, NOT_TRIED = 0, 1, 4
_MARK = "mmrepro device assert: "


def index(device: str) -> Any:
    """Row 10 of an embedding of 10 rows."""
    table = torch.zeros(10, 4, device=device)
    return torch.nn.functional.embedding(torch.tensor([0, 10], device=device), table)


def scatter(device: str) -> Any:
    """As vLLM's ``_merge_multimodal_embeddings``: the report's first step, 2048 ones,
    2046 rows."""
    embeds = torch.zeros(2048, 64, device=device)
    mask = torch.ones(2048, 1, dtype=torch.bool, device=device)
    return embeds.masked_scatter_(mask, torch.ones(2046, 64, device=device))


def _scatter_pinned(device: str) -> Any:
    """``scatter``, in a process that copied from pinned memory, which is freed
    afterwards."""
    if device == "cuda":
        host = torch.zeros(2048, dtype=torch.bool, pin_memory=True)
        _PINNED.append(host)
        host.to(device, non_blocking=True)
    return scatter(device)


_PINNED: list[Any] = []
_CAUSES: dict[str, Callable[[str], Any]] = {
    "index": index,
    "scatter": scatter,
    "scatter-pinned": _scatter_pinned,
}
_ASSERTIONS = {
    "index": "indexSelect",
    "scatter": "masked_scatter_size_check",
    "scatter-pinned": "masked_scatter_size_check",
}
"""What a GPU names as the place of each."""


@dataclass
class _Refusal:
    """One child.

    Attributes:
        raised_by: the call that raised: "launch", "synchronize", "" (nothing was
            refused).
        error: type and text of what it raised; ``kinds``: the type and its bases.
        afterwards: what the next use of the device raised; "" if it went well.
        exit_code: as of ``subprocess``; a negative one is a signal.
        output: all that it printed, in order, device and Python, but for its own
            report.
    """

    cause: str
    raised_by: str = ""
    error: str = ""
    kinds: list[str] = field(default_factory=list)
    afterwards: str = ""
    exit_code: int = 0
    output: str = ""


def _said(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}".removeprefix(
        "builtins."
    )


def child(cause: str, device: str) -> None:
    """Prints what it saw, then lets the exception end the process, as an engine's
    would."""
    found = _Refusal(cause)
    if device == "cuda":
        # What comes up with the first use is no part of it.
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    raised: BaseException | None = None
    for name, call in (
        ("launch", lambda: _CAUSES[cause](device)),
        ("synchronize", torch.cuda.synchronize if device == "cuda" else lambda: None),
    ):
        try:
            call()
        except Exception as error:
            found.raised_by, raised = name, error
            found.error = _said(error)
            found.kinds = [kind.__name__ for kind in type(error).__mro__[:-1]]
            break
    try:
        torch.zeros(1, device=device).add(1).cpu()
    except Exception as error:
        found.afterwards = _said(error)
    print(_MARK + json.dumps(asdict(found)), flush=True)
    _PINNED.clear()
    if raised is not None:
        raise raised


def refusal(cause: str, device: str, timeout_s: float = 120.0) -> _Refusal:
    """Run it in a child. ``CUDA_LAUNCH_BLOCKING`` is taken away: an engine runs
    without."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_LAUNCH_BLOCKING"}
    done = subprocess.run(
        [sys.executable, __file__, "--device", device, "--child", cause],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=timeout_s,
        check=False,
    )
    lines = done.stdout.splitlines(keepends=True)
    own = [line for line in lines if line.startswith(_MARK)]
    found = (
        _Refusal(**json.loads(own[-1].removeprefix(_MARK))) if own else _Refusal(cause)
    )
    found.exit_code = done.returncode
    found.output = "".join(line for line in lines if not line.startswith(_MARK))[
        -20_000:
    ]
    return found


def claims(device: str, found: list[_Refusal]) -> list[dict[str, str]]:
    """What the children showed, each "confirmed", "refuted" or "not-tested" (on a
    CPU)."""
    of = {one.cause: one for one in found}
    named = {name: of[name].output for name in _ASSERTIONS}
    late = [of["index"], of["scatter"]]
    aborted = of["scatter-pinned"].exit_code
    told = {
        "asynchronous": (
            "a device-side assert is raised by a later call, as torch.AcceleratorError",
            all(
                o.raised_by == "synchronize" and "AcceleratorError" in o.kinds
                for o in late
            ),
            "; ".join(f"{o.cause}: {o.raised_by}, {o.error[:70]}" for o in late),
        ),
        "named": (
            "the device prints which assertion failed, and where, before the exception",
            all(
                _ASSERTIONS[name] in output.partition("Error")[0]
                for name, output in named.items()
            ),
            "; ".join(output.partition("\n")[0] for output in named.values())[:400],
        ),
        "unusable": (
            "CUDA cannot be used in that process again",
            all("device-side assert" in o.afterwards for o in late),
            "; ".join(f"{o.cause}: {o.afterwards[:70] or 'usable'}" for o in late),
        ),
        "aborts": (
            "where pinned memory is freed afterwards the process ends by SIGABRT",
            aborted == -6,
            f"exit code {aborted}",
        ),
    }
    tried = device == "cuda"
    return [
        {
            "id": name,
            "text": text,
            "status": "not-tested"
            if not tried
            else "confirmed"
            if holds
            else "refuted",
            "observed": seen,
        }
        for name, (text, holds, seen) in told.items()
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=_CAUSES, help="do it, in this process")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        said = "torch finds no CUDA device here"
        print(json.dumps({"device": "cuda", "error": said}) if options.json else said)
        return NOT_TRIED
    if options.child:
        child(options.child, options.device)
        return NOT_REFUSED
    found = [refusal(cause, options.device) for cause in _CAUSES]
    document = {
        "device": options.device,
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "refusals": [asdict(one) for one in found],
        "claims": claims(options.device, found),
    }
    if options.json:
        print(json.dumps(document))
    else:
        for one in found:
            print(
                f"{one.cause}: {one.raised_by} raised {one.error}; exit code "
                f"{one.exit_code}"
            )
            print(f"  afterwards: {one.afterwards or 'usable'}\n{one.output}")
        for claim in document["claims"]:
            print(f"{claim['status']:11} {claim['text']}: {claim['observed']}")
    refused = all(one.error and one.exit_code for one in found)
    return REFUSED if refused else NOT_REFUSED


if __name__ == "__main__":
    sys.exit(main())
