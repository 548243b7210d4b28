"""Operations run on their side stream where they have one."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from tests.worker_runtime.collectives.makers import MAKERS
from tests.worker_runtime.collectives.ways import run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.tensor_operation import (
    SideStream,
    TensorOperation,
    check_capture,
    check_targets,
    check_tensors,
)
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Release, make_title
from worker_runtime.groups.torch_groups import TorchGroup, Work

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.gpu
@needs_cuda
def test_work_in_a_lane_begins_when_the_inputs_are_ready_and_ends_before_they_are_used() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    caller = torch.cuda.Stream(device)
    with torch.cuda.stream(caller):
        torch.cuda._sleep(50_000_000)  # the inputs are far from ready
        x = torch.full((1 << 20,), 2.0, device=device)
        side_stream = SideStream(device)
        x_later = x * 100  # what the caller does then is not waited for
    with side_stream:
        assert torch.cuda.current_stream(device) != caller
        y = x + 1
    assert torch.cuda.current_stream(device) != caller
    side_stream.hand_over([x, y])
    z = y * 2
    assert z.unique().tolist() == [6.0]
    assert x_later.unique().tolist() == [200.0]


@pytest.mark.gpu
@needs_cuda
def test_repeated_operations_hold_the_memory_of_one_side_stream() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    before = torch.cuda.memory_reserved()
    for _ in range(40):
        with (side_stream := SideStream(device)):
            x = torch.zeros(16 << 20, device=device)
        side_stream.hand_over([x])
        del x
        torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - before <= 2 * (64 << 20)


def test_a_collective_in_the_capture_of_a_cuda_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match=r"allreduce 'x': collectives cannot be captured in a CUDA graph; call it"):
        check_capture("allreduce.x")


@pytest.mark.gpu
@needs_cuda
def test_a_capture_continues_after_a_refused_collective() -> None:
    x = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="cannot be captured in a CUDA graph"):
            check_tensors("allreduce.x", [x])
        y = x * 2
    graph.replay()
    assert y.tolist() == [2.0, 2.0]


def test_on_the_cpu_cuda_is_never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("CUDA was touched")

    for name in ("Stream", "stream", "current_stream", "is_available", "current_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)

    def body(engine: ThreadEngine) -> None:
        for make in itertools.chain(*MAKERS.values()):
            engine.run(make(torch.ones(2), engine.all))
        assert not torch.cuda.is_initialized()

    run(body)


USED = torch.zeros(1)


class FakeLane(AbstractContextManager):
    """Notes what happens to it."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def __enter__(self) -> None:
        self._notes.append("enter")

    def __exit__(self, *_: object) -> None:
        self._notes.append("exit")

    def hand_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """As `SideStream.hand_over`."""
        assert list(tensors) == [USED]
        self._notes.append("hand over")


class Noting(TensorOperation[str]):
    """Notes when it is started and finished."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        del group, release
        self.notes.append("communicate")
        return ()

    def _conclude(self, release: Release, payload: memoryview) -> str:
        del release, payload
        self.notes.append("conclude")
        return "result"

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [USED]


def run_noting(operation: Noting) -> list[str]:
    assert operation.start(None, None) == ()
    assert operation.finish(None, memoryview(b"")) == "result"
    return operation.notes


def test_on_the_cpu_there_is_no_lane() -> None:
    operation = Noting()
    assert operation._begin("x", Members(0, (0, 1), 0), [USED]) == "cpu"
    assert run_noting(operation) == ["communicate", "conclude"]


def test_on_cuda_an_operation_starts_in_its_lane_and_is_handed_over_before_the_end() -> None:
    operation = Noting()
    operation._side_stream = FakeLane(operation.notes)
    assert run_noting(operation) == ["enter", "communicate", "exit", "hand over", "conclude"]


def test_a_title_has_the_users_name() -> None:
    assert make_title("allreduce.loss") == "allreduce 'loss'"
    assert make_title("allreduce.noname.3") == "allreduce 'noname.3'"
    assert make_title("barrier") == "barrier"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "there are no tensors"),
        ([torch.zeros(2, 2).to_sparse()], r"sparse tensors are not supported.*to_dense"),
        ([torch.zeros(2, device="meta")], r"tensors on meta are not supported; .*has no data.*device='cpu'"),
        ([torch.zeros(2), torch.zeros(2, device="meta")], "Tensors in list must be on same device"),
    ],
    ids=["none", "sparse", "not on the CPU", "on several devices"],
)
def test_tensors_that_cannot_be_communicated_are_refused(tensors: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"allreduce 'x': .*{message}"):
        check_tensors("allreduce.x", tensors)


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ([], "1 tensors and 0 for the results"),
        ([torch.zeros(3)], r"shape \[2\].*cannot go into.*shape \[3\]"),
        ([torch.zeros(2, dtype=torch.int8)], "torch.int8"),
        ([torch.zeros(2, device="meta")], "on meta"),
        ([torch.zeros(2).to_sparse()], "cannot go into"),
        ([torch.zeros(1).expand(2)], r"expand\(\); clone it"),
    ],
    ids=["none", "other shape", "other dtype", "other device", "sparse", "expanded"],
)
def test_results_that_cannot_be_written_are_refused(into: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"x: .*{message}"):
        check_targets("x", into, [torch.zeros(2)])


def test_an_input_may_be_its_own_result() -> None:
    x = torch.zeros(4, 4)[:, ::2]
    check_targets("x", [x], [x])


def check_ones(x: torch.Tensor) -> torch.Tensor:
    """What a program wants to transform: a collective on something else."""
    check_tensors("allreduce.x", [torch.ones(2)])
    return x.sum()


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.func.vmap(check_ones)(x.reshape(1, 2)),
        torch.func.grad(check_ones),
        torch.func.functionalize(check_ones),
    ],
    ids=["vmap", "grad", "functionalize"],
)
def test_a_collective_inside_a_transform_is_refused(run: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(ValueError, match=r"allreduce 'x': collectives cannot run inside vmap, grad, jvp"):
        run(torch.ones(2))
    assert check_tensors("allreduce.x", [torch.ones(2)]) == "cpu"


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_tensor_with_a_tangent_is_refused() -> None:
    plain = torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(ValueError, match=r"allreduce 'x': collectives cannot run inside vmap, grad, jvp"):
            check_tensors("allreduce.x", [plain, dual])
        assert check_tensors("allreduce.x", [plain]) == "cpu"
    assert check_tensors("allreduce.x", [dual]) == "cpu"


def test_fake_tensors_are_refused_and_real_ones_where_all_are_fake() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
        with pytest.raises(ValueError, match=r"x: collectives cannot run under FakeTensorMode or make_fx"):
            check_tensors("x", [fake])
    with pytest.raises(ValueError, match=r"x: a FakeTensor wraps other tensors; give the wrapped tensors"):
        check_tensors("x", [torch.ones(2), fake])

    def call(x: torch.Tensor) -> torch.Tensor:
        check_tensors("x", [torch.ones(2)])
        return x

    with pytest.raises(ValueError, match=r"x: collectives cannot run under FakeTensorMode or make_fx"):
        make_fx(call)(torch.ones(2))


def test_modes_that_only_look_on_and_subclasses_that_change_nothing_are_fine() -> None:
    class Own(torch.Tensor):
        pass

    with FlopCounterMode(display=False):
        assert check_tensors("x", [torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Own)])
