"""Time of a launch: `-np N` of a script that prints its rank, compared with torchrun and a bare `import torch`.

    .venv/bin/python benchmarks/launch.py --rounds 20

Prints a table for each N, and the memory of launcher and agent, and writes benchmarks/launch.json. Times are the wall
time of the whole command, divided by that of `python -c "import torch"` in the same round.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paired import Row, compare, render, take_turns, write_json

PEER = 'python -c "import torch"'
OURS = "import worker_runtime.torch as hvd\nhvd.init()\nprint(hvd.rank())\n"
THEIRS = "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint(dist.get_rank())\n"
LIMIT_SECONDS = 120
LAUNCHER = "hvdrun.cli.program, hvdrun.job, rendezvous.server.server, rendezvous.server.authority"
AGENT = "hvdrun.agent.agent, hvdrun.agent.session"
RESULT = Path(__file__).with_suffix(".json")


def measure(command: Sequence[str], lines: int, folder: Path) -> float:
    """Run a command that must print a given number of lines; return its wall time in seconds."""
    folder_of_python = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder_of_python}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled, and so is a checkout of ours
    start = time.monotonic()
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True
    )
    seconds = time.monotonic() - start
    if len(run.stdout.splitlines()) != lines:
        raise RuntimeError(f"{command} printed {run.stdout!r} instead of {lines} lines")
    return seconds


def contenders(size: int, folder: Path) -> dict[str, Callable[[], float]]:
    """The contenders for one number of workers."""
    ours, theirs = folder / "ours.py", folder / "theirs.py"
    ours.write_text(OURS, encoding="utf-8")
    theirs.write_text(THEIRS, encoding="utf-8")
    hvdrun = [sys.executable, "-m", "hvdrun", "-np", str(size)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return {
        PEER: lambda: measure([sys.executable, "-c", "import torch"], 0, folder),
        "hvdrun": lambda: measure([*hvdrun, "python", str(ours)], size, folder),
        "hvdrun --no-prefork": lambda: measure([*hvdrun, "--no-prefork", "python", str(ours)], size, folder),
        "torchrun --standalone": lambda: measure([*torchrun, str(theirs)], size, folder),
    }


def measure_memory(folder: Path) -> list[tuple[str, float, float]]:
    """The proportional set size of launcher and agent in MB while two workers run, and that of their imports alone."""
    script = folder / "wait.py"
    script.write_text("print('up', flush=True)\nimport time\ntime.sleep(600)\n", encoding="utf-8")
    found = []
    job = [sys.executable, "-m", "hvdrun", "-np", "2", sys.executable, "-S", str(script)]
    with subprocess.Popen(job, cwd=folder, stdout=subprocess.PIPE, text=True) as launcher:
        for _ in range(2):
            launcher.stdout.readline() if launcher.stdout else ""
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text(encoding="ascii").split()
        (agent,) = (pid for pid in children if b"hvdrun.agent" in Path(f"/proc/{pid}/cmdline").read_bytes())
        for name, pid, modules in (("launcher", launcher.pid, LAUNCHER), ("agent", int(agent), AGENT)):
            found.append((name, read_pss(pid), measure_imports(modules)))
        launcher.terminate()
    return found


def measure_imports(modules: str) -> float:
    """The proportional set size, in MB, of a Python process that imports these modules and waits."""
    program = f"import {modules}; print(flush=True); import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as python:
        if python.stdout is not None:
            python.stdout.readline()
        megabytes = read_pss(python.pid)
        python.kill()
    return megabytes


def read_pss(pid: int) -> float:
    """The proportional set size of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="turns per contender (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4], help="numbers of workers")
    arguments = parser.parse_args()
    tables: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            title = f"-np {size}"
            tables[title] = compare(take_turns(contenders(size, Path(folder)), arguments.rounds), PEER)
            print(render(title, tables[title]), end="\n\n", flush=True)
        print("### Memory\n\n| | PSS | of it beyond the imports' own |\n|---|---|---|")
        for name, megabytes, own in measure_memory(Path(folder)):
            print(f"| {name} | {megabytes:.0f} MB | {megabytes - own:.0f} MB |")
    write_json(RESULT, tables)


if __name__ == "__main__":
    main()
