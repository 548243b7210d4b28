"""Healthy ranks keep the others waiting: each line names a rank that was missing then, and what it did; no job ends.

In each step some ranks do something alone, drawn by a seed: a call that holds the GIL for seconds, a compilation, a
checkpoint, an evaluation, data loading. The job grows by a rank, and shrinks again. `make nightly` plays 20 steps, and
`make soak` half an hour (HVDRUN_SOAK_MINUTES), best on a busy machine.
"""

import json
import os
import re
from datetime import datetime

import pytest

from tests.system.launcher import Launcher

MINUTES = float(os.environ.get("HVDRUN_SOAK_MINUTES", "0"))
STEPS = 20
LEAST, MOST = 3, 4  # ranks
SLACK_SECONDS = 0.5  # between a line and the time before it
TRAINING = """
import collections, itertools, json, os, pathlib, random, sys, time
import torch
import worker_runtime.torch as hvd

LEAST, ROUND = 3, 20
steps, minutes = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Linear(256, 256)

def hold_the_gil(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: collections.deque(itertools.repeat(None, 50_000_000), maxlen=0)

def compile_a_function(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch._dynamo.reset()
        torch.compile(lambda x: (x * 2 + 1).relu(), backend="eager")(torch.ones(8))

def write_a_checkpoint(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: torch.save(model.state_dict(), f"checkpoint.{hvd.rank()}")

def evaluate(seconds):
    end = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end: model(torch.ones(64, 256))

class Slow(torch.utils.data.Dataset):
    def __init__(self, seconds): self.seconds = seconds
    def __len__(self): return 4
    def __getitem__(self, item):
        time.sleep(self.seconds / 4)
        return item

def load_data(seconds):
    for _ in torch.utils.data.DataLoader(Slow(seconds), num_workers=1, multiprocessing_context="fork"): pass

KINDS = [hold_the_gil, compile_a_function, write_a_checkpoint, evaluate, load_data]

hvd.init()
draw, began = random.Random(hvd.rank()), time.monotonic()
state = hvd.elastic.TorchState(model, step=0)

@hvd.elastic.run
def train(state):
    while True:
        if hvd.rank() == 0 and state.step % ROUND == ROUND // 2:
            slots = LEAST + (state.step // ROUND + 1) % 2
            pathlib.Path("hosts.new").write_text(f"localhost:{slots}\\n")
            os.replace("hosts.new", "hosts")
        kind = draw.choice(KINDS) if draw.random() < 0.3 else None
        if kind is not None: kind(draw.uniform(0.1, 3.0))
        with open(f"log.{hvd.rank()}", "a") as log:
            log.write(json.dumps([state.step, kind.__name__ if kind else "", time.time(), hvd.size()]) + "\\n")
        goes_on = torch.tensor(float(time.monotonic() - began < 60 * minutes or state.step < steps - 1))
        if hvd.allreduce(goes_on, op=hvd.Min, name=f"step {state.step}") == 0: return
        state.step += 1
        state.commit()

train(state)
"""
LINE = re.compile(
    r"^(?P<time>\S+) hvdrun: (?P<who>.*); \S+ .* waited for \w+ in allreduce 'step (?P<step>\d+)' for .*$"
)
WHO = re.compile(r"ranks? (?P<ranks>[\d, -]+) \(localhost\) (is|are) in (?P<file>\S+):\d+ in (?P<function>\S+): ")


def read_ranks(text: str) -> set[int]:
    """The ranks of `0, 2-3`."""
    runs = [run.split("-") for run in text.split(", ")]
    return {rank for run in runs for rank in range(int(run[0]), int(run[-1]) + 1)}


def judge(line: str, logs: list[dict[int, tuple[str, float, int]]]) -> str:
    """What is wrong with a line about a wait; "" if nothing is."""
    match = LINE.match(line)
    if match is None:
        return f"not understood: {line}"
    printed = datetime.fromisoformat(match["time"]).astimezone().timestamp()
    for who in WHO.finditer(match["who"]):
        for rank in read_ranks(who["ranks"]):
            did, came, _ = logs[rank][int(match["step"])]
            if came < printed - SLACK_SECONDS:
                return f"rank {rank} had come {printed - came:.3f} s before: {line}"
            # The compiler imports so deeply that the stack, of 100 frames, does not reach the program.
            is_deep = did == "compile_a_function" and who["file"] != "train.py"
            if who["function"] not in {did, "<module>", "<lambda>"} and not is_deep:
                return f"rank {rank} did {did or 'nothing'}: {line}"
    return "" if WHO.search(match["who"]) else f"names nobody: {line}"


@pytest.mark.nightly
@pytest.mark.timeout(240 + 90 * MINUTES)
def test_a_healthy_rank_is_named_with_its_own_place(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINING)
    hvdrun.write("hosts", f"localhost:{LEAST}\n")
    size = ("-np", str(LEAST), "--max-np", str(MOST), "--host-discovery-script", "cat hosts")
    words = ("--watch-after", "500ms", "--hang-timeout", "60s", "-prefix-timestamp")
    finished = hvdrun(*size, *words, "python", "train.py", str(STEPS), str(MINUTES), limit_seconds=200 + 90 * MINUTES)
    assert finished.returncode == 0, finished.stderr
    logs = []
    for rank in range(MOST):
        rows = map(json.loads, (hvdrun.directory / f"log.{rank}").read_text().splitlines())
        logs.append({step: (did, came, size) for step, did, came, size in rows})
    assert {size for _, _, size in logs[0].values()} == {LEAST, MOST}
    lines = [line for line in finished.stderr.splitlines() if "waited for" in line or "wait for each other" in line]
    wrong = [found for found in (judge(line, logs) for line in lines) if found]
    print(f"{len(wrong)} of {len(lines)} lines wrong in {len(logs[0])} steps")  # noqa: T201 - the nightly log shows the score
    assert lines
    assert wrong == []
