"""``mmrepro check --for``: a release against a machine, on a made-up index."""

import json

import pytest
from mmrepro.base.errors import EnvironmentBuildError, UnknownRelease, UsageError
from mmrepro.base.machine.nvml import Gpu, GpuReading
from mmrepro.cli.app import app
from mmrepro.engines.environments import fit
from mmrepro.engines.environments.fit import Fits, asked_for
from mmrepro.engines.environments.index import File, Page
from mmrepro.engines.environments.spec import sglang_spec, vllm_spec
from typer.testing import CliRunner

NO_GPU = GpuReading(reason="there is no NVIDIA driver on this machine")
RESOLVED = "torch==2.13.0\nnvidia-cuda-runtime==13.0.88\ntransformers==5.17.0\n"


def gpus(
    *capabilities: str, driver: str = "580.159.03", cuda: str = "13.0"
) -> GpuReading:
    return GpuReading(
        driver=driver,
        cuda=cuda,
        gpus=[
            Gpu(
                index=n,
                uuid=f"GPU-{n}",
                name=f"GPU of {one}",
                memory_total_bytes=1,
                memory_used_bytes=0,
                utilization_pct=0,
                capability=one,
            )
            for n, one in enumerate(capabilities)
        ],
    )


class Index:
    """What the index has; the machine is an x86_64 with glibc 2.36 and Python
    3.11.7."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wheels = ["vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"]
        self.python: str | None = "<3.15,>=3.11"
        self.resolved = RESOLVED
        self.refusal = ""
        self.asked: list[str] = []
        patch.setattr(fit, "project_page", self._page)
        patch.setattr(fit, "run_uv", self._uv)
        patch.setattr(fit.platform, "machine", lambda: "x86_64")
        patch.setattr(fit.platform, "libc_ver", lambda: ("glibc", "2.36"))
        patch.setattr(fit.platform, "python_version", lambda: "3.11.7")
        patch.setattr(fit, "free_bytes", lambda _: 100 << 30)

    def _page(self, project: str) -> Page:
        if self.refusal:
            raise EnvironmentBuildError(
                "The package index could not be asked: ConnectError."
            )
        data = [
            {"filename": one, "requires-python": self.python} for one in self.wheels
        ]
        return Page(files=[File.model_validate(one) for one in data])

    def _uv(self, arguments: list[str], **_: object) -> str:
        self.asked = arguments
        if not self.resolved:
            raise EnvironmentBuildError(
                "uv ended with 1.", detail=["No solution found"]
            )
        return self.resolved


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(monkeypatch)


def rows(reading: GpuReading, spec: str = "0.32.0") -> dict[str, fit.FitRow]:
    return {row.name: row for row in fit.fit(vllm_spec(spec, "cuda"), reading).rows}


def test_a_release_that_fits(index: Index) -> None:
    report = fit.fit(vllm_spec("0.32.0", "cuda"), gpus("9.0"))
    assert report.fits is Fits.YES, report
    assert {row.fits for row in report.rows} == {Fits.YES}
    assert "CUDA 13.0" in next(row.asks for row in report.rows if row.name == "torch")


def test_without_a_gpu_nothing_is_pretended(index: Index) -> None:
    report = fit.fit(vllm_spec("0.32.0", "cuda"), NO_GPU)
    found = {row.name: row for row in report.rows}
    assert report.fits is Fits.UNKNOWN
    assert found["driver"].fits is Fits.UNKNOWN
    assert found["compute capability"].fits is Fits.UNKNOWN
    assert "580.65.06" in found["driver"].asks
    assert "--device cpu" in found["driver"].do


@pytest.mark.parametrize(
    ("driver", "newest", "cuda", "wanted"),
    [
        ("580.65.06", "13.0", "13.0.88", Fits.YES),
        ("570.86.10", "12.8", "13.0.88", Fits.NO),
        ("570.86.10", "12.8", "12.8.90", Fits.YES),
        ("535.104.05", "12.2", "12.8.90", Fits.YES),  # of the same major release
        ("470.82.01", "11.4", "12.8.90", Fits.NO),
        ("580.65.06", "13.0", "12.8.90", Fits.YES),
    ],
)
def test_driver_and_cuda(
    index: Index, driver: str, newest: str, cuda: str, wanted: Fits
) -> None:
    name = (
        "nvidia-cuda-runtime" if cuda.startswith("13") else "nvidia-cuda-runtime-cu12"
    )
    index.resolved = f"torch==2.13.0\n{name}=={cuda}\n"
    row = rows(gpus("9.0", driver=driver, cuda=newest))["driver"]
    assert row.fits is wanted
    assert bool(row.do) == (wanted is Fits.NO)


@pytest.mark.parametrize(
    ("capability", "cuda", "wanted"),
    [
        ("9.0", "13.0.88", Fits.YES),
        ("7.0", "13.0.88", Fits.NO),  # CUDA 13 has no Volta
        ("7.0", "12.8.90", Fits.YES),
        ("6.1", "12.8.90", Fits.NO),  # vLLM's own
        ("12.0", "12.6.77", Fits.NO),  # Blackwell came with 12.8
        ("12.0", "12.8.90", Fits.YES),
    ],
)
def test_compute_capability(
    index: Index, capability: str, cuda: str, wanted: Fits
) -> None:
    index.resolved = f"torch==2.13.0\nnvidia-cuda-runtime=={cuda}\n"
    assert rows(gpus(capability))["compute capability"].fits is wanted


def test_the_worst_gpu_counts(index: Index) -> None:
    assert rows(gpus("9.0", "7.0"))["compute capability"].fits is Fits.NO


def test_a_turing_gpu_has_no_bfloat16(index: Index) -> None:
    row = rows(gpus("7.5"))["compute capability"]
    assert row.fits is Fits.YES
    assert "float16" in row.do


def test_python_that_does_not_fit(index: Index) -> None:
    index.python = ">=3.12"
    assert rows(NO_GPU)["Python"].fits is Fits.NO
    index.python = None
    index.wheels = ["vllm-0.32.0-cp312-cp312-manylinux_2_28_x86_64.whl"]
    assert rows(NO_GPU)["Python"].fits is Fits.NO
    assert index.asked[2:4] == ["--python-version", "3.12"], (
        "the rest is compared all the same"
    )


def test_processor_and_c_library(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.wheels = ["sglang-0.5.23-cp311-cp311-manylinux_2_39_x86_64.whl"]
    report = fit.fit(sglang_spec("0.5.23", "cuda"), NO_GPU)
    found = {row.name: row for row in report.rows}
    assert found["C library"].fits is Fits.NO
    assert found["C library"].asks == "glibc 2.39 or later"
    monkeypatch.setattr(fit.platform, "machine", lambda: "ppc64le")
    report = fit.fit(sglang_spec("0.5.23", "cuda"), NO_GPU)
    assert {row.name: row.fits for row in report.rows}["processor"] is Fits.NO


def test_musl_is_not_glibc(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit.platform, "libc_ver", lambda: ("", ""))
    row = rows(NO_GPU)["C library"]
    assert (row.fits, row.has) == (Fits.UNKNOWN, "not glibc")


def test_requirements_that_cannot_be_met_are_told(index: Index) -> None:
    index.resolved = ""
    row = rows(gpus("9.0"))["torch"]
    assert row.fits is Fits.UNKNOWN
    assert "No solution found" in row.has


def test_a_full_disk(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda _: 1 << 30)
    assert rows(gpus("9.0"))["disk"].fits is Fits.NO


def test_a_release_that_is_not_there(index: Index) -> None:
    index.wheels += ["vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"]
    with pytest.raises(UnknownRelease, match=r"next to it: 0\.33\.0"):
        fit.fit(vllm_spec("0.99.0", "cuda"), NO_GPU)


@pytest.mark.parametrize(
    "text",
    ["vllm", "vllm>=0.3", "vllm==0.3.*", "vllm==", "zebra==1.0", "minivllm==0.1", "-x"],
)
def test_what_is_no_release(text: str) -> None:
    with pytest.raises(UsageError):
        asked_for(text, ("vllm", "sglang", "lmdeploy"))


def test_the_command(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["check", "--for", "vllm==0.32.0", *words])
        return done.exit_code, done.stdout

    for reading, code in ((gpus("9.0"), 0), (NO_GPU, 3), (gpus("6.1"), 4)):
        monkeypatch.setattr("mmrepro.base.machine.gpu.read_gpus", lambda r=reading: r)
        assert run()[0] == code
        assert (
            json.loads(run("--json")[1])["fits"]
            == {0: "ok", 3: "unknown", 4: "not-ok"}[code]
        )
    index.refusal = "offline"
    done = CliRunner().invoke(app, ["check", "--for", "vllm==0.32.0"])
    assert isinstance(done.exception, EnvironmentBuildError)
