"""Reproducers in a process of their own and forked from a fork server: what comes of
them."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mmrepro.base import processes
from mmrepro.engines.supervise.warm import ForkServers
from mmrepro.runs import observe
from mmrepro.runs.observe import Interpreter
from mmrepro.traffic.evidence import ReproducerResult
from toy_engine import toy

Run = Callable[[str], ReproducerResult]


@pytest.fixture(params=["new process", "forked"])
def run(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """``run(program)``: the program as the reproducer ``toy_reproducer.py``."""
    monkeypatch.setattr(observe, "reproducer_path", lambda name: tmp_path / name)
    env = {"TOY": "of the engine"}
    with ForkServers(tmp_path / "kept") as parents:
        parent = None
        if request.param == "forked":
            parent = parents.get(toy(tmp_path / "code", "import bdb"))

        def run(program: str) -> ReproducerResult:
            (tmp_path / "toy_reproducer.py").write_text(textwrap.dedent(program))
            interpreter = Interpreter(Path(sys.executable), env, parent)
            return interpreter.run("toy_reproducer.py", tmp_path)

        yield run


def test_its_last_line_is_its_facts(run: Run) -> None:
    result = run(
        """
        import json, os, sys
        if __name__ == "__main__":
            print("some words")
            facts = {"toy": os.environ["TOY"], "argv": len(sys.argv), "file": __file__}
            print(json.dumps(facts))
        """
    )
    assert (result.exit_code, result.error) == (0, "")
    assert (result.facts["toy"], result.facts["argv"]) == ("of the engine", 1)
    assert str(result.facts["file"]).endswith("/toy_reproducer.py")


def test_what_the_parent_imported_is_there_but_not_its_server(
    run: Run, request: pytest.FixtureRequest
) -> None:
    asks = (
        "import json, sys; print(json.dumps({n: n in sys.modules for n in "
        "('bdb', 'toy_server')}))"
    )
    forked = "forked" in request.node.callspec.id
    result = run(asks)
    assert result.facts == {"bdb": forked, "toy_server": False}
    assert result.forked is forked


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("import sys; sys.exit('no model')", 1, "no model"),
        ("raise ValueError('not here')", 1, "ValueError: not here"),
        ("import os, sys; print('{}', flush=True); os._exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("print('no json')", None, "JSONDecodeError"),
        ("pass", None, "IndexError"),
        ("print('[1]')", None, "ValidationError"),
    ],
)
def test_what_goes_wrong_is_told(
    run: Run, program: str, code: int | None, error: str
) -> None:
    result = run(program)
    assert result.exit_code == code
    assert error in result.error
    assert result.facts == {}


def test_without_its_parent_it_is_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "reproducer_path", lambda name: tmp_path / name)
    (tmp_path / "it.py").write_text("""print('{"done": true}')""")
    with ForkServers(tmp_path / "kept") as parents:
        dead = parents.get(toy(tmp_path / "code", "import bdb"))
    assert not dead.alive
    result = Interpreter(Path(sys.executable), {}, dead).run("it.py", tmp_path)
    assert (result.facts, result.forked) == ({"done": True}, False)


def test_one_that_never_ends_is_ended(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "TIMEOUT_S", 0.3)
    result = run(
        """
        import os, time
        with open(os.path.join(os.path.dirname(__file__), "pid.tmp"), "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, file.name[:-4])
        time.sleep(99)
        """
    )
    assert (result.exit_code, result.error) == (None, "no result in 0 s")
    if (tmp_path / "pid").exists():  # else it was ended before it could say who it is
        assert not processes.alive(int((tmp_path / "pid").read_text()))
