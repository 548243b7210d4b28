"""What a training says about its time: the line at its end, the table of -v, and the file of --outcome."""

import json

import pytest

from tests.system.launcher import PRELOAD, Launcher

TRAIN = """
import sys
import time
import torch
import worker_runtime.torch as hvd

hvd.init()
width = int(sys.argv[1])
model = torch.nn.Linear(width, width)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(1, width)).sum().backward()
    time.sleep(0.06 if hvd.rank() == 1 else 0.01)
    optimizer.step()
"""
# A short job has the line, too.
WITH_LINE = (
    "import sys; from hvdrun.accounts import page; page.LEAST_SECONDS = 0; from hvdrun.cli.program import main; "
)


# The sequencer adds a small gradient itself. Of a large one it knows who has asked for it: the others wait in gloo.
@pytest.mark.parametrize("width", [4, pytest.param(2000, marks=pytest.mark.nightly)])
def test_a_training_names_its_slow_rank_at_the_end(hvdrun: Launcher, width: int) -> None:
    hvdrun.write("train.py", TRAIN)
    python, *_ = hvdrun.command()
    words = [
        python,
        "-c",
        f"{WITH_LINE}sys.exit(main())",
        "-np",
        "3",
        "-v",
        "--outcome",
        "o.json",
        "python",
        "train.py",
        str(width),
    ]
    finished = hvdrun.start_words(words, {"PYTHONPATH": str(PRELOAD)}).wait()
    assert finished.returncode == 0, finished.stderr
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("hvdrun: goodput ")]
    assert "; rank 1 (localhost) " in line
    table = finished.stderr.partition("hvdrun: rank  host")[2].splitlines()
    assert [row.split()[1] for row in table[1:5]] == ["0", "1", "2", "all"]
    found = json.loads((hvdrun.directory / "o.json").read_text())
    assert f"goodput {found['goodput'] * 100:.1f} %" in line
    assert [each["rank"] for each in found["stragglers"]] == [1]
    for worker in found["workers"]:
        assert worker["steps"] == 60
        assert abs(sum(worker["seconds_by_part"].values()) - worker["total_seconds"]) < 1e-3
