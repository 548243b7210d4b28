"""`make pictures`: runs jobs, and draws them as docs/pictures/*.svg: what the terminal shows, and a timeline."""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hvdrun.timeline.parts import read_events

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
SLOW_RANK = 2
SLOW = f"""
import time, torch
import worker_runtime.torch as hvd

hvd.init()
gradient = torch.ones(1500, 1500)
for step in range(40):
    time.sleep(0.09 if hvd.rank() == {SLOW_RANK} else 0.04)
    hvd.allreduce_(gradient, name="gradient")
"""
DETACHED = """
import time
import worker_runtime.torch as hvd

hvd.init()
for step in range(1, 41):
    time.sleep(0.1)
    if hvd.rank() == 0 and step % 10 == 0:
        print(f"step {step} on {hvd.size()} workers", flush=True)
"""
SESSION = (
    "hvdrun --detach -np 4 python train.py",
    "exit",
    "",
    "hvdrun ps",
    "hvdrun attach last",
    "echo $?",
)
KILLED = (
    "hvdrun --detach -np 4 python train.py",
    "pkill -9 --newest -f '[d]etach -np 4 python train.py'",
    "hvdrun attach last",
    "echo $?",
)
TRACEBACK = re.compile(r"\[\d\] \[rank\d\]")  # of a peer whose connection broke


def main() -> None:
    """Run the jobs and write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    draw_timeline("timeline", SLOW)
    draw("recovery", ["hvdrun", "-np", "4", "--min-np", "2", "python", "train.py"], TRAIN)
    draw("restart", ["hvdrun", "-np", "4", "--max-restarts", "3", "python", "train.py"], RESTARTED)
    draw_session("detached", SESSION, DETACHED)
    draw_session("launcher", KILLED, DETACHED)


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
    save(screen, name)


def draw_session(name: str, commands: Sequence[str], script: str) -> None:
    """Run these commands one after the other, and write what the terminal shows; "" is the time between two logins."""
    screen = Console(record=True, width=WIDTH + 12, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script, encoding="utf-8")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "XDG_STATE_HOME": folder}
        code = 0
        for command in commands:
            screen.print(
                Text(f"$ {command}" if command else "(later, from another laptop)", "bold" if command else "dim")
            )
            if not command or command == "exit":
                continue
            shown = command.replace("$?", str(code))
            ran = subprocess.run(
                ["/bin/sh", "-c", shown],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
            code = ran.returncode
            for line in ran.stdout.splitlines():
                screen.print(Text(line, "yellow" if line.startswith("hvdrun") else ""))
    save(screen, name)


def save(screen: Console, name: str) -> None:
    """Write what a terminal shows as a picture that needs nothing from outside."""
    picture = screen.export_svg(title="hvdrun")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # nothing comes from outside
    (FOLDER / f"{name}.svg").write_text(picture.replace("Fira Code", "monospace"), encoding="utf-8")


SVG = "http://www.w3.org/2000/svg"
SHOWN_STEPS = 4
RANK = re.compile(r"rank (\d+)$")  # the name of a rank's row
COLOURS = {"its own program": "#8fbc8f", "waits for others": "#e9a23b", "communication": "#4a7fb5"}
LEFT, TOP, ROW, BAR, PLOT = 70, 40, 34, 22, 640  # pixels


def draw_timeline(name: str, script: str) -> None:
    """Run a job with a slow rank, and draw some steps of its timeline: a row for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        (Path(folder) / "train.py").write_text(script, encoding="utf-8")
        program = Path(sys.executable).with_name("hvdrun")
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        words = [str(program), "-np", "4", "--timeline", str(path), "python", "train.py"]
        subprocess.run(words, cwd=folder, env=environment, check=True, timeout=LIMIT_SECONDS)
        waits, releases = read_waits(path)
    bucket = max(releases, key=lambda each: len(releases[each]))
    middle = len(releases[bucket]) // 2
    begin, end = (releases[bucket][middle + steps] for steps in (0, SHOWN_STEPS))
    bars = [
        (rank, colour, max(begin, start), min(end, stop))
        for rank, spans in waits.items()
        for colour, start, stop in divide(spans, releases)
        if start < end and stop > begin
    ]
    (FOLDER / f"{name}.svg").write_text(render_timeline(sorted(waits), bars, begin, end), encoding="utf-8")


def read_waits(path: Path) -> tuple[dict[int, list[tuple[str, float, float]]], dict[str, list[float]]]:
    """The waits of each rank, and the releases of each operation, in microseconds."""
    rows: dict[int, str] = {}
    waits: dict[int, list[tuple[str, float, float]]] = {}
    releases: dict[str, list[float]] = {}
    for event in read_events(path):
        row = rows.get(event["pid"], "")
        match event["ph"]:
            case "M" if "name" in event.get("args", {}):
                rows[event["pid"]] = event["args"]["name"]
            case "X" if (rank := RANK.match(row)) is not None:
                span = event["name"], event["ts"], event["ts"] + event["dur"]
                waits.setdefault(int(rank[1]), []).append(span)
            case "E" if "last_rank" in event.get("args", {}):
                releases.setdefault(row, []).append(event["ts"])
    return waits, releases


def divide(
    spans: list[tuple[str, float, float]], releases: dict[str, list[float]]
) -> Iterator[tuple[str, float, float]]:
    """The waits of a rank for others and for communication: each is divided at the release."""
    for name, began, ended in spans:
        released = max((at for at in releases.get(name, []) if at <= ended), default=ended)
        if released > began:
            yield COLOURS["waits for others"], began, released
        yield COLOURS["communication"], max(began, released), ended


def render_timeline(ranks: list[int], bars: list[tuple[int, str, float, float]], begin: float, end: float) -> str:
    """The picture: a bar for the program of each rank, and over it the bars of what it waits for."""
    height, scale = TOP + ROW * len(ranks) + 30, PLOT / (end - begin)
    width = LEFT + PLOT + 20
    lines = [
        f'<svg xmlns="{SVG}" viewBox="0 0 {width} {height}" font-family="monospace" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, (text, colour) in enumerate(COLOURS.items()):
        x = LEFT + place * 210
        lines.append(f'<rect x="{x}" y="12" width="14" height="14" fill="{colour}"/>')
        lines.append(f'<text x="{x + 20}" y="24">{text}</text>')
    for place, rank in enumerate(ranks):
        y = TOP + ROW * place
        lines.append(f'<text x="8" y="{y + 16}">rank {rank}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{PLOT}" height="{BAR}" fill="{COLOURS["its own program"]}"/>')
    for rank, colour, start, stop in bars:
        left, y, length = LEFT + (start - begin) * scale, TOP + ROW * ranks.index(rank), (stop - start) * scale
        lines.append(f'<rect x="{left:.1f}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
    lines.append(f'<text x="{LEFT}" y="{height - 10}">{(end - begin) / 1000:.0f} ms, {SHOWN_STEPS} steps</text>')
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    main()
