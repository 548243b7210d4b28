"""Which backend is chosen, what the installed torch has, and what is said where the requested one cannot be used."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rendezvous.wire.processes import BACKENDS, read_answer
from worker_runtime.errors import InitializationError
from worker_runtime.groups.backends import __main__ as program
from worker_runtime.groups.backends.choice import (
    BackendRefusedError,
    Choice,
    Features,
    choose_backends,
    find_objection,
    find_plugin,
)
from worker_runtime.groups.backends.nccl import SharedDeviceError
from worker_runtime.groups.backends.ucc import CanaryError
from worker_runtime.rendezvous import Backend

GLOO, NCCL, UCC = Backend.GLOO, Backend.NCCL, Backend.UCC
CPU_BUILD = Features("2.13.0")
CUDA_BUILD = Features("2.13.0", has_nccl=True, devices=2)
EVERYTHING = Features("2.13.0", has_nccl=True, has_ucc=True, devices=2)


@pytest.mark.parametrize(
    ("requested", "features", "choice"),
    [
        (None, CPU_BUILD, Choice(GLOO, GLOO)),
        (None, CUDA_BUILD, Choice(GLOO, NCCL)),
        (None, EVERYTHING, Choice(GLOO, NCCL)),  # what is there is not chosen for being there
        (GLOO, EVERYTHING, Choice(GLOO, GLOO)),
        (NCCL, EVERYTHING, Choice(GLOO, NCCL)),
        (UCC, EVERYTHING, Choice(UCC, NCCL)),
        (UCC, Features("2.13.0", has_ucc=True), Choice(UCC, GLOO)),
    ],
)
def test_the_choice_follows_request_and_features(requested: Backend | None, features: Features, choice: Choice) -> None:
    assert choose_backends(requested, features) == choice
    assert (choice.of("cpu"), choice.of("cuda")) == (choice.cpu, choice.cuda)


@pytest.mark.parametrize(
    ("requested", "features", "words"),
    [
        (UCC, CUDA_BUILD, ("torch 2.13.0 has no UCC", "USE_UCC", "NGC", 'registers the name "ucc"')),
        (NCCL, CPU_BUILD, ("torch 2.13.0 has no NCCL", "CUDA")),
        (NCCL, Features("2.13.0", has_nccl=True, devices=0), ("sees no GPU", "nvidia-smi", "CUDA_VISIBLE_DEVICES")),
    ],
)
def test_a_missing_backend_is_refused_with_the_package_that_provides_it(
    requested: Backend, features: Features, words: tuple[str, ...]
) -> None:
    with pytest.raises(BackendRefusedError) as caught:
        choose_backends(requested, features)
    assert find_objection(requested, features) in str(caught.value)
    assert all(word in str(caught.value) for word in words)
    assert "install ucc" not in str(caught.value)  # the package of that name is something else


@pytest.mark.parametrize("requested", Backend)
def test_an_available_backend_meets_no_objection(requested: Backend) -> None:
    assert find_objection(requested, EVERYTHING) == ""
    assert find_objection(GLOO, CPU_BUILD) == ""


def test_a_backend_that_cannot_be_ended_is_refused_where_the_job_outlives_losses() -> None:
    with pytest.raises(BackendRefusedError, match=r"cannot be aborted when a worker is lost.*or --min-np"):
        choose_backends(UCC, EVERYTHING, is_elastic=True)


@pytest.mark.parametrize("requested", [None, GLOO, NCCL])
def test_a_job_that_outlives_its_workers_calls_nothing_done_that_is_under_way(requested: Backend | None) -> None:
    assert choose_backends(requested, EVERYTHING, is_elastic=True) == replace(
        choose_backends(requested, EVERYTHING), holds_host=True
    )


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A maker of groups that is registered under the name of UCC."""
    for name in ("_plugins", "backend_capability", "backend_type_map", "default_device_backend_map"):
        monkeypatch.setattr(dist.Backend, name, dict(getattr(dist.Backend, name)))
    monkeypatch.setattr(dist.Backend, "backend_list", list(dist.Backend.backend_list))
    made = object()
    dist.Backend.register_backend("ucc", lambda *_: made, devices=["cpu"])
    return made


def test_the_features_are_those_that_torch_reports() -> None:
    features = Features.look(Backend.NCCL)
    assert features.version == torch.__version__
    assert features.has_nccl == dist.is_nccl_available()
    assert features.devices == torch.cuda.device_count()


def test_devices_are_counted_only_where_that_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("they were counted"))
    assert Features.look().devices is None


def test_a_plugin_of_the_name_counts_as_ucc(plugin: object) -> None:
    assert Features.look().has_ucc
    assert find_plugin("ucc").creator_fn() is plugin


def test_without_a_plugin_the_ucc_that_torch_was_built_with_counts() -> None:
    assert find_plugin("ucc") is None
    assert Features.look().has_ucc == dist.is_ucc_available()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BackendRefusedError(Backend.UCC, "torch 2.13 has none; take another"), "the backend ucc cannot be used here:"),
        (CanaryError(Backend.UCC, [1, 3], 4, "it was wrong"), r"on 2 of 4 members \(the first is member 1\): it was"),
        (CanaryError(Backend.UCC, [1], 4, ""), r"member 1\); use another one, for example --backend gloo$"),
        (SharedDeviceError("cuda:0", 1), r"of local rank 1, uses cuda:0\).* torch\.cuda\.set_device\(hvd\.local_rank"),
        (SharedDeviceError("cuda:0", None), r"\(this worker uses cuda:0\)"),
    ],
)
def test_an_error_is_one_sentence(error: Exception, words: str) -> None:
    with pytest.raises(type(error), match=words):
        raise error
    assert "\n" not in str(error)


def test_a_refusal_ends_init_and_a_canary_also_what_makes_groups_later() -> None:
    assert issubclass(BackendRefusedError, InitializationError)
    assert issubclass(CanaryError, InitializationError)
    assert issubclass(CanaryError, RuntimeError)


ROOT = Path(__file__).parents[4]


def ask(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", BACKENDS, *arguments], cwd=ROOT, capture_output=True, check=False)


def test_the_check_ends_with_code_0_whatever_the_answer() -> None:
    run = ask("gloo")
    assert (run.returncode, read_answer(run.stdout), run.stderr) == (0, "", b"")


@pytest.mark.parametrize("arguments", [(), ("foo",), ("ucc", "mpi"), ("mpi",)])
def test_wrong_use_prints_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", ["backends", *arguments])
    assert program.main() == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "one argument was expected: gloo, nccl, ucc\n")


@pytest.mark.parametrize(
    ("has_ucc", "is_elastic", "words"),
    [(True, "0", "^$"), (False, "0", "no UCC"), (True, "1", "cannot be aborted when a worker is lost")],
)
def test_the_answer_is_what_torch_has_and_the_job_can_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_ucc: object, is_elastic: str, words: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["backends", "ucc"])
    monkeypatch.setattr(dist, "is_ucc_available", lambda: has_ucc)
    monkeypatch.setenv("HOROVOD_ELASTIC", is_elastic)
    assert program.main() == 0
    assert re.search(words, read_answer(capsys.readouterr().out.encode()) or "")


def test_a_python_without_torch_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["backends", "ucc"])
    for name in [name for name in sys.modules if name.startswith("worker_runtime.groups.backends.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert program.main() == 0
    assert "torch cannot be imported" in (read_answer(capsys.readouterr().out.encode()) or "")
