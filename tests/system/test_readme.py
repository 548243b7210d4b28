"""What README and docs show: Python and commands for one host run, and the line about a wait is the one that comes."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.documentation import ROOT, find_blocks, find_commands, is_for_one_host, read
from tests.frameworks import needs_mxnet
from tests.system.launcher import Launcher
from tests.waiting import LIMIT_SECONDS

BLOCKS = find_blocks(read(), "python")
# A notebook's cells, and the script that stands before them.
FUNCTIONS, *CELLS = find_blocks(read([ROOT / "docs" / "guides" / "from-python.md"]), "python")
QUICKSTART = read([ROOT / "docs" / "quickstart.md"])
(FIRST_JOB,) = find_blocks(QUICKSTART, "python")
# Which tests/hvdrun/testing/test_plugin.py runs.
OF_PYTEST = [block for block in BLOCKS if "import pytest" in block]
OF_MXNET = [block for block in BLOCKS if "import mxnet" in block]
# Programs that call hvdrun, and say in comments what they print.
OF_PROGRAMS = [block for block in BLOCKS if "import hvdrun" in block and block not in {FUNCTIONS, *CELLS}]
OF_TORCH = [
    block for block in BLOCKS if block not in {FIRST_JOB, FUNCTIONS, *CELLS, *OF_PROGRAMS, *OF_PYTEST, *OF_MXNET}
]
# A command for each set of options: the script does not matter here, nor do numbers.
COMMANDS = {re.sub(r"\d+|\S+\.py\b.*", "", command): command for command in find_commands() if is_for_one_host(command)}
(WAIT,) = re.findall(r"^```output\n(hvdrun: rank 1.*?)\n```$", read(), re.MULTILINE | re.DOTALL)
# A folder of the text that does not exist here.
FOLDER = "/shared/run1"

# Each runs one block after the other, with the names that a script has by then, and compares the replicas.
RUNS_BLOCKS = """
import json
import sys
import torch
import worker_runtime.torch as hvd

hvd.init()
if not torch.cuda.is_available():
    torch.cuda.set_device = lambda index: None
    torch.nn.Module.cuda = torch.Tensor.cuda = lambda self: self
for index, block in enumerate(json.load(open("blocks.json"))):
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    names = {
        "hvd": hvd,
        "sys": sys,
        "torch": torch,
        "DataLoader": torch.utils.data.DataLoader,
        "DistributedSampler": torch.utils.data.DistributedSampler,
        "Net": lambda: torch.nn.Linear(3, 2),
        "model": model,
        "state": hvd.elastic.TorchState(model=model, step=0),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 2)),
        "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 2))),
        "scaler": torch.amp.GradScaler("cpu"),
        "loss_of": torch.nn.functional.mse_loss,
        "batches": [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(2 + hvd.rank() * ("join" in block))],
        "train": lambda x, y: hvd.allreduce(x.mean(), name="train"),
        "loss": torch.rand(()),
        "features": torch.rand(2 * hvd.size(), 3),
        "weights": torch.rand(3),
        "config": {"rank": hvd.rank()},
    }
    exec(block, names)
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.equal(hvd.allreduce(flat, op=hvd.Min), flat), f"the replicas differ after block {index}"
    if hvd.rank() == 0:
        print("ran", index)
"""
RUNS_MXNET_BLOCKS = """
import json
import worker_runtime.mxnet as hvd
import mxnet as mx

hvd.init()
for index, block in enumerate(json.load(open("blocks.json"))):
    mx.random.seed(hvd.rank())
    net = mx.gluon.nn.Dense(2, in_units=3)
    samples = [mx.nd.random.normal(shape=(4, size)) for size in (3, 2)]
    data, label = mx.sym.var("data"), mx.sym.var("label")
    output = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=2), label, name="output")
    names = {
        "batch_size": 4,
        "net": net,
        "loader": [samples, samples],
        "loss_of": mx.gluon.loss.L2Loss(),
        "module": mx.mod.Module(output, data_names=["data"], label_names=["label"]),
        "data": mx.io.NDArrayIter({"data": samples[0]}, {"label": samples[1]}, 4),
    }
    exec(block, names)
    if "module." in block:
        arrays = names["module"].get_params()[0].values()
    else:  # the block's net, if it has trained one
        parameters = names["net"].collect_params().values() if "step(" in block else ()
        arrays = [each.data() for each in parameters] or [mx.nd.zeros(1)]
    flat = mx.nd.concat(*[each.reshape(-1) for each in arrays], dim=0)
    rows = hvd.allgather(flat.expand_dims(0)).asnumpy()
    assert (rows == rows[0]).all(), f"the replicas differ after block {index}"
    if hvd.rank() == 0:
        print("ran", index)
