"""Each fault is made for real where a test can make it; the doctor must name it, mend it and exit with 1."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from helpers import __main__, _devices, _doctor
from helpers._doctor import Finding

ROOT = Path(__file__).resolve().parents[1]


def doctor(*prefix: str, env: dict[str, str] | None = None, path: Path | None = None) -> tuple[int, str]:
    """`python -m helpers doctor` as a user runs it: its exit status and what it prints."""
    paths = [str(folder) for folder in (path, ROOT) if folder]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (env or {})
    command = [*prefix, sys.executable, "-m", "helpers", "doctor"]
    run = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.stderr == ""
    return run.returncode, run.stdout


def lines_of(printed: str) -> dict[str, str]:
    """What the doctor printed: for each thing looked at, its line and the mending line below."""
    blocks = printed.replace("\n" + " " * 14, " ").splitlines()[:-1]
    return {block[6:20].strip(): block for block in blocks}


def raising(error: Exception) -> object:
    def fail(*args: object, **kwargs: object) -> NoReturn:
        raise error

    return fail


# The command


def test_a_machine_in_order_passes(capfd: pytest.CaptureFixture[str]) -> None:
    status = __main__.main(["doctor"])
    printed = capfd.readouterr().out
    assert status == 0, printed
    assert printed.endswith("\nThe lessons run here.\n")
    assert f"1 + 2 = 3, {_devices.label(2)}, " in lines_of(printed)["all-reduce"]
    expected = (
        "Python torch numpy scipy scikit-learn matplotlib cloudpickle ipykernel ipywidgets jupyterlab kernel"
    )
    expected += " cores memory /dev/shm temporary loopback GPUs all-reduce"
    assert set(expected.split()) <= set(lines_of(printed))


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([]) == 0
    assert "  doctor " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nurse"], ["doctor", "--all"]])
def test_an_unknown_command_gets_one_line_and_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(arguments) == 2
    error = capsys.readouterr().err
    assert error == f"no command {' '.join(arguments)!r}: `python -m helpers` lists them\n"


@pytest.mark.parametrize(
    ("statuses", "status", "verdict"),
    [
        (["ok", "ok"], 0, "The lessons run here."),
        (["ok", "warn"], 0, "The lessons run here."),
        (["FAIL", "warn"], 1, "Lines marked FAIL: 1. Mend them first."),
        (["FAIL", "FAIL"], 1, "Lines marked FAIL: 2. Mend them first."),
    ],
)
def test_only_what_keeps_a_lesson_from_running_fails(
    statuses: list[str],
    status: int,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    findings = [("thing", Finding(each, "found", "" if each == "ok" else "do this")) for each in statuses]
    monkeypatch.setattr(_doctor, "examine", lambda: iter(findings))
    assert _doctor.main() == status
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == verdict
    assert sum("mend: do this" in line for line in printed) == sum(each != "ok" for each in statuses)
    assert {line.index("found") for line in printed if "found" in line} == {20}


# Faults of the installation


def test_an_old_torch_fails_with_the_line_that_mends_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('__version__ = "2.1.0"\n')
    status, printed = doctor(path=tmp_path)
    lines = lines_of(printed)
    assert status == 1
    assert lines["torch"].startswith("FAIL  torch         2.1.0: older than 2.9.1 mend: ")
    assert 'python -m pip install "torch>=2.9.1"' in lines["torch"]
    assert lines["all-reduce"] == "FAIL  all-reduce    not tried mend: mend torch first"
    assert lines["cloudpickle"].startswith("ok ")
    assert lines["loopback"].startswith("ok ")


def test_without_torch_everything_else_is_still_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(_doctor, "_NEEDED", ("cloudpickle",))
    findings = dict(_doctor.examine())
    failed = {what for what, finding in findings.items() if finding.status == "FAIL"}
    assert failed == {"torch", "GPUs", "all-reduce"}
    assert "No module named 'torch'" in findings["torch"].found or "halted" in findings["torch"].found
    assert findings["torch"].mend.startswith('python -m pip install "torch>=2.9.1"')


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.9.1", "ok"), ("2.9.0", "FAIL"), ("2.10.0a0+git1", "ok"), ("2.9", "FAIL"), ("10.0+cpu", "ok")],
)
def test_versions_are_compared_as_numbers(version: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    assert _doctor._package("torch").status == status


def test_the_bounds_are_those_of_the_installed_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor.importlib.metadata, "requires", lambda name: ["torch>=9.1", "numpy>=2.1.3"])
    assert (_doctor._oldest("torch"), _doctor._oldest("numpy"), _doctor._oldest("ipykernel")) == (
        "9.1",
        "2.1.3",
        "",
    )
    assert "older than 9.1" in _doctor._package("torch").found


def test_the_fallback_bound_is_that_of_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = _doctor.importlib.metadata.PackageNotFoundError("multi-gpu-course-helpers")
    monkeypatch.setattr(_doctor.importlib.metadata, "requires", raising(missing))
    assert f'"torch>={_doctor._oldest("torch")}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["matplotlib", "scikit-learn"])
def test_a_missing_package_fails_with_the_line_that_mends_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name.replace("scikit-learn", "sklearn"), None)
    finding = _doctor._package(name)
    assert finding.status == "FAIL"
    assert finding.mend == f'python -m pip install "{name}>={_doctor._oldest(name)}"'


def test_without_jupyterlab_other_programs_show_the_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    monkeypatch.setattr(_doctor, "_NEEDED", ())
    finding = dict(_doctor.examine())["jupyterlab"]
    assert (finding.status, finding.mend) == ("warn", 'python -m pip install "jupyterlab"')


def test_a_broken_package_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ipywidgets.py").write_text('raise OSError("libffi.so.8: cannot open shared object file")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ipywidgets", raising=False)
    finding = _doctor._package("ipywidgets")
    assert finding.status == "FAIL"
    assert "OSError: libffi.so.8" in finding.found


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9, 18), "FAIL"), ((3, 10, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "FAIL")],
)
def test_python_3_10_to_3_13(
    version: tuple[int, int, int], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, "final", 0))
    finding = _doctor._python()
    assert finding.status == status
    assert bool(finding.mend) == (status == "FAIL")


def test_notebooks_that_run_in_another_python_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _doctor._kernel().status == "ok"
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": [str(tmp_path / "bin" / "python"), "-m", "ipykernel_launcher"], "display_name": "other"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    finding = _doctor._kernel()
    assert finding.status == "warn"
    assert str(tmp_path / "bin" / "python") in finding.found


# Faults of the machine


@pytest.fixture
def namespaces() -> list[str]:
    """A command that runs another in its own network, whose loopback is down, and with its own mounts."""
    prefix = ["unshare", "--map-root-user", "--net", "--mount"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("namespaces cannot be made here")
    return prefix


def test_a_bare_container(namespaces: list[str], tmp_path: Path) -> None:
    mounts = f"mount -t tmpfs -o size=64m none /dev/shm && mount -t tmpfs -o size=1m none {tmp_path}"
    status, printed = doctor(
        *namespaces, "sh", "-c", f'{mounts} && "$@"', "sh", env={"TMPDIR": str(tmp_path)}
    )
    lines = lines_of(printed)
    assert status == 1
    assert lines["/dev/shm"].startswith("warn  /dev/shm      64 MiB free")
    assert "docker run --shm-size=1g" in lines["/dev/shm"]
    assert lines["temporary"].startswith(f"FAIL  temporary     1 MiB free in {tmp_path}: lessons need 100")
    assert "export TMPDIR=" in lines["temporary"]
    assert lines["loopback"].startswith("FAIL  loopback      127.0.0.1 does not answer: OSError")
    assert "ip link set lo up" in lines["loopback"]
    assert lines["all-reduce"].startswith("FAIL  all-reduce    RankError: rank ")


def test_an_address_that_does_not_answer() -> None:
    finding = _doctor._loopback("192.0.2.1")  # kept for documentation by RFC 5737: no machine has it
    assert finding.status == "FAIL"
    assert finding.found.startswith("192.0.2.1 does not answer: OSError")


@pytest.fixture
def other_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The folder for temporary files is looked for anew."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    return monkeypatch


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_tmpdir_that_cannot_be_used(kind: str, other_temporary: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    other_temporary.setenv("TMPDIR", str(tmp_path / kind))
    finding = _doctor._temporary_folder()
    assert finding.status == "warn"
    assert finding.found.endswith(f"TMPDIR={tmp_path / kind} cannot be written")
    assert finding.mend.startswith("export TMPDIR=")


def test_no_temporary_folder_at_all(other_temporary: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other_temporary.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    finding = _doctor._temporary_folder()
    assert finding.status == "FAIL"
    assert finding.found.startswith("FileNotFoundError: [Errno 2] No usable temporary directory found")
    assert finding.mend.startswith("export TMPDIR=")


@pytest.mark.parametrize(("cores", "status"), [(1, "warn"), (2, "ok")])
def test_one_core_is_a_warning(cores: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "cores", lambda: cores)
    assert _doctor._cores().status == status


@pytest.mark.parametrize(("gib", "status"), [(1.5, "warn"), (4.0, "ok")])
def test_little_memory_is_a_warning(gib: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "memory", lambda: gib)
    assert _doctor._memory().status == status
    assert f"{gib:.1f} GiB" in _doctor._memory().found


def test_little_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "is_dir", lambda path: False)
    assert _doctor._shared_memory().status == "warn"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _doctor._shared_memory().status == "ok"


def test_a_host_name_without_an_address_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", raising(socket.gaierror(-2, "Name or service not known")))
    finding = _doctor._host_name()
    assert finding.status == "ok"
    assert "no address, which is fine: the launcher needs none" in finding.found


def test_a_look_up_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, start = threading.Event(), time.monotonic()
    monkeypatch.setattr(socket, "gethostbyname", lambda name: answer.wait(30) and "127.0.1.1")
    finding = _doctor._host_name()
    answer.set()
    assert "no address, which is fine" in finding.found
    assert time.monotonic() - start < 10


# GPUs


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose NVIDIA driver answers with its version."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '550.54.15\\n550.54.15\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


posix = pytest.mark.skipif(os.name != "posix", reason="the driver is made up as a shell script")


@posix
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("cuda", "words"), [(None, "built without CUDA"), ("13.0", "built for CUDA 13.0")])
def test_a_driver_that_torch_cannot_use_is_a_warning(
    cuda: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_devices, "gpu_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    finding = _doctor._gpus()
    assert finding.status == "warn"
    assert (
        f"driver 550.54.15 is here, but torch {torch.__version__} is {words} and sees no GPU" in finding.found
    )
    assert _doctor._TORCH_PAGE in finding.mend


@posix
@pytest.mark.usefixtures("driver")
def test_a_gpu_that_cannot_compute_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="NVIDIA Tesla K80", total_memory=12 * 2**30)
    monkeypatch.setattr(_devices, "gpu_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    error = RuntimeError("CUDA error: no kernel image is available\nCUDA kernel errors might be")
    monkeypatch.setattr(torch, "ones", raising(error))
    finding = _doctor._gpus()
    reason = "RuntimeError: CUDA error: no kernel image is available"
    assert finding[:2] == ("FAIL", f"cannot be used with driver 550.54.15: {reason}")


def test_without_a_driver_no_gpu_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_devices, "gpu_count", lambda: 0)
    assert _doctor._gpus() == Finding("ok", "none, ranks run on the CPU")


# Whatever else goes wrong


def test_a_wrong_sum_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers._launch.launch", lambda *args, **kwargs: [3.0, 2.0])
    finding = _doctor._all_reduce()
    assert finding.status == "FAIL"
    assert "3 was expected, not [3.0, 2.0]" in finding.found


def test_a_check_that_breaks_is_a_fault_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "_NEEDED", ())
    monkeypatch.setattr(_devices, "memory", raising(PermissionError("no entry to /proc")))
    monkeypatch.setattr(_doctor, "_all_reduce", lambda: Finding("ok", "added"))
    findings = dict(_doctor.examine())
    assert findings["memory"].status == "FAIL"
    assert findings["memory"].found == "PermissionError: no entry to /proc"
    assert findings["memory"].mend
    assert findings["all-reduce"].status == "ok"
