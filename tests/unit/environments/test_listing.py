"""Which releases there are: one page of the index, read as an installer reads it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler

import pytest
from folder_index import serving
from mmrepro.base.errors import EnvironmentBuildError, UnknownRelease
from mmrepro.engines import spec_for
from mmrepro.engines.environments.index import (
    JSON_PAGE,
    EnvironmentPython,
    Page,
    fitting,
    releases_of,
)
from packaging.tags import Tag

SECRET = "s3cret"
PYTHON = EnvironmentPython(
    "3.12.4",
    frozenset(
        {Tag("cp312", "cp312", "manylinux_2_17_x86_64"), Tag("py3", "none", "any")}
    ),
)
FITS = "cp312-cp312-manylinux_2_17_x86_64.whl"


def page(*files: str | dict[str, object]) -> Page:
    told = [{"filename": f} if isinstance(f, str) else f for f in files]
    return Page.model_validate({"files": told})


def versions(*files: str | dict[str, object]) -> list[str]:
    return [one.version for one in fitting(page(*files), "Toy_engine", [PYTHON])]


def test_the_latest_build_stands_for_a_release() -> None:
    names = [
        f"toy_engine-{v}-{FITS}" for v in ("0.11.1.post2", "0.9.0", "0.11.1", "0.10.0")
    ]
    assert versions(*names) == ["0.9.0", "0.10.0", "0.11.1.post2"]
    [_, _, last] = fitting(page(*names), "toy-engine", [PYTHON])
    assert last.base == "0.11.1"


@pytest.mark.parametrize(
    "file",
    [
        f"toy_engine-1.0rc1-{FITS}",
        f"toy_engine-1.0.dev3-{FITS}",
        f"toy_engine-1.0+cpu-{FITS}",
        "toy_engine-1.0-cp312-cp312-manylinux_2_17_aarch64.whl",
        "toy_engine-1.0-cp38-cp38-manylinux_2_17_x86_64.whl",
        "toy_engine-1.0.tar.gz",
        f"another-1.0-{FITS}",
        "nonsense.whl",
        {"filename": f"toy_engine-1.0-{FITS}", "yanked": True},
        {"filename": f"toy_engine-1.0-{FITS}", "yanked": ""},
        {"filename": f"toy_engine-1.0-{FITS}", "yanked": "broken"},
        {"filename": f"toy_engine-1.0-{FITS}", "requires-python": "<3.12"},
        {"filename": f"toy_engine-1.0-{FITS}", "requires-python": "nonsense"},
    ],
)
def test_what_cannot_be_installed_here_is_left_out(
    file: str | dict[str, object],
) -> None:
    assert versions(file) == []
    assert versions(file, "toy_engine-2.0-py3-none-any.whl") == ["2.0"]


def test_a_release_came_with_the_first_of_its_wheels() -> None:
    wheels = page(
        {"filename": f"toy_engine-1.0-1-{FITS}", "upload-time": "2026-02-01T00:00:00Z"},
        {
            "filename": "toy_engine-1.0-py3-none-any.whl",
            "upload-time": "2026-01-02T00:00:00Z",
        },
        {
            "filename": "toy_engine-1.0-cp38-cp38-any.whl",
            "upload-time": "2025-01-01T00:00:00Z",
        },
    )
    [release] = fitting(wheels, "toy-engine", [PYTHON])
    assert release.uploaded == datetime(2026, 1, 2, tzinfo=UTC)


class Index(BaseHTTPRequestHandler):
    """An index: ``/PART/sglang/`` answers as ``PART`` says."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(f"{self.path} {self.headers['Accept']}")
        part = self.path.split("/")[1]
        body = json.dumps({"files": [{"filename": f"sglang-{part}-py3-none-any.whl"}]})
        status = int(part) if part in ("404", "401", "503") else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"<html>" if part == "html" else body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    Index.asked = []
    with serving(Index) as address:
        yield address.replace("//", f"//me:{SECRET}@")


def listed() -> list[str]:
    return [one.version for one in releases_of(spec_for("sglang", "0.5.6", "cpu"))]


def test_the_first_index_that_has_the_project(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index}/0.7")
    assert listed() == ["0.7"]
    assert Index.asked == [f"/0.7/sglang/ {JSON_PAGE}"]
    monkeypatch.setenv("UV_INDEX", f"{index}/404 {index}/0.8/")
    assert listed() == ["0.8"]


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        ("404", UnknownRelease, "has no project sglang"),
        ("401", EnvironmentBuildError, "answers 401"),
        ("html", EnvironmentBuildError, "as JSON"),
    ],
)
def test_an_index_that_does_not_tell(
    index: str,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    error: type[Exception],
    words: str,
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index}/{part}")
    with pytest.raises(error, match=words) as caught:
        listed()
    told = f"{caught.value!r} {caught.value.hint}"  # type: ignore[attr-defined]
    assert SECRET not in told
    assert "127.0.0.1" not in told


def test_no_index(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:{SECRET}@127.0.0.1:1/simple")
    with pytest.raises(EnvironmentBuildError, match="could not be asked") as caught:
        listed()
    assert SECRET not in repr(caught.value)
    assert "--releases" in caught.value.hint
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(EnvironmentBuildError, match="offline"):
        listed()


def test_an_engine_that_comes_with_mmrepro_has_one_release() -> None:
    [only] = releases_of(spec_for("minivllm", "0.1", "cpu"))
    assert (only.version, only.uploaded) == ("0.1", None)
