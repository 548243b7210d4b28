"""A detached job of two workers that count until they may end, and the end of its server."""

import signal

from tests.system.detached import ask, detach, find_guardian, find_server
from tests.system.launcher import Launcher
from tests.system.roles import kill
from tests.system.scripts import WAIT_FOR
from tests.waiting import wait_until

COUNTS = f"""{WAIT_FOR}
rank = os.environ["RANK"]
open(f"running.{{rank}}", "a").write(f"{{os.getpid()}};")  # a second worker of this rank adds another
number = 0
stopping = os.path.join(os.path.dirname(os.environ["HVD_SOCKET"]), "stopping")
while not (os.path.exists("go") or os.path.exists(stopping)):
    os.write(1, b"line %d\\n" % number)
    number += 1
    time.sleep(0.02)
with open(f"ending.{{rank}}", "w") as file:
    file.write(f"{{os.getpid()}} {{number}}")
os.rename(file.name, f"end.{{rank}}")
if rank == "0" and sys.argv[1] != "0":  # whose end ends the other
    wait_for("end.1")
    sys.exit(int(sys.argv[1]))
"""


def start(hvdrun: Launcher, *words: str, code: int = 0, environment: dict[str, str] | None = None) -> str:
    """Start a job of two workers that count until they may end; its name."""
    hvdrun.write("count.py", COUNTS)
    job = detach(hvdrun, "-np", "2", *words, "python", "count.py", str(code), environment=environment)
    wait_until(lambda: len(list(hvdrun.directory.glob("running.*"))) == 2, "both to run")
    return job


def check_end(hvdrun: Launcher, job: str, code: int) -> None:
    """The job comes to its end, and that is as `check_ended` says."""
    hvdrun.write("go", "")
    check_ended(hvdrun, job, code)


def check_ended(hvdrun: Launcher, job: str, code: int) -> None:
    """The job ends with this code; its workers are those of its beginning, and each line is there once, in order."""
    waited = ask(hvdrun, "wait", job)
    log = ask(hvdrun, "logs", job)
    assert waited.returncode == code, f"{waited}\n{log}"
    for rank in range(2):
        begun, end = [(hvdrun.directory / f"{name}.{rank}").read_text() for name in ("running", "end")]
        pid, count = end.split()
        assert begun == f"{pid};"
        own = [line for line in log.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] line {number}" for number in range(int(count))]
    assert f"exit {code}" in ask(hvdrun, "ps").stdout


def kill_all(hvdrun: Launcher) -> None:
    """End the guardian and the server, as a machine does that ends."""
    guardian, server = find_guardian(hvdrun), find_server(hvdrun)
    kill(guardian, signal.SIGSTOP)  # it does not see the end of its server
    kill(server)
    kill(guardian)
    wait_until(lambda: find_guardian(hvdrun) is None, "the lock to be free")