"""
STALLS = """
import torch
import worker_runtime.torch as hvd

hvd.init()
if hvd.rank() == 0:
    hvd.allreduce(torch.ones(3), name="loss")
else:
    input()
    hvd.allreduce(torch.ones(3), name="loss")
"""


def run_python(hvdrun: Launcher, code: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stderr == ""
    return run.stdout.splitlines()


def test_the_example_of_functions_runs(hvdrun: Launcher) -> None:
    lines = run_python(hvdrun, FUNCTIONS)
    assert sorted(lines[:2]) == [f"[{rank}] rank {rank} trains 2 epochs" for rank in range(2)]
    assert lines[2] == "[2.0, 2.0]"
    assert len(lines) == 7


@pytest.mark.parametrize("block", OF_PROGRAMS)
def test_a_program_that_calls_hvdrun_prints_what_its_comments_say(hvdrun: Launcher, block: str) -> None:
    said = re.findall(r"^ *print\(.*# ([^:\n]*)", block, re.MULTILINE)
    # The functions use no torch, which a forkserver would import for each job.
    script = hvdrun.write("program.py", block.replace("num_proc=2", "num_proc=2, no_prefork=True"))
    command = [sys.executable, str(script)]
    environment, limit = hvdrun.environment(), 120
    run = subprocess.run(
        command, cwd=hvdrun.directory, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )
    assert (run.returncode, run.stdout.splitlines(), len(said) > 0) == (0, said, True), run.stderr


@pytest.mark.nightly  # other words of what the example of functions does
def test_the_cells_of_a_notebook_run(hvdrun: Launcher) -> None:
    lines = run_python(hvdrun, "\n".join(CELLS))
    assert sorted(lines) == [f"[{rank}] rank {rank} trains 2 epochs" for rank in range(2)]


def test_the_first_job_prints_what_the_page_shows(hvdrun: Launcher) -> None:
    (shown,) = (block.splitlines() for block in find_blocks(QUICKSTART, "console") if "[0]" in block)
    hvdrun.write("train.py", FIRST_JOB)
    finished = hvdrun(*shlex.split(shown[0])[2:])
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == shown[1:]


def test_every_block_for_torch_runs(hvdrun: Launcher) -> None:
    assert len(OF_TORCH) >= 20
    hvdrun.write("blocks.json", json.dumps([block.replace(FOLDER, str(hvdrun.directory)) for block in OF_TORCH]))
    hvdrun.write("train.py", RUNS_BLOCKS)
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [f"[0] ran {index}" for index in range(len(OF_TORCH))]
    continued = f"[0] hvdrun: continuing from {hvdrun.directory}/checkpoint-000001.pt"
    keeps_nothing = "[0] hvdrun: Snapshot keeps nothing: this job starts no worker again; give hvdrun --max-restarts."
    assert sorted(finished.stderr.splitlines()) == [keeps_nothing, continued]


@needs_mxnet
def test_every_block_for_mxnet_runs(hvdrun: Launcher) -> None:
    assert len(OF_MXNET) >= 4
    hvdrun.write("blocks.json", json.dumps(OF_MXNET))
    hvdrun.write("train.py", RUNS_MXNET_BLOCKS)
    finished = hvdrun("-np", "2", "python", "train.py")
    shown = [f"[0] ran {index}" for index in range(len(OF_MXNET))]
    assert (finished.returncode, finished.stdout.splitlines()) == (0, shown), finished.stderr


@pytest.mark.parametrize("command", COMMANDS.values())
def test_each_kind_of_command_for_one_host_runs(command: str, hvdrun: Launcher) -> None:
    words = shlex.split(command.replace(FOLDER, str(hvdrun.directory)))
    for name in (*(word for word in words if word.endswith(".py")), "package/module.py"):
        (hvdrun.directory / name).parent.mkdir(exist_ok=True)
        hvdrun.write(name, "print('ran')")
    finished = hvdrun(*words)
    assert finished.returncode == 0, finished.stderr
    assert len(finished.stdout.splitlines()) == int(words[words.index("-np") + 1])


@pytest.mark.nightly
def test_the_line_about_a_wait_is_the_one_that_comes(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", STALLS)
    seconds = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    expected = re.escape(WAIT.replace("(server1)", "(localhost)")).replace("for\\ 10\\ s", r"for\ [\d.]+\ s")
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb") as answers:
        running = hvdrun.start("-np", "2", "--stdin", "1", "python", "train.py", environment=seconds, stdin=stdin)
        running.stderr.wait_for(expected, limit_seconds=LIMIT_SECONDS)
        answers.write(b"continue\n")
    assert running.wait().returncode == 0
