"""`make pictures`: runs jobs, kills a worker of each, and draws what the terminal shows, as docs/pictures/*.svg."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent / "pictures"
KILL_AT_STEP = 36
LIMIT_SECONDS = 120.0
WIDTH = 72
TRAIN = f"""
import os, time, torch
import worker_runtime.torch as hvd

hvd.init()
model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
weights = torch.arange(8.0)
for step in range(1, 81):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = (model(x).squeeze(1) - x @ weights).square().mean()
    loss.backward()
    if step == {KILL_AT_STEP} and hvd.rank() == hvd.size() - 1:
        print(f"kill -9 {{os.getpid()}}", flush=True)
        time.sleep(60)
    optimizer.step()
    if hvd.rank() == 0 and step % 10 == 0:
        print(f"step {{step}} on {{hvd.size()}} workers: loss {{loss.item():.4f}}")
"""


RESTARTED = f"""
import os, time, torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
weights = torch.arange(8.0)
first = 1
if os.path.exists("checkpoint"):
    saved = torch.load("checkpoint")
    model.load_state_dict(saved["model"])
    first = saved["step"] + 1
if dist.get_rank() == 0:
    print(f"begins with step {{first}} on {{dist.get_world_size()}} workers")
for step in range(first, 61):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = (ddp(x).squeeze(1) - x @ weights).square().mean()
    loss.backward()
    if step == {KILL_AT_STEP} and dist.get_rank() == 3 and first == 1:
        print(f"kill -9 {{os.getpid()}}", flush=True)
        time.sleep(60)
    optimizer.step()
    if dist.get_rank() == 0 and step % 10 == 0:
        torch.save({{"model": model.state_dict(), "step": step}}, "writing")
        os.rename("writing", "checkpoint")
        print(f"step {{step}}: loss {{loss.item():.4f}}, saved")
del ddp, optimizer
dist.barrier()
dist.destroy_process_group()
"""
TRACEBACK = re.compile(r"\[\d\] \[rank\d\]")  # of a peer whose connection broke


def main() -> None:
    """Run the jobs and write the pictures."""
    draw("recovery", ["hvdrun", "-np", "4", "--min-np", "2", "python", "train.py"], TRAIN)
    draw("restart", ["hvdrun", "-np", "4", "--max-restarts", "3", "python", "train.py"], RESTARTED)


def draw(name: str, words: list[str], script: str) -> None:
    """Run a job and write its picture; tracebacks of peers are left out."""
    screen = Console(record=True, width=WIDTH, file=io.StringIO())
    screen.print(Text("$ " + " ".join(words), "bold"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script, encoding="utf-8")
        program = Path(sys.executable).with_name("hvdrun")
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        job = subprocess.Popen(
            [program, *words[1:]],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stop = threading.Timer(LIMIT_SECONDS, job.kill)
        stop.start()
        for line in job.stdout or ():
            text = line.rstrip()
            if TRACEBACK.match(text):
                continue
            victim = re.search(r"kill -9 (\d+)$", text)
            if victim:
                os.kill(int(victim[1]), signal.SIGKILL)
                screen.print(Text(f"$ kill -9 {victim[1]}        # in another terminal", "bold red"))
            else:
                screen.print(Text(text, "yellow" if text.startswith("hvdrun") else ""))
        stop.cancel()
        screen.print(Text(f"$ echo $?\n{job.wait()}", "bold"))
    FOLDER.mkdir(exist_ok=True)
    picture = screen.export_svg(title="hvdrun")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # nothing comes from outside
    (FOLDER / f"{name}.svg").write_text(picture.replace("Fira Code", "monospace"), encoding="utf-8")


if __name__ == "__main__":
    main()
