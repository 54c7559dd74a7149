"""A package index on the loopback, of tiny wheels made here (PEP 691, PEP 658). No
test."""

import contextlib
import hashlib
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote, unquote

from folder_index import serving

EARLY, LATE = "2026-06-01T10:00:00Z", "2026-09-01T10:00:00Z"
ANY = "py3-none-any"


class ToyIndex:
    """Files by project. ``asked``: the paths that were asked for, in order."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, tuple[bytes, str]]] = {}
        self.metadata: dict[str, str] = {}
        self.asked: list[str] = []
        self.serves_metadata = True

    def wheel(
        self,
        project: str,
        version: str,
        requires: Sequence[str] = (),
        *,
        tag: str = ANY,
        uploaded: str = EARLY,
        ballast: int = 0,
    ) -> bytes:
        """One more wheel; ``ballast``: bytes that cannot be compressed."""
        name = project.replace("-", "_")
        content, metadata = wheel_of(
            project, version, requires, tag=tag, ballast=ballast
        )
        filename = f"{name}-{version}-{tag}.whl"
        self.files.setdefault(project, {})[filename] = (content, uploaded)
        self.metadata[filename] = metadata
        return content

    def sdist(self, project: str, version: str, *, tag: str = ANY) -> None:
        """Source whose build needs nothing, and gives a wheel with ``tag``."""
        name = project.replace("-", "_")
        wheel, metadata = wheel_of(project, version, (), tag=tag)
        backend = (
            "import pathlib\n"
            "def build_wheel(folder, config=None, metadata=None):\n"
            f"    name = '{name}-{version}-{tag}.whl'\n"
            f"    pathlib.Path(folder, name).write_bytes({wheel!r})\n"
            "    return name\n"
        )
        project_file = (
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = "
            "['.']\n"
            f"[project]\nname = '{project}'\nversion = '{version}'\n"
        )
        members = {
            "backend.py": backend,
            "pyproject.toml": project_file,
            "PKG-INFO": metadata,
        }
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for member, text in members.items():
                entry = tarfile.TarInfo(f"{name}-{version}/{member}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        filename = f"{name}-{version}.tar.gz"
        self.files.setdefault(project, {})[filename] = (packed.getvalue(), EARLY)

    def answer(self, path: str) -> tuple[bytes, str] | None:
        self.asked.append(path)
        kind, _, rest = unquote(path).strip("/").partition("/")
        if kind == "simple" and rest in self.files:
            return self._page(rest), "application/vnd.pypi.simple.v1+json"
        name = rest.removesuffix(".metadata")
        if name != rest:
            text = self.metadata.get(name) if self.serves_metadata else None
            return (text.encode(), "text/plain") if text is not None else None
        for files in self.files.values():
            if kind == "files" and name in files:
                return files[name][0], "application/octet-stream"
        return None

    def _page(self, project: str) -> bytes:
        listed = [
            {
                "filename": name,
                "url": f"../../files/{quote(name)}",  # a local version has a "+"
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
                "size": len(content),
                "upload-time": uploaded,
                "core-metadata": self.serves_metadata and name.endswith(".whl"),
            }
            for name, (content, uploaded) in self.files[project].items()
        ]
        page = {"meta": {"api-version": "1.1"}, "name": project, "files": listed}
        return json.dumps(page).encode()


def wheel_of(
    project: str,
    version: str,
    requires: Sequence[str],
    *,
    tag: str = ANY,
    ballast: int = 0,
) -> tuple[bytes, str]:
    """A wheel, and its METADATA. The same arguments give the same bytes."""
    name = project.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}"]
    metadata = (
        "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n"
    )
    noise = random.Random(project).randbytes(ballast)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for member, content in (
            (f"{name}/__init__.py", f"VERSION = {version!r}\n".encode()),
            (f"{name}/noise.bin", noise),
            (f"{info}/METADATA", metadata.encode()),
            (
                f"{info}/WHEEL",
                f"Wheel-Version: 1.0\nGenerator: toy\nTag: {tag}\n".encode(),
            ),
            (f"{info}/RECORD", b""),
        ):
            archive.writestr(zipfile.ZipInfo(member), content)
    return packed.getvalue(), metadata


@contextlib.contextmanager
def served(index: ToyIndex) -> Iterator[str]:
    """Its address, for uv."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = index.answer(self.path)
            self.send_response(200 if found else 404)
            body, kind = found or (b"", "text/plain")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            return

    with serving(Handler) as address:
        yield f"{address}/simple/"


def write(folder: Path, project: str, version: str) -> Path:
    """That wheel as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{project.replace('-', '_')}-{version}-{ANY}.whl"
    path.write_bytes(wheel_of(project, version, ())[0])
    return path
