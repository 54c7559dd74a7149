"""``mmrepro fuzz`` from the command line, as far as no engine is needed."""

import json
from dataclasses import replace
from pathlib import Path

import in_process
import pytest
from mmrepro.base.errors import UsageError
from mmrepro.base.options import OptionOrigin
from mmrepro.cli.app import app
from mmrepro.engines.dialects import dialect_of
from mmrepro.search.fuzz.options import FuzzCommand, FuzzProfile
from mmrepro.search.fuzz.server import kept_options, read_source, server_of, settled
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case, Content, ServerWanted
from PIL import Image
from typer.testing import CliRunner

SERVER = ServerWanted(engine="vllm", release="0.23.0")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("vlm",), "vlm"),
        (("vllm", "--budget", "soon"), "not a length of time"),
        (("vllm", "--budget", "3s"), "not enough for one episode"),
        (("vllm", "--env", "x"), "NAME=VALUE"),
        (("minivllm", "--from", "/nowhere.har"), "nowhere.har cannot be read"),
        (("minivllm", "--resume", "/nowhere"), "holds no session"),
        (("minivllm", "--resume", "a", "--out", "b"), "--out is for a new one"),
    ],
)
def test_bad_input_is_a_sentence(
    args: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = in_process.mmrepro("fuzz", *args)
    assert code == 2
    assert says in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_the_server_is_the_scenarios_under_the_profile() -> None:
    made = server_of(
        "vllm", FuzzProfile.PRESSURE, {"args": ["--mine"], "release": "0.23.0"}, ""
    )
    dialect = dialect_of("vllm")
    assert made.args == [*dialect.tells, *dialect.pressure, "--mine"]
    assert (made.release, made.max_model_len) == ("0.23.0", dialect.max_model_len)
    longer = server_of("vllm", FuzzProfile.PRESSURE, {"max_model_len": 4096}, "")
    assert longer.max_model_len == 4096


def test_a_session_is_gone_on_with_as_it_began(tmp_path: Path) -> None:
    from mmrepro.base.machine.journal import Head, SessionJournal
    from mmrepro.search.fuzz.knowledge import EPISODES

    first = FuzzCommand(
        engine="vllm",
        server=server_of("vllm", FuzzProfile.TEXT, {"args": ["--max-num-seqs=3"]}, ""),
        profile=FuzzProfile.TEXT,
        seed=5,
        blind=True,
    )
    head = Head(mmrepro_version="1", id="x", decides=first.decides)
    SessionJournal(EPISODES, tmp_path, head).close()
    kept, budget_s = kept_options(tmp_path)
    assert budget_s is None, "there is no document yet"
    assert (kept["--seed"], kept["--profile"], kept["--blind"]) == ("5", "text", "yes")
    assert server_of("vllm", FuzzProfile.TEXT, {}, kept["server"]) == first.server
    again = settled(FuzzCommand(engine="vllm", resume=tmp_path))
    assert again.decides == first.decides
    asked = FuzzCommand(
        engine="vllm", resume=tmp_path, seed=0, origins={"seed": OptionOrigin.WORD}
    )
    assert (settled(asked).seed, settled(asked).blind) == (0, True)


def test_what_a_file_may_not_set_is_asked_for_when_a_session_goes_on(
    tmp_path: Path,
) -> None:
    from mmrepro.base.machine.journal import Head, SessionJournal
    from mmrepro.search.fuzz.knowledge import EPISODES

    server = server_of("vllm", FuzzProfile.TEXT, {"args": ["--worker-cls=a.B"]}, "")
    first = FuzzCommand(engine="vllm", server=server, profile=FuzzProfile.TEXT)
    head = Head(mmrepro_version="1", id="x", decides=first.decides)
    SessionJournal(EPISODES, tmp_path, head).close()
    again = FuzzCommand(engine="vllm", resume=tmp_path)
    with pytest.raises(UsageError, match="--worker-cls"):
        settled(again)
    typed = replace(again, server_args=("--worker-cls=a.B",))
    assert "--worker-cls=a.B" in settled(typed).server.args


def two_sided(env: dict[str, str]) -> FuzzCommand:
    first = settled(FuzzCommand(engine="vllm", against="--front rust", seed=5))
    other = first.server.model_copy(update={"env": env})
    return replace(first, other=other)


def test_two_sides_have_the_engines_defaults_unless_a_profile_is_named() -> None:
    asked = FuzzCommand(engine="vllm", against="--front rust")
    assert settled(asked).profile is FuzzProfile.PLAIN
    assert settled(asked).server.args == []
    named = replace(asked, origins={"profile": OptionOrigin.WORD})
    assert settled(named).profile is FuzzProfile.PRESSURE


def test_a_session_of_two_sides_is_gone_on_with_as_it_began(tmp_path: Path) -> None:
    from mmrepro.base.machine.journal import Head, SessionJournal
    from mmrepro.search.fuzz.pairs import PAIRS

    first = two_sided({"VLLM_USE_RUST_FRONTEND": "1"})
    head = Head(mmrepro_version="1", id="x", decides=first.decides)
    SessionJournal(PAIRS, tmp_path, head).close()
    again = settled(FuzzCommand(engine="vllm", resume=tmp_path))
    assert again.other == first.other
    assert again.decides == first.decides


def test_what_a_file_may_not_set_is_refused_of_the_second_side(tmp_path: Path) -> None:
    from mmrepro.base.machine.journal import Head, SessionJournal
    from mmrepro.search.fuzz.pairs import PAIRS

    first = two_sided({"LD_PRELOAD": "other.so"})
    head = Head(mmrepro_version="1", id="x", decides=first.decides)
    SessionJournal(PAIRS, tmp_path, head).close()
    with pytest.raises(UsageError, match="LD_PRELOAD"):
        settled(FuzzCommand(engine="vllm", resume=tmp_path))


def test_a_session_with_a_private_path_among_its_variables_begins(
    tmp_path: Path,
) -> None:
    from mmrepro.base.machine.journal import Head, SessionJournal
    from mmrepro.search.fuzz.knowledge import EPISODES

    def begun(path: str) -> None:
        asked = {"env": {"PYTHONPATH": path}}
        server = server_of("vllm", FuzzProfile.TEXT, asked, "")
        first = FuzzCommand(engine="vllm", server=server, profile=FuzzProfile.TEXT)
        head = Head(mmrepro_version="1", id="x", decides=first.decides)
        SessionJournal(EPISODES, tmp_path, head).close()

    for _ in range(2):  # begun, and gone on with
        begun("/home/somebody/plug-ins/of/theirs")
    assert b"somebody" not in (tmp_path / EPISODES.file).read_bytes()
    with pytest.raises(UsageError, match="begun with another server"):
        begun("/usr/lib/others")


def test_pictures_of_a_folder_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    folder.mkdir()
    for number in range(2):
        Image.new("RGB", (28, 28), (number, 0, 0)).save(folder / f"{number}.png")
    (folder / "pair.json").write_text("{}")
    source = read_source(folder, SERVER)
    assert len(source.images) == len(source.contents) == 2
    assert all(isinstance(image, Content) for image in source.images.values())
    kept = tmp_path / "session"
    kept.mkdir()
    source.keep(kept)
    assert {file.name for file in (kept / "images").iterdir()} == set(source.contents)


def test_a_case_gives_its_requests(tmp_path: Path) -> None:
    case = Case(server=ServerWanted(engine="sglang", release="1"), operations=[])
    source = read_source(write_case(case, tmp_path), SERVER)
    assert source.case is not None
    assert source.case.server == SERVER, "on the server that is fuzzed"


def test_a_folder_of_neither_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"neither a case.json nor a picture"):
        read_source(tmp_path, SERVER)


def test_its_schema_is_there() -> None:
    done = CliRunner().invoke(app, ["fuzz", "--json-schema"])
    assert "episodes" in json.loads(done.stdout)["properties"]
