"""The doctor: what each check says about facts that this machine does not have."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dort_rewriter import HookStatus, ort_module
from dort_rewriter.files import cache_folder
from dort_rewriter.tools import cli, doctor
from dort_rewriter.tools.doctor import Finding, examine


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("ONNXRT_DUMP_PATH", raising=False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def only(findings: Any) -> Finding:
    (finding,) = findings
    return finding


VERSIONS = {"new": "1.10.2", "old": "1.2.9", "local": "2.13.0+cpu"}


@pytest.mark.parametrize(
    ("requirement", "state", "text"),
    [
        ("new>=1.9", "ok", "1.10.2"),
        ("new >= 1.10.2", "ok", "1.10.2"),
        ("new>=1.10.3", "problem", "1.10.2 is older than 1.10.3"),
        ("old>=1.10", "problem", "1.2.9 is older than 1.10"),
        ("local>=2.3", "ok", "2.13.0+cpu"),
        ("none>=1.0", "problem", "is not installed"),
    ],
)
def test_versions_are_compared_as_numbers(requirement: str, state: str, text: str) -> None:
    finding = only(doctor.check_requirements([requirement], VERSIONS.get))
    assert (finding.state, finding.text) == (state, text)
    if state == "problem":
        assert finding.fix == f"pip install --upgrade '{requirement}'"


@pytest.mark.parametrize(
    ("version", "mode", "state", "text"),
    [
        ("1.32.0", "1", "ok", "is off"),
        ("1.29.0", "", "note", "on where a program imports it before"),
        ("1.32.0", "0", "note", "is on: ORT_DISABLE_TELEMETRY=0"),
    ],
)
def test_what_onnxruntime_sends(version: str, mode: str, state: str, text: str) -> None:
    finding = only(doctor.check_telemetry(version, mode))
    assert finding.state == state
    assert text in finding.text
    assert finding.fix == ("" if state == "ok" else "export ORT_DISABLE_TELEMETRY=1")
    assert not list(doctor.check_telemetry("1.28.1", mode))
    assert not list(doctor.check_telemetry("1.19.2", mode))


V4 = ["x86-64-v4", "x86-64-v3", "x86-64"]
AMX = frozenset({"avx512f", "avx512_vnni", "amx_bf16", "amx_int8"})


@pytest.mark.parametrize(
    ("levels", "installed", "torchs", "features", "amx", "said", "noted"),
    [
        (V4, "x86-64-v4", "AVX512", AMX, True, "for x86-64-v4, torch's for AVX512", ""),
        (V4, "x86-64-v4", "AVX512", AMX, True, "by AMX, of 8-bit numbers by amx_int8", ""),
        (V4[1:], None, "AVX2", {"avx2"}, False, "for x86-64-v3", ""),
        (V4, "x86-64-v3", "AVX512", {"avx512f"}, False, "for x86-64-v3", "can do x86-64-v4"),
        (V4, "x86-64-v4", "AVX2", {"avx512f"}, False, "torch's for AVX2", "has AVX-512"),
        (V4, None, "AVX512", AMX, False, "without AMX", "has AMX, and this torch"),
        (["aarch64"], None, "DEFAULT", (), False, "for aarch64", ""),
    ],
)
def test_what_computes_is_compared_with_what_the_processor_can(
    levels: list[str],
    installed: str | None,
    torchs: str,
    features: Any,
    amx: bool,
    said: str,
    noted: str,
) -> None:
    library = None if installed is None else Path(f"kernels-{installed}.so")
    first, *notes = doctor.check_processor(levels, library, torchs, features, amx)
    assert first.state == "ok"
    assert said in first.text
    assert [noted in n.text and n.state == "note" and bool(n.fix) for n in notes] == [True] * bool(
        noted
    )


def test_threads_are_compared_with_the_cores_of_the_container() -> None:
    finding = doctor.check_threads(64, 2, 64)
    assert finding.state == "note"
    assert "on 2 core(s) that this process may use, of 64 of the machine" in finding.text
    assert finding.fix.startswith("export OMP_NUM_THREADS=2")
    assert doctor.check_threads(2, 2, 64).state == "ok"
    assert doctor.check_threads(4, 4, 4).text == "4, on 4 usable core(s)"


def test_plug_ins_are_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("onnxruntime_ep_webgpu", "onnxruntime_windowsml", "onnxruntime_extensions")
    for name in names:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed = doctor.plugins()
    assert {"onnxruntime-ep-webgpu 1.0", "onnxruntime-windowsml 1.0"} <= set(installed)
    assert not any("extensions" in name for name in installed)
    found = {f.text.split()[0]: f for f in doctor.check_plugins(installed)}
    assert found["onnxruntime-ep-webgpu"].state == "ok"
    assert found["onnxruntime-windowsml"].state == "note"
    assert "register_execution_provider_library" in found["onnxruntime-windowsml"].text


def test_extras_are_not_required_and_a_clone_must_be_installed() -> None:
    assert list(doctor.check_requirements(['x>=1; extra == "demo"', "y"], VERSIONS.get)) == []
    finding = only(doctor.check_requirements(None, VERSIONS.get))
    assert (finding.state, finding.fix) == ("problem", "pip install -e .")


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        ([], 'pip install "dort-rewriter[cpu]"'),
        (
            ["onnxruntime", "onnxruntime-gpu"],
            'pip uninstall -y onnxruntime onnxruntime-gpu && pip install "dort-rewriter[gpu]"',
        ),
        (
            ["onnxruntime", "onnxruntime-training"],
            "pip uninstall -y onnxruntime onnxruntime-training && "
            'pip install "dort-rewriter[training]"',
        ),
    ],
)
def test_none_or_several_flavours_are_a_problem(names: list[str], fix: str) -> None:
    finding = only(doctor.check_flavours(names))
    assert (finding.state, finding.fix) == ("problem", fix)


def test_one_flavour_is_no_problem() -> None:
    assert list(doctor.check_flavours(["onnxruntime-gpu"])) == []


def test_cuda_of_torch_needs_cuda_of_onnxruntime() -> None:
    cpu, cuda = "CPUExecutionProvider", "CUDAExecutionProvider"
    assert only(doctor.check_providers([cpu], cuda=False)).state == "ok"
    assert only(doctor.check_providers([cuda, cpu], cuda=True)).state == "ok"
    finding = only(doctor.check_providers([cpu], cuda=True))
    assert finding.state == "problem"
    assert finding.fix.endswith('pip install "dort-rewriter[gpu]"')


def test_an_onnxruntime_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise ort_module.ExecutionError("onnxruntime cannot be imported (numpy.core...)")

    monkeypatch.setattr(ort_module, "describe", fail)
    assert only(doctor.check_onnxruntime(False, "2.1.0")).fix == "pip install 'numpy<2'"
    finding = only(doctor.check_onnxruntime(False, "1.26.4"))
    fix = 'pip install --upgrade "dort-rewriter[{}]"'
    assert (finding.state, finding.fix) == ("problem", fix.format("cpu"))
    finding = only(doctor.check_onnxruntime(False, "1.26.4", ["onnxruntime-training"]))
    assert finding.fix == fix.format("training")


def test_an_onnxruntime_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_module, "_BATCH_API", (("OrtValueVector", "no_such_method"),))
    ort_module.load_onnxruntime.cache_clear()
    ort_module.describe.cache_clear()
    try:
        finding = only(doctor.check_onnxruntime(False, "2.1.0", ["onnxruntime-gpu"]))
    finally:
        ort_module.load_onnxruntime.cache_clear()
    assert "onnxruntime >= 1.21 or onnxruntime-training >= 1.19 is needed" in finding.text
    assert finding.fix == 'pip install --upgrade "dort-rewriter[gpu]"'


def hook(**facts: Any) -> HookStatus:
    known = {"state": "installed", "torch": "2.13.0", "rewriter": True}
    nothing: dict[str, Any] = {"applied": (), "pending": (), "onnxruntime": ()}
    return HookStatus(**{**nothing, **known, **facts})


@pytest.mark.parametrize(
    ("facts", "states", "fix"),
    [
        ({}, ["ok", "ok"], ""),
        ({"state": "waiting"}, ["ok", "ok"], ""),
        ({"state": "failed", "failure": "no"}, ["problem", "ok"], "pip install --upgrade"),
        ({"state": "disabled"}, ["note", "ok"], "unset DORT_DISABLE"),
        ({"state": "not installed"}, ["note", "ok"], "dort_rewriter.install()"),
        ({"rewriter": False}, ["ok", "note"], "unset ONNXRT_CHANGE_REWRITER"),
        (
            {"rewriter": False, "torch": "2.8.0"},
            ["ok", "note"],
            "export ONNXRT_CHANGE_REWRITER=1",
        ),
    ],
)
def test_the_hook(facts: dict[str, Any], states: list[str], fix: str) -> None:
    findings = list(doctor.check_hook(hook(**facts)))
    assert [finding.state for finding in findings] == states
    assert "".join(finding.fix for finding in findings).startswith(fix)


def test_the_name_of_the_backend() -> None:
    assert only(doctor.check_backend_name(["inductor", "onnxrt"])).state == "ok"
    assert only(doctor.check_backend_name(["inductor"])).state == "problem"


def test_the_dump_path(tmp_path: Path) -> None:
    assert list(doctor.check_dump_path("")) == []
    assert only(doctor.check_dump_path(str(tmp_path / "m_"))).fix == "unset ONNXRT_DUMP_PATH"
    finding = only(doctor.check_dump_path(str(tmp_path / "none" / "m_")))
    assert (finding.state, finding.fix) == ("problem", f"mkdir -p {tmp_path / 'none'}")


def test_the_folder_of_the_cache(tmp_path: Path) -> None:
    """It can be written, and by nobody else."""
    assert doctor.check_cache(lambda: tmp_path / "new" / "folder").state == "ok"
    file = tmp_path / "file"
    file.touch()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for folder, named in ((file / "folder", str(file)), (shared, "can be written by others")):
        finding = doctor.check_cache(functools.partial(Path, folder))
        assert finding.state == "problem"
        assert named in finding.text
        assert finding.fix.startswith("export DORT_CACHE_DIR=")


def test_there_may_be_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DORT_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    assert "no home folder" in doctor.check_cache(cache_folder).text


def test_who_can_change_the_package(tmp_path: Path) -> None:
    assert list(doctor.check_package(tmp_path)) == []
    tmp_path.chmod(0o775)
    finding = only(doctor.check_package(tmp_path))
    assert finding.state == "note"
    assert f"{tmp_path} can be written by others (mode 0775)" in finding.text
    assert finding.fix.startswith(f"chmod -R go-w {tmp_path}")


def test_the_kernels() -> None:
    """Installed, compiled, to be compiled, or not to be had."""

    def fail() -> Path:
        raise ort_module.ExecutionError("there is no C++ compiler 'c++'")

    assert doctor.check_kernels(Path("a/k.so"), fail).text == "installed, k.so"
    assert doctor.check_kernels(None, None).text == "not installed: they are compiled at first use"
    assert doctor.check_kernels(None, lambda: Path("k.so")).text == "compiled here, k.so"
    for compile_now in (None, fail):
        finding = doctor.check_kernels(None, compile_now, compiler="no-such-compiler")
        assert (finding.state, "no C++ compiler" in finding.text) == ("note", True)


def test_programs_that_are_missing_are_worth_a_note(tmp_path: Path) -> None:
    compiler = tmp_path / "mycc"
    compiler.touch(mode=0o755)
    assert doctor.check_compiler(str(compiler)).state == "ok"
    assert doctor.check_compiler(f"{compiler} -m64").text == f"{compiler} -m64"
    finding = doctor.check_compiler("no-such-compiler")
    assert finding.state == "note"
    assert "'no-such-compiler'" in finding.text
    assert finding.fix.startswith("apt-get install g++")
    assert doctor.check_graphviz("/usr/bin/dot").state == "ok"
    assert doctor.check_graphviz(None).fix == "apt-get install graphviz"


def test_without_onnxruntime_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "status", lambda: hook())
    findings = list(examine())
    assert [f.subject for f in findings if f.state == "problem"] == ["onnxruntime"]
    assert "trial" not in {f.subject for f in findings}


def test_a_trial_that_fails_or_is_wrong() -> None:
    def fail() -> float:
        raise ZeroDivisionError("first line\n\nsecond\nthird")

    finding = doctor.check_training(fail)
    assert finding.state == "problem"
    assert finding.text == "a training step failed: ZeroDivisionError: first line second"
    assert doctor.check_training(lambda: 0.5).text.endswith("off by 5.0e-01")
    assert doctor.check_training(lambda: 1e-7).state == "ok"


def test_torch_that_does_not_load_ends_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_import", lambda name: (None, "libtorch is missing"))
    last = list(examine())[-1]
    assert (last.subject, last.fix) == ("torch", "pip install torch")
    assert "libtorch is missing" in last.text


def test_importing_says_what_fails() -> None:
    assert doctor._import("json") == (json, "")
    module, failure = doctor._import("no_such_module")
    assert module is None
    assert "no_such_module" in failure


def test_this_machine_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("No problem found.\n")
    assert "trial: a training step matches eager mode" in text
    assert f"torch: {importlib.metadata.version('torch')}" in text


def test_problems_end_with_1_and_json_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXRT_DUMP_PATH", os.path.join("no", "such", "folder", "m_"))
    assert cli.main(["doctor", "--json", "--no-trial"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["problems"] == 1
    (problem,) = (f for f in data["findings"] if f["state"] == "problem")
    assert problem["subject"] == "dump"
    assert "trial" not in {finding["subject"] for finding in data["findings"]}
    assert cli.main(["doctor", "--no-trial"]) == 1
    text = capsys.readouterr().out
    assert "problem  dump: " in text
    assert "         fix: mkdir -p " in text
    assert text.endswith("1 problem(s).\n")
