"""A real Slurm on the hosts of a lab: munged and slurmctld on the launcher, a slurmd on each host.

    with Lab(3) as lab, Slurm(lab) as slurm:
        done = slurm.run("srun", "-N", "3", "hostname")
        job = slurm.submit("-N", "2", "job.sbatch")
        assert slurm.wait(job) == "COMPLETED", slurm.output(job)

What it keeps is in the lab's folder, and its processes are the hosts' own: they end with the lab.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tests.lab.host import Host
from tests.lab.lab import Lab
from tests.lab.process import end
from tests.lab.requirements import do_without, find_program

CPUS = 2  # of each node, whatever this machine has
GPUS = 2  # the same; files that are no devices stand for them
LIMIT_SECONDS = 60.0
JOB_SECONDS = 150.0  # six workers import torch on a busy machine
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
    "munged": "munge",
}
_DAEMONS = frozenset({"slurmctld", "slurmd", "munged", "slurmctld-wlm", "slurmd-wlm"})
_STUBS = ("/dev/null", "/dev/zero")
_PAUSE_SECONDS = 0.2
_CREDENTIAL_SECONDS = 20
_STATE = re.compile(r"JobState=(\w+)")
_LIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"})


def require_slurm() -> None:
    """Skip the test that calls this where a program of Slurm's is missing; fail it when a lab is demanded."""
    absent = []
    for name in PROGRAMS:
        try:
            find_program(name)
        except FileNotFoundError:
            absent.append(name)
    if absent:
        packages = " ".join(sorted({PROGRAMS[name] for name in absent}))
        do_without(f"a cluster of Slurm's needs {', '.join(absent)}, missing here: apt-get install {packages}")


def wait_slowly(holds: Callable[[], bool], what: str) -> None:
    """Block until this holds, which is found out by a command of Slurm's or in a file."""
    deadline = time.monotonic() + JOB_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {JOB_SECONDS:.0f} s"
        time.sleep(_PAUSE_SECONDS)


