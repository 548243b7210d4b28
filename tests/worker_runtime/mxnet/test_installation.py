"""What is said where MXNet cannot be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.waiting import LIMIT_SECONDS
from worker_runtime.mxnet.mxnet_errors import MXNetMissingError

NUMPY = "module 'numpy' has no attribute 'bool'"


def import_beside(folder: Path | None, hidden: str = "mxnet") -> str:
    """The last line of an interpreter that imports the package, finding this folder's mxnet, or hiding a module."""
    hide, show = f"sys.modules[{hidden!r}] = None", f"sys.path.insert(0, {str(folder)!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {show if folder else hide}; import worker_runtime.mxnet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return done.stderr.strip().rpartition("\n")[2]


def test_without_mxnet_the_error_says_what_to_install() -> None:
    reported = import_beside(None)
    assert "MXNetMissingError: worker_runtime.mxnet needs MXNet 1.9, which is not installed in" in reported
    assert "pip install mxnet==1.9.1 'numpy<1.24' torch" in reported


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_without_a_needed_package_the_error_says_what_to_install(name: str) -> None:
    reported = import_beside(None, name)
    assert f"MXNetMissingError: worker_runtime.mxnet needs {name}, which is not installed in" in reported
    assert "pip install mxnet==1.9.1 'numpy<1.24' torch" in reported


@pytest.mark.parametrize("error", [AttributeError(NUMPY), RuntimeError("Cannot find the MXNet library.\nCandidates:")])
def test_the_error_of_a_broken_mxnet_is_shown(tmp_path: Path, error: Exception) -> None:
    (tmp_path / "mxnet.py").write_text(f"raise {error!r}", encoding="utf-8")
    reported, cause = import_beside(tmp_path), str(error).partition(".\n")[0]
    assert f"MXNetMissingError: worker_runtime.mxnet needs MXNet 1.9, which cannot be imported ({cause}" in reported
    assert reported.endswith("pip install mxnet==1.9.1 'numpy<1.24' torch")


@pytest.mark.parametrize("cause", [ModuleNotFoundError("No graphviz", name="graphviz"), OSError("libgomp")])
def test_a_missing_mxnet_is_an_import_error_that_names_mxnet(cause: Exception) -> None:
    error = MXNetMissingError(cause)
    assert isinstance(error, ImportError)
    assert error.name == "mxnet"
    assert f"cannot be imported ({cause})" in str(error)
    assert ("on Debian libgomp1 and libquadmath0" in str(error)) is isinstance(cause, OSError)
