"""Libraries of names alone in place of CUDA's, as the dynamic linker takes them."""

import ctypes
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from mmrepro.engines.environments import loading, recipe, stubs
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import minivllm_spec

COMPILED = pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler")


@dataclass
class Linked:
    """A module linked to two libraries of NVIDIA and one of others, all of them
    gone."""

    folder: Path
    module: Path

    def build(self, name: str, code: str, *options: str) -> Path:
        path = self.folder / name
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        command += [f"-Wl,-soname,{name}", *options]
        subprocess.run(command, input=code, text=True, check=True)
        return path

    def load(self) -> subprocess.CompletedProcess[str]:
        script = f"import ctypes; print(ctypes.CDLL({str(self.module)!r}).sum())"
        command = [sys.executable, "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def linked(tmp_path: Path) -> Linked:
    made = Linked(tmp_path, tmp_path / "libtorch_python.so")
    versions = tmp_path / "versions"
    versions.write_text("cu.9 { global: cuThing; __other; cuGetErrorString; };")
    code = "int cuThing(void){return 0;} int __other(void){return 0;} "
    code += 'const char *cuGetErrorString(int code){return "";}'
    libraries = [
        made.build("libcu.so.9", code, f"-Wl,--version-script={versions}"),
        made.build("libnvx.so.1", "int nvThing(void){return 0;}"),
        made.build(
            "libnuma.so.1", "int numa(void){return 0;} int cuNot(void){return 0;}"
        ),
    ]
    here = ["-Wl,-z,now", "-Wl,-rpath,$ORIGIN", "-x", "none"]
    below = "int __other(void), deep(void); int deep(void){return __other();}"
    neighbour = made.build("libtorch.so", below, *here, str(libraries[0]))
    code = "int cuThing(void), nvThing(void), numa(void), deep(void);"
    code += (
        "const char *cuGetErrorString(int); const char *words(void){return "
        "cuGetErrorString(1);}"
    )
    code += "int sum(void){return cuThing() + nvThing() + numa() + deep();}"
    made.build(made.module.name, code, *here, *map(str, libraries), str(neighbour))
    for path in libraries[:2]:
        path.unlink()
    return made


@COMPILED
def test_a_module_whose_libraries_are_gone_loads_with_stubs(linked: Linked) -> None:
    assert "libcu.so.9" in linked.load().stderr
    written = stubs.write_stubs(linked.module)
    assert [path.name for path in written] == ["libcu.so.9", "libnvx.so.1"]
    assert {path.resolve().name for path in written} == {stubs.FILE}
    ran = linked.load()
    assert (ran.stdout, ran.stderr) == ("300\n", "")  # each finds no device


@COMPILED
def test_a_symbol_has_its_version_and_no_other(linked: Linked) -> None:
    first, second = stubs.write_stubs(linked.module)
    library = ctypes.CDLL(str(first))
    find = ctypes.CDLL(None).dlvsym
    find.restype = ctypes.c_void_p
    find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    assert find(library._handle, b"cuThing", b"cu.9")
    assert find(library._handle, b"__other", b"cu.9")
    assert not find(library._handle, b"cuThing", b"cu.8")
    assert not find(library._handle, b"nvThing", b"cu.9")
    assert ctypes.CDLL(str(second)).nvThing() == 100
    assert not hasattr(library, "numa")


@COMPILED
def test_a_function_that_says_what_failed_returns_words(linked: Linked) -> None:
    stubs.write_stubs(linked.module)
    words = ctypes.CDLL(str(linked.module)).words
    words.restype = ctypes.c_char_p
    assert (
        words().decode() == "no CUDA: mmrepro's environment for a CPU has stubs of it"
    )


@COMPILED
def test_what_is_linked_to_nothing_of_nvidia_gets_nothing(linked: Linked) -> None:
    alone = linked.build("libalone.so", "int alone(void){return 1;}")
    before = set(linked.folder.iterdir())
    assert stubs.write_stubs(alone) == []
    assert set(linked.folder.iterdir()) == before


@COMPILED
def test_another_processor_gets_nothing(linked: Linked) -> None:
    data = bytearray(linked.module.read_bytes())
    data[18:20] = struct.pack("<H", 243)  # RISC-V
    linked.module.unlink()
    linked.module.write_bytes(data)
    assert stubs.write_stubs(linked.module) == []
    assert not (linked.folder / stubs.FILE).exists()


@pytest.mark.parametrize(
    "content", [None, b"no ELF file", b"\x7fELF\x01\x01" + bytes(100)]
)
def test_what_cannot_be_read_gets_nothing(
    content: bytes | None, tmp_path: Path
) -> None:
    module = tmp_path / "libtorch_python.so"
    if content:
        module.write_bytes(content)
    assert stubs.write_stubs(module) == []


@pytest.mark.parametrize("wants", ["", "libcudart.so.13", "cudaFree"])
def test_where_torch_does_not_load_all_is_installed(
    wants: str, fake_uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "libcudart.so.13"

    def write(module: Path) -> list[Path]:
        assert module.parts[-3:] == ("torch", "lib", "libtorch_python.so")
        stub.touch()
        return [stub]

    asked: list[str] = []
    metadata = "Metadata-Version: 2.4\nName: torch\nVersion: 2.11.0\n"
    monkeypatch.setattr(recipe.Build, "_metadata", lambda _: metadata)
    monkeypatch.setattr(recipe, "write_stubs", write)
    monkeypatch.setattr(loading, "missing_library", lambda *_: wants)
    made = ensure(minivllm_spec("0.1", "cpu"), progress=asked.append)
    noted = {note.name for note in made.notes}
    assert ({"left out", "stub libraries"} <= noted) == (not wants)
    assert stub.exists() == (not wants)
    installed = [
        line for line in fake_uv.read_text().splitlines() if "pip sync" in line
    ]
    assert len([line for line in installed if "--dry-run" not in line]) == (
        2 if wants else 1
    )
    assert [line for line in asked if "nothing is left out" in line] == (
        [f"torch wants {wants} even on a CPU: nothing is left out"] if wants else []
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (
            "libcudnn.so.9: cannot open shared object file: No such file",
            "libcudnn.so.9",
        ),
        (
            "/e/libtorch_cuda.so: undefined symbol: cufftExec, version libcufft.so.12",
            "cufftExec",
        ),
    ],
)
def test_what_torch_wants_is_named(
    words: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        loading, "_run", lambda *_, **__: ("", f"ImportError: {words}\n", 1)
    )
    assert loading.missing_library(Path(sys.executable), "torch") == name
