"""Fixtures that give a test its ranks, or a worker's generations whose other members the test plays."""

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.worker_runtime.generation import PlayedGeneration
    from tests.worker_runtime.ranks import RankPool

# The fixtures import what they need: the pure tests beneath this folder do without torch.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the marker `devices` on a GPU too, where there is one or where such tests are asked for."""
    if metafunc.definition.get_closest_marker("devices") is None or "ranks" not in metafunc.fixturenames:
        return
    import torch  # noqa: PLC0415 - pure tests do without torch

    devices: list[Any] = ["cpu"]
    if torch.cuda.is_available() or "gpu" in metafunc.config.option.markexpr:
        without = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
        devices.append(pytest.param("cuda", marks=[pytest.mark.gpu, without]))
    metafunc.parametrize("ranks", devices, indirect=True)


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The descriptor of the memory for snapshots of this process's slot, in the first round."""
    descriptor = os.memfd_create("hvdrun-snapshot")
    monkeypatch.setenv("HVD_SNAPSHOT_FD", str(descriptor))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    # A test that has failed keeps its Snapshot.
    monkeypatch.setattr("worker_runtime.torch.snapshot._OWNERS", [])
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def ranks(request: pytest.FixtureRequest, rank_pools: "dict[str, RankPool]") -> "RankPool":
    """Up to three ranks; of a test with the marker `devices`, their tensors lie on its device."""
    from tests.worker_runtime.devices import CPU  # noqa: PLC0415 - pure tests do without torch
    from tests.worker_runtime.ranks import DeviceRanks  # noqa: PLC0415 - pure tests do without torch

    device, marker = getattr(request, "param", None), request.node.get_closest_marker("devices")
    if device is None or marker is None:
        return rank_pools[CPU]
    if device != CPU:
        request.getfixturevalue("nccl_objection")  # which the pool reads to choose what to use
    return DeviceRanks(rank_pools[device], device, compiles=marker.kwargs.get("compiles", False))


@pytest.fixture(scope="module")
def forking() -> None:
    """Collect what earlier tests have left: the finalizers of C++ objects may crash a forked process."""
    gc.collect()


@pytest.fixture
def before() -> "Iterator[PlayedGeneration]":
    """A generation that ends: the worker is rank 0 of 3."""
    from tests.worker_runtime.generation import PlayedGeneration  # noqa: PLC0415 - pure tests do without torch

    with PlayedGeneration(1, size=3) as generation:
        yield generation


@pytest.fixture
def after() -> "Iterator[PlayedGeneration]":
    """The next one, without rank 1."""
    from tests.worker_runtime.generation import PlayedGeneration  # noqa: PLC0415 - pure tests do without torch

    with PlayedGeneration(2) as generation:
        yield generation
