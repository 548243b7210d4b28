"""What the installed torch has."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from worker_runtime.backends.features import Features, find_plugin


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A maker of groups that is registered under the name of UCC."""
    for name in ("_plugins", "backend_capability", "backend_type_map", "default_device_backend_map"):
        monkeypatch.setattr(dist.Backend, name, dict(getattr(dist.Backend, name)))
    monkeypatch.setattr(dist.Backend, "backend_list", list(dist.Backend.backend_list))
    made = object()
    dist.Backend.register_backend("ucc", lambda *_: made, devices=["cpu"])
    return made


def test_it_is_what_torch_says() -> None:
    features = Features.look(counts_devices=True)
    assert features.version == torch.__version__
    assert features.has_nccl == dist.is_nccl_available()
    assert features.has_mpi == dist.is_mpi_available()
    assert features.devices == torch.cuda.device_count()


def test_devices_are_counted_only_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("they were counted"))
    assert Features.look().devices is None


def test_a_plugin_of_the_name_counts_as_ucc(plugin: object) -> None:
    assert Features.look().has_ucc
    assert find_plugin("ucc").creator_fn() is plugin


def test_without_a_plugin_there_is_what_torch_was_built_with() -> None:
    assert find_plugin("ucc") is None
    assert Features.look().has_ucc == dist.is_ucc_available()
