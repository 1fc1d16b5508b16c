"""What the judges share: where NVIDIA's packages lie, and how to run a program in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def nvidia_root():
    """The folder with bin, include and lib of NVIDIA's packages."""
    return runtime_library().parent.parent


def runtime_library():
    """NVIDIA's libcudart of this environment: of CUDA 13, or of CUDA 12, whose packages have a folder each."""
    import nvidia

    for folder in nvidia.__path__:
        for place in ("cu13/lib/libcudart.so.13", "cuda_runtime/lib/libcudart.so.12"):
            library = pathlib.Path(folder) / place
            if library.exists():
                return library
    raise RuntimeError("the nvidia-cuda-runtime package is missing; run scripts/setup-python")


def run_python(code, *, expect=0, timeout=120, **environment):
    """Runs `code` in a fresh interpreter: for what must not disturb the context of the other tests."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert done.returncode == expect, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def pytest_sessionstart(session):
    if not os.environ.get("DXPU_WORKER") and not os.environ.get("DXPU_JUDGES_NATIVE"):
        raise pytest.UsageError("no worker: start the judges with tests/judges/run (DXPU_JUDGES_NATIVE=1 judges the real driver)")


@pytest.fixture(scope="session")
def libcudart():
    return runtime_library()


@pytest.fixture(scope="session")
def cuda_root():
    return nvidia_root()