class Slurm:
    """A cluster of the lab's hosts, from entering to leaving.

    task_plugin: what binds tasks to CPUs: "task/none" or "task/affinity".
    """

    def __init__(self, lab: Lab, *, task_plugin: str = "task/none") -> None:
        self.lab = lab
        self._folder = lab.folder / "slurm"
        self._task_plugin = task_plugin

    def __enter__(self) -> Self:
        self._configure()
        self._start_munge()
        self._daemon(self.lab.launcher, "slurmctld", "-i")
        for host in self.lab:
            self._daemon(host, "slurmd", "-N", host.name)
        names = {host.name for host in self.lab}
        wait_slowly(lambda: self.nodes("idle") == names, "all nodes are idle")
        return self

    def __exit__(self, *_: object) -> None:
        if self.lab.launcher.is_up:
            self.run("scancel", "--user", "root")
        for host in (*self.lab, self.lab.launcher):
            end([process for process in host.processes() if not process.program.startswith("sshd")], signal.SIGKILL)
        shutil.rmtree(self._folder)

    @property
    def folder(self) -> Path:
        """Where jobs run, which all hosts see at the same path."""
        return self.lab.shared

    def environment(self) -> dict[str, str]:
        """What a user of the cluster has to have set."""
        return {"SLURM_CONF": str(self._folder / "slurm.conf")}

    def run(
        self, *command: str | Path, environment: Mapping[str, str] | None = None, limit_seconds: float = LIMIT_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node to its end, in the shared folder."""
        variables = {**self.environment(), **(environment or {})}
        return self.lab.launcher.run(
            command, environment=variables, directory=self.lab.shared, limit_seconds=limit_seconds
        )

    def nodes(self, state: str) -> set[str]:
        """The nodes in this state."""
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N", f"--states={state}")
        return set(done.stdout.split())

    def control(self, *words: str) -> str:
        """What `scontrol` answers."""
        done = self.run("scontrol", *words)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *words: str | Path) -> str:
        """Submit a batch script; the job's number."""
        done = self.run("sbatch", "--parsable", "--output=%j.out", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def output(self, job: str) -> str:
        """What the job has printed."""
        path = self.folder / f"{job}.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def state(self, job: str) -> str:
        """The job's state, as RUNNING or COMPLETED."""
        found = _STATE.search(self.control("show", "job", job))
        assert found is not None
        return found[1]

    def wait(self, job: str) -> str:
        """Wait until the job has ended; its last state."""
        wait_slowly(lambda: self.state(job) not in _LIVE, f"the end of job {job}")
        return self.state(job)

    def wait_for(self, job: str, pattern: str) -> None:
        """Wait until a regular expression matches in what the job prints."""
        compiled = re.compile(pattern, re.MULTILINE)
        try:
            wait_slowly(lambda: compiled.search(self.output(job)) is not None, f"{pattern} in job {job}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output(job)}") from None

    def find_left(self) -> tuple[str, ...]:
        """What jobs have left on the hosts: processes, and files in /tmp and /dev/shm."""
        hosts = tuple(host for host in (*self.lab, self.lab.launcher) if host.is_up)
        processes = [
            f"{host.name}: {process}"
            for host in hosts
            for process in host.processes()
            if process.program not in _DAEMONS
        ]
        files = [f"{host.name}: {trace}" for host in hosts for trace in host.list_traces() if trace.startswith("file")]
        return (*processes, *(file for file in files if not file.endswith(self.lab.folder.name)))  # the lab's own

    def _configure(self) -> None:
        self._folder.mkdir()
        (self._folder / "slurm.conf").write_text(self._compose(), encoding="utf-8")
        names = ",".join(host.name for host in self.lab)
        gpus = "".join(f"NodeName={names} Name=gpu File={file}\n" for file in _STUBS[:GPUS])
        (self._folder / "gres.conf").write_text(gpus, encoding="utf-8")

    def _compose(self) -> str:
        folder, launcher = self._folder, self.lab.launcher.name
        nodes = ",".join(host.name for host in self.lab)
        return "\n".join(
            (
                "ClusterName=lab",
                f"SlurmctldHost={launcher}",
                "SlurmUser=root",
                "SlurmdUser=root",
                "AuthType=auth/munge",
                "CredType=cred/munge",
                # A job that is queued again waits until its credentials have run out.
                f"AuthInfo=socket={folder / 'munge.socket'},cred_expire={_CREDENTIAL_SECONDS}",
                f"StateSaveLocation={folder / 'state'}",
                f"SlurmdSpoolDir={folder / 'spool-%n'}",
                f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
                f"SlurmdPidFile={folder / 'slurmd-%n.pid'}",
                f"SlurmctldLogFile={folder / 'slurmctld.log'}",
                f"SlurmdLogFile={folder / 'slurmd-%n.log'}",
                "SlurmdParameters=config_overrides",
                "ProctrackType=proctrack/linuxproc",
                f"TaskPlugin={self._task_plugin}",
                "SwitchType=switch/none",
                "MpiDefault=none",
                "JobAcctGatherType=jobacct_gather/none",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_Core",
                "ReturnToService=2",
                "KillWait=5",
                "MinJobAge=600",
                "SchedulerParameters=batch_sched_delay=0,sched_interval=1",
                "SchedulerTimeSlice=5",
                "GresTypes=gpu",
                f"NodeName={nodes} CPUs={CPUS} Gres=gpu:{GPUS} State=UNKNOWN",
                f"PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP",
                "",
            )
        )

    def _start_munge(self) -> None:
        key = self._folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{option}={self._folder / f'munge.{ending}'}" for option, ending in places.items()]
        done = self.lab.launcher.run([find_program("munged"), "--force", *words])
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def _daemon(self, host: Host, name: str, *words: str) -> None:
        """Start a daemon of Slurm's, which puts itself into the background."""
        (self._folder / "state").mkdir(exist_ok=True)
        done = host.run([find_program(name), *words], environment=self.environment())
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
