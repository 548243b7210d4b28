"""A real Slurm on the hosts of a lab: munged and slurmctld on the launcher, a slurmd on each host.

    with Lab(3) as lab, Slurm(lab) as slurm:
        done = slurm.run("srun", "-N", "3", "hostname")

All that it keeps is in the lab's folder, and its processes are the lab's hosts' own: they end with the lab.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.lab.host import Host, Stream
from tests.lab.lab import Lab
from tests.lab.process import HostProcess
from tests.lab.requirements import find_program
from tests.waiting import wait_until

CPUS = 2  # of each node, whatever this machine has
GPUS = 2  # the same; files that are no devices stand for them
LIMIT_SECONDS = 60.0
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
    "munged": "munge",
}
_DAEMONS = frozenset({"slurmctld", "slurmd", "slurmstepd", "munged", "slurmctld-wlm", "slurmd-wlm"})
_STUBS = ("/dev/null", "/dev/zero")


class Slurm:
    """A cluster of the lab's hosts, from entering to leaving.

    task_plugin: what binds tasks to CPUs: "task/none" or "task/affinity".
    """

    def __init__(self, lab: Lab, *, task_plugin: str = "task/none") -> None:
        self.lab = lab
        self._folder = lab.folder / "slurm"
        self._task_plugin = task_plugin
        self._jobs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._configure()
        self._start_munge()
        self._daemon(self.lab.launcher, "slurmctld", "-i")
        for host in self.lab:
            self._daemon(host, "slurmd", "-N", host.name)
        names = {host.name for host in self.lab}
        wait_until(lambda: self.nodes("idle") == names, "all nodes are idle")
        return self

    def __exit__(self, *_: object) -> None:
        if self.lab.launcher.is_up:
            self.lab.launcher.run(["scancel", "--user", "root"], environment=self.environment())
        for host in (*self.lab, self.lab.launcher):
            host.end_all()

    @property
    def log(self) -> Path:
        """What slurmctld and slurmd write."""
        return self._folder

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

    def start(self, *command: str | Path, stdin: Stream = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command on the login node, in the shared folder."""
        return self.lab.launcher.start(command, environment=self.environment(), directory=self.lab.shared, stdin=stdin)

    def nodes(self, state: str) -> set[str]:
        """The nodes in this state."""
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N", f"--states={state}")
        return set(done.stdout.split())

    def control(self, *words: str) -> str:
        """What `scontrol` answers."""
        done = self.run("scontrol", *words)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    def find_others(self, host: Host) -> tuple[HostProcess, ...]:
        """The processes of a host that are not Slurm's own."""
        return tuple(process for process in host.processes() if process.program not in _DAEMONS)

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
                f"AuthInfo=socket={folder / 'munge.socket'}",
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
