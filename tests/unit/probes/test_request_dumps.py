"""Pickles of SGLang's are read without running anything of them."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.probes import unpickle
from mmrepro.probes.base import Unavailable
from mmrepro.probes.request_dumps import is_pickle, read_requests

DUMPS = Path(__file__).parent / "dumps"
MARK = "pickle-was-run"


class Calls:
    """A pickle of it calls ``function`` when it is loaded."""

    def __init__(self, function, *arguments) -> None:
        self.called = function, arguments

    def __reduce__(self):
        return self.called


@pytest.fixture
def hostile(tmp_path):
    def written(content: object) -> Path:
        file = tmp_path / "x.pkl"
        file.write_bytes(
            content if isinstance(content, bytes) else pickle.dumps(content)
        )
        return file

    return written


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_objects_of_sglangs_own_classes_are_read(release):
    """Pickled by that release's own interpreter; the requests in it are made up."""
    found = read_requests(DUMPS / f"sglang-{release}.pkl")
    assert (found.count, [r.id for r in found.unfinished]) == (3, ["b2", "c3"])
    second = found.unfinished[0]
    assert second.fields["stop_token_ids"] == "[999999]"
    assert second.fields["top_logprobs_num"] == "7"
    assert second.media == 1
    assert second.prompt_chars == len("my secret prompt")
    assert found.options["tp_size"] == "1"
    assert "--tp" in found.command
    assert "secret prompt" not in found.model_dump_json()


def touching(folder: Path) -> dict[str, object]:
    mark = str(folder / MARK)
    code = f"open({mark!r}, 'w').close()"
    return {
        "os.system": Calls(os.system, f"touch {mark}"),
        "eval": Calls(eval, f"exec({code!r})"),
        "exec": Calls(exec, code),
        "open": Calls(open, mark, "w"),
        "subprocess": Calls(subprocess.run, ["touch", mark]),
        "a class of ours": Calls(Path.touch, Path(mark)),
        "in a request": {"requests": [(Calls(os.system, f"touch {mark}"), {})]},
        "getattr": b"\x80\x04cbuiltins\ngetattr\n(cos\nopen\n\x8c\x01xtR.",
        "inside an allowed package": b"\x80\x04cnumpy.f2py.crackfortran\nmyeval\n(\x8c"
        + bytes([len(code)])
        + code.encode()
        + b"tR.",
    }


@pytest.mark.parametrize("name", touching(Path()))
def test_a_hostile_pickle_runs_nothing(tmp_path, hostile, name):
    with pytest.raises(Unavailable) as refused:
        read_requests(hostile(touching(tmp_path)[name]))
    assert not (tmp_path / MARK).exists()
    assert "\n" not in str(refused.value)


def test_what_it_asks_for_is_named(hostile):
    with pytest.raises(
        Unavailable, match=r"asks for posix\.system, which was not done$"
    ):
        read_requests(hostile(Calls(os.system, "true")))


def test_the_same_pickle_runs_where_the_names_are_looked_up(tmp_path, hostile):
    """So that the tests above show something: Python's own reader does run it."""
    file = hostile(touching(tmp_path)["os.system"])
    pickle.loads(file.read_bytes())
    assert (tmp_path / MARK).exists()


def walls(action: str) -> str:
    """What happens to ``action`` in the reader's process, once its walls stand."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(unpickle.__file__).parent)!r})
import os, socket, unpickle
unpickle._lock(0)
try:
    {action}
    sys.stdout.write("done")
except BaseException as error:
    sys.stdout.write(type(error).__name__)
sys.stdout.flush()
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30
    )
    return done.stdout


@pytest.mark.parametrize(
    "action",
    [
        "open('/etc/hostname')",
        "socket.socket()",
        "os.system('true')",
        "os.fork()",
        "import csv",
        "eval('1')",
        "os.kill(os.getppid(), 0)",
        "bytearray(2 << 30)",
    ],
)
def test_its_process_has_no_rights(action):
    assert walls(action) in (
        "RefusedPickle",
        "MemoryError",
        "OSError",
        "BlockingIOError",
    )
    assert walls("pass") == "done"


def chain(length: int) -> bytes:
    """Tuples in tuples, ``length`` deep."""
    return b"\x80\x04)" + b"\x85" * length


def laughs() -> object:
    found: list[object] = ["x"] * 10
    for _ in range(60):
        found = [found] * 10
    return {"requests": [(found, found)]}


def ring() -> object:
    found: list[object] = []
    found.append(found)
    return {"requests": found}


def copies(number: int) -> bytes:
    """So many copies of one megabyte, in a file of little more than one."""
    block = b"B" + (1 << 20).to_bytes(4, "little") + b"x" * (1 << 20)
    made = block + b"q\x00" + b"0" + b"cbuiltins\nbytearray\nq\x01" + b"0"
    return b"\x80\x04" + made + b"](" + b"h\x01h\x00\x85R" * number + b"e."


def test_more_memory_than_the_file_explains_is_refused(hostile):
    with pytest.raises(Unavailable, match="needs more memory than it may have"):
        read_requests(hostile(copies(700)))
    with pytest.raises(Unavailable, match="holds no requests"):
        read_requests(hostile(copies(10)))


BOMBS = {
    "one huge object": lambda: Calls(bytearray, 10**12),
    "a length that is not there": lambda: (
        b"\x80\x04\x8d" + (10**13).to_bytes(8, "little") + b"x."
    ),
    "a million laughs": laughs,
    "a ring": ring,
    "deep": lambda: chain(1_000_000) + b".",
    "a deep key": lambda: b"\x80\x04}" + chain(1_000_000)[2:] + b"K\x01s.",
    "memory in steps": lambda: b"\x80\x04]" + b"\x8c\x01a" * 1_000_000 + b"e.",
    "persistent": lambda: b"\x80\x02Pabc\n.",
    "cut": lambda: pickle.dumps({"requests": [1] * 1000})[:-40],
    "empty": lambda: b"\x80\x04.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_bounded(hostile, name):
    began = time.monotonic()
    with pytest.raises(Unavailable) as told:
        read_requests(hostile(BOMBS[name]()))
    assert time.monotonic() - began < 30
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 600


def test_other_pickles_are_no_dump(hostile):
    for content in (None, 7, [1, 2], {"a": 1}, {"requests": []}, {"requests": 5}):
        try:
            found = read_requests(hostile(content))
        except Unavailable:
            continue
        assert found.count == 0


def test_a_huge_number_and_odd_fields(hostile):
    rows = [
        (
            {
                "rid": "a",
                "priority": 10**500,
                "sampling_params": {"stop": "END", "n": None},
            },
            {},
        ),
        ({"rid": 5, "text": ["a"], "sampling_params": 3}, None),
        (1,),
        "x",
    ]
    found = read_requests(
        hostile({"requests": rows, "launch_command": ["x", "--api-key", "K"]})
    )
    assert found.count == 4
    assert found.requests[0].fields == {
        "priority": "a huge number",
        "stop": "3 characters",
    }
    assert found.command == ["x", "--api-key", "***"]


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_no_bytes_make_it_fail(tmp_path_factory, raw):
    file = tmp_path_factory.mktemp("p") / "x.pkl"
    file.write_bytes(b"\x80\x04" + raw)
    assert is_pickle(file.read_bytes())
    with pytest.raises(Unavailable):
        read_requests(file)
