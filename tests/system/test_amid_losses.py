"""A rank is lost between forward and backward: the gradients of the others' collectives are right, or begin anew."""

import pytest

from tests.system.launcher import Launcher
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly

# All ranks have the same data, so that gradients do not depend on the number of ranks.
SCRIPT = f"""{WAIT_FOR}
import torch
import worker_runtime.torch as hvd

hvd.init()
way, collective = sys.argv[1:]
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
x, weights = torch.randn(6, 3), torch.randn(6, 4)
first, sent, norm = torch.nn.Linear(3, 4), torch.nn.Linear(3, 2), hvd.SyncBatchNorm(4)
send = {{
    "broadcast": lambda x: hvd.broadcast(x, 0, name="x"),
    "reducescatter": lambda x: hvd.reducescatter(x, name="x"),
    "product": lambda x: hvd.allreduce(x, op=hvd.Product, name="x"),
    "extreme": lambda x: hvd.allreduce(x, op=hvd.Max, prescale_factor=2.0, name="x"),
}}

def compute(x):
    return norm(first(x)), send[collective](sent(x))

def differentiate(state):
    print("begins with", hvd.size(), flush=True)
    normalized, received = run(x)
    if hvd.size() == 3:
        if os.environ["HVD_SLOT"].endswith(":0"):
            os.kill(os.getpid(), signal.SIGKILL)
        while hvd.size() == 3:
            time.sleep(0.01)
        open(f"noted.{{hvd.rank()}}", "w")
        wait_for(f"noted.{{1 - hvd.rank()}}")  # a rank that begins anew interrupts what the other is about to note
    ((normalized * weights).sum() + received.sum()).backward()

run = compute if way == "eager" else torch.compile(compute, backend=way, fullgraph=True)
hvd.elastic.run(differentiate)(hvd.elastic.TorchState())
found, own = first.weight.grad, sent.weight.grad
first.weight.grad = None
(torch.nn.BatchNorm1d(4)(first(x)) * weights).sum().backward()
print("of the norm:", torch.allclose(found, first.weight.grad), flush=True)
print("of what was sent:", torch.equal(own, torch.zeros_like(own)), flush=True)
"""
in_each_way = pytest.mark.parametrize("way", rest_nightly(["eager", "aot_eager"]))


def lose(hvdrun: Launcher, way: str, collective: str) -> list[list[str]]:
    """Run the script on three ranks, of which the first is lost: what the others have printed."""
    hvdrun.write("train.py", SCRIPT)
    command = ("python", "train.py", way, collective)
    options = ("-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "100", "100")
    finished = hvdrun(*options, *command, limit_seconds=100.0)  # three ranks compile
    assert finished.returncode == 0, finished.stderr
    lines = [line.split(" ", 1) for line in finished.stdout.splitlines()]
    return [[text for mark, text in lines if mark == f"[{rank}]" and text != "begins with 3"] for rank in (0, 1)]


@in_each_way
def test_gradients_are_those_of_the_ranks_that_are_left(hvdrun: Launcher, way: str) -> None:
    """No rank that is left has sent what rank 0 has broadcast."""
    assert lose(hvdrun, way, "broadcast") == [["of the norm: True", "of what was sent: True"]] * 2


@in_each_way
@pytest.mark.parametrize("collective", rest_nightly(["product", "reducescatter", "extreme"]))
def test_a_gradient_that_needs_the_lost_rank_s_part_lets_the_others_begin_anew(
    hvdrun: Launcher, way: str, collective: str
) -> None:
    assert lose(hvdrun, way, collective) == [["begins with 2", "of the norm: True", "of what was sent: False"]] * 2
