"""`hvdrun.torch` and `hvdrun.mxnet` are the worker runtime's modules, under shorter names."""

import subprocess
import sys

import pytest

from hvdrun.shim.runtime_names import become_runtime
from tests.frameworks import needs_mxnet
from tests.house.sources import ROOT

SAME = """
import hvdrun.{framework} as hvd
import worker_runtime.{framework} as runtime

assert hvd is runtime
assert hvd.__spec__.name == "worker_runtime.{framework}"

from hvdrun.{framework}.elastic import State
import hvdrun.{framework}.optimizer
import worker_runtime.{framework}.elastic
import worker_runtime.{framework}.optimizer

assert State is worker_runtime.{framework}.elastic.State
assert hvdrun.{framework}.optimizer is worker_runtime.{framework}.optimizer
assert worker_runtime.{framework}.optimizer.__spec__.name == "worker_runtime.{framework}.optimizer"

from hvdrun import {framework}

assert {framework} is runtime
"""


def run(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("framework", ["torch", pytest.param("mxnet", marks=[needs_mxnet, pytest.mark.nightly])])
def test_both_names_lead_to_the_same_module_objects(framework: str) -> None:
    pytest.importorskip(framework)
    run(SAME.format(framework=framework))


def test_hvdrun_alone_imports_no_framework() -> None:
    assert run("import hvdrun, hvdrun.job, sys; print({'torch', 'mxnet', 'worker_runtime'} & {*sys.modules})") == (
        "set()\n"
    )


def test_a_python_without_the_framework_is_named() -> None:
    program = "import sys; sys.modules['torch'] = None; import hvdrun.torch"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (
        f"ImportError: hvdrun.torch cannot be imported: {sys.executable} has no torch; install it there" in run.stderr
    )


def test_another_missing_module_is_named_by_python() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'worker_runtime\.jax'"):
        become_runtime("hvdrun.jax")
