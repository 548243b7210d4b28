"""All options of hvdrun, in the order of --help.

An option gives its value to the field of `JobSpec` that has the name of its dest. So a new option needs three changes:
its row here, a field in `hvdrun/spec`, and the code that uses the field.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace

from hvdrun.options.kinds import (
    COOLDOWN_BOUNDS_SECONDS,
    COUNT,
    FILE,
    FOLDER,
    MAX_PORT,
    MAX_WORKERS,
    SLOTS,
    TIME,
    TIME_OR_ZERO,
    LogLevel,
    Shell,
    parse_absolute_path,
    parse_bind,
    parse_cooldown,
    parse_folder,
    parse_integer,
    parse_interfaces,
    parse_local_path,
    parse_local_program,
    parse_path_there,
    parse_port,
    parse_private_key,
    parse_shell_command,
    parse_whole_number,
    parse_words,
)
from hvdrun.options.option import Kind, Option
from hvdrun.processes.binding import BindTo
from hvdrun.shim.path import ShimMode
from hvdrun.spec.limits import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_LAUNCHER_TIMEOUT_SECONDS,
    DEFAULT_SERVER_TIMEOUT_SECONDS,
    DEFAULT_START_TIMEOUT_SECONDS,
    RESTART_LEASE_SECONDS,
)
from hvdrun.spec.log_format import LogFormat
from hvdrun.spec.mapping import MapBy
from rendezvous.bootstrap import BACKEND, CHECK_REPLICAS, HOROVOD_SHIM, Backend
from rendezvous.bootstrap import CHECKPOINT as CHECKPOINT_VARIABLE
from rendezvous.core.model import DEFAULT_LEASE_SECONDS, ELASTIC_LEASE_SECONDS, Recovery

COMPLETION_VARIABLE = "_HVDRUN_COMPLETE"  # the script of --completion sets it to ask for the words that may follow
_RECOVERY = Recovery()  # has the defaults

TABLE: Mapping[str, tuple[Option, ...]] = {
    "Workers": (
        Option(
            "-np --num-proc -n --np",
            "size",
            "How many workers to start. Without it, in an allocation: one for each slot.",
            COUNT,
        ),
        Option(
            "-map-by --map-by",
            "map_by",
            "How workers are distributed when there are more slots than workers: slot fills one host after the "
            "other, node gives each host the same number. Either way, neighbouring ranks share a host.",
            Kind(MapBy, "WHAT", "slot or node", "slot"),
            default=MapBy.SLOT.value,
        ),
        Option(
            "-bind-to --bind-to",
            "bind_to",
            "Which CPUs a worker may use: all of them with none; the next core, socket or NUMA node of its host "
            "with core, socket or numa.",
            Kind(BindTo, "WHAT", "none, core, socket or numa", "none"),
            default=BindTo.NONE.value,
        ),
        Option(
            "--oversubscribe -oversubscribe",
            "oversubscribe",
            "Allow more workers than slots; the additional workers are spread evenly.",
        ),
        Option(
            "-x",
            "forwarded",
            "Set a variable for the workers on all hosts: with the value that hvdrun has (-x NAME, or -x 'NCCL_*' "
            "for several), or with the given one. May be given several times.",
            Kind(str, "NAME[=VALUE]", "a variable of the environment", "NCCL_DEBUG=INFO"),
            repeats=True,
        ),
        Option(
            "--wdir -wdir",
            "directory",
            "The workers' working directory, on every host. Without it: that of hvdrun.",
            FOLDER,
        ),
        Option(
            "--checkpoint",
            "checkpoint",
            "The folder of the job's checkpoints, which all hosts share. A function under hvd.elastic.run begins "
            "with the newest checkpoint, and writes one after a stop notice (SIGUSR2).",
            replace(FOLDER, parse=parse_folder),
            environment=CHECKPOINT_VARIABLE,
        ),
        Option(
            "--no-prefork",
            "prefork",
            "Execute every worker, instead of forking Python workers from a process that has imported torch.",
            switches_off=True,
        ),
        Option(
            "--backend",
            "backend",
            "The communication backend for tensors. Without it: gloo, and NCCL for CUDA tensors if torch has it. "
            "gloo: gloo for all tensors; nccl: NCCL for CUDA tensors, gloo for CPU tensors; ucc: UCC for the "
            "operations on CPU tensors that it is trusted with, gloo for the others. A backend that the workers' "
            "torch lacks is refused.",
            Kind(Backend, "NAME", "gloo, nccl or ucc", "gloo"),
            environment=BACKEND,
        ),
        Option(
            "--timeline",
            "timeline",
            "Rank 0 records in this file when each rank asked for each collective, and how long it ran. Perfetto opens "
            "it (ui.perfetto.dev), and hvdrun timeline FILE names who waited for whom.",
            Kind(parse_path_there, FILE.metavar, FILE.wanted, "timeline.json"),
        ),
        Option("--timeline-mark-cycles", "timeline_mark_cycles", "Mark there when collectives were released."),
        Option(
            "--horovod-shim",
            "horovod_shim",
            "What `import horovod` imports in the workers: with auto, Horovod if their Python has it, else "
            "hvdrun's replacement; with on, the replacement; with off, Horovod or nothing.",
            Kind(ShimMode, "WHEN", "auto, on or off", "auto"),
            default=ShimMode.AUTO.value,
            environment=HOROVOD_SHIM,
        ),
    ),
    "Checks of the training": (
        Option(
            "--check-nan",
            "check_nan",
            "Print a line in the step in which a worker's own gradient is not finite, before the average gives it to "
            "all: its rank and the parameter. A gradient scaler's search for its scale is no reason.",
        ),
        Option(
            "--nan-is-error",
            "nan_is_error",
            "As --check-nan, and the step raises NotFiniteError in all workers, with unchanged parameters.",
        ),
        Option(
            "--check-replicas",
            "check_replicas",
            "Before every N-th step of an optimizer the workers compare checksums of its parameters and state. The "
            "error names the parameter that differs, and from three workers on the rank. 0: never.",
            Kind(parse_whole_number, "N", f"a number of steps from 0 to {MAX_WORKERS}", "100"),
            environment=CHECK_REPLICAS,
        ),
    ),
    "Hosts": (
        Option(
            "-H --hosts -host --host",
            "hosts",
            "The hosts to use, with their slots, in this order. A name alone has one slot, the slots of a "
            "repeated host add up, user@ may precede a host, and an IPv6 address stands in brackets: "
            "[2001:db8::1]:4. Without it: the hosts of the allocation of Slurm, PBS or LSF, or of the MPIJob, that "
            "hvdrun runs in, else localhost with N slots.",
            Kind(str, "A:4,B:4", "hosts", "server1:4,server2:4"),
        ),
        Option(
            "--hostfile -hostfile -machinefile --machinefile",
            "hostfile",
            "A file with the hosts to use, one per line: server1 slots=4, server1:4 or server1.",
            replace(FILE, example="hosts.txt"),
        ),
        Option(
            "--network-interfaces --network-interface --nics",
            "interfaces",
            "The network interfaces to use between the hosts, by name (eth1), pattern (ib*) or subnet "
            "(10.1.0.0/16), the preferred ones first. Without it: those through which the hosts reach each other.",
            Kind(parse_interfaces, "A,B", "names of interfaces, patterns of them or subnets", "eth0,ib*,10.1.0.0/16"),
            repeats=True,
        ),
    ),
    "Elastic jobs, whose workers may change": (
        Option(
            "--min-np --min-num-proc",
            "min_size",
            "Make the job elastic: the smallest number of workers with which it continues after losses. Without it, "
            "with --host-discovery-script: -np. Without either the job is static, and refuses the other options of "
            "this section. An elastic job refuses -map-by node and --stdin.",
            COUNT,
        ),
        Option(
            "--max-np --max-num-proc",
            "max_size",
            "The largest number of workers to which the job grows. Without it: all slots of the hosts.",
            COUNT,
        ),
        Option(
            "--host-discovery-script",
            "script",
            "A shell command that prints the hosts to use, instead of -H: one per line, server1:4 or server1; a "
            "host with :0 is not used. It runs about once a second. When it fails or prints no host, the hosts "
            "stay the same.",
            Kind(parse_shell_command, "COMMAND", "a command for the shell", "./discover.sh"),
        ),
        Option(
            "--slots-per-host",
            "slots_per_host",
            "The slots of a host that the script prints without slots. Without it: 1.",
            SLOTS,
        ),
        Option(
            "--elastic-timeout",
            "elastic_timeout_seconds",
            "How long the job waits for hosts with enough slots, at the start and after losses.",
            TIME,
            default=f"{_RECOVERY.elastic_timeout_seconds:g}s",
            environment="HOROVOD_ELASTIC_TIMEOUT",
        ),
        Option(
            "--reset-limit",
            "reset_limit",
            "How often the membership may change. After that no host is added, a host that the script no longer "
            "prints stays in use until its workers end, and the next loss of a worker ends the job. Without it: no "
            "limit.",
            Kind(parse_whole_number, "N", f"a number from 0 to {MAX_WORKERS}", "10"),
        ),
        Option(
            "--blacklist-cooldown-range",
            "cooldown_seconds",
            "How long a host is not used after it failed: at first MIN, then longer each time, up to MAX.",
            Kind(
                parse_cooldown,
                "MIN MAX",
                "two times from {:g} to {:g} s, the shorter first".format(*COOLDOWN_BOUNDS_SECONDS),
                "10 100",
            ),
            words=2,
            default=" ".join(f"{seconds:g}" for seconds in _RECOVERY.cooldown_seconds),
        ),
        Option(
            "--slot-failures",
            "failures_per_slot",
            "After how many failures of its workers a slot is not used; failures after some steps of training with "
            "hvd, or after 30 s of a script without hvd, do not count. A host with half of its slots out of use is "
            "not used either.",
            Kind(parse_integer, "N", f"a number from 1 to {MAX_WORKERS}", "10"),
            default=f"{_RECOVERY.failures_per_slot}",
        ),
        Option(
            "--slot-cooldown",
            "forgiveness_seconds",
            "How long such a slot is not used. A failure also stops counting after this time without another one.",
            TIME,
            default=f"{_RECOVERY.forgiveness_seconds:g}s",
        ),
    ),
    "Restarts of all workers, for programs that cannot continue without one": (
        Option(
            "--max-restarts",
            "max_restarts",
            "How often all workers are started again, with new ranks, after a loss that would end the job. The script "
            "continues from its own checkpoint. Without --min-np the number of workers stays, and the job waits for "
            "slots (--elastic-timeout); with it, it continues with as few.",
            Kind(parse_whole_number, "N", f"a number from 0 to {MAX_WORKERS}", "3"),
        ),
        Option(
            "--grow-after",
            "grow_after_seconds",
            "With --max-restarts and --min-np: start all workers again when there have been slots for more of them for "
            "this time; they get SIGTERM first, and 30 s (or --grace) to save. Without it the job grows when it is "
            "started again for another reason.",
            TIME,
        ),
    ),
    "Hosts other than this one": (
        Option(
            "-p --ssh-port",
            "ssh_port",
            "The port of the SSH servers. Without it: as ~/.ssh/config says.",
            Kind(parse_port, "PORT", f"a port from 1 to {MAX_PORT}", "2222"),
        ),
        Option(
            "-i --ssh-identity-file",
            "ssh_identity_file",
            "The private key to log in with. Without it: as ~/.ssh/config and the SSH agent say.",
            Kind(parse_private_key, "FILE", "the name of a private key's file", "~/.ssh/id_ed25519"),
        ),
        Option(
            "--ssh-accept-new",
            "ssh_accept_new",
            "Accept the key of a host that known_hosts does not have; a changed key is never accepted.",
        ),
        Option(
            "--remote-python",
            "python",
            "The Python on other hosts, for the agent and for a bare python in COMMAND. Without it: the path of "
            "this machine's python.",
            Kind(parse_absolute_path, "PATH", "an absolute path", "/opt/venv/bin/python"),
        ),
        Option(
            "--remote-prefix",
            "prefix",
            "A shell command that runs first on other hosts, as in --remote-prefix 'source env.sh'. It then sets "
            "PATH and similar variables, which otherwise come from this machine.",
            Kind(parse_shell_command, "COMMAND", "a command for the shell there", "'source env.sh'"),
        ),
        Option(
            "--rsh",
            "rsh",
            "The command that reaches other hosts, instead of hvdrun's own SSH. Host and command are added at its "
            "end, or replace {host} and {command}.",
            Kind(parse_local_program, "COMMAND", "a program with its arguments", "'ssh -q'"),
        ),
        Option(
            "--agent-prefix",
            "agent_prefix",
            "Run the agents, and so the workers, of all hosts under this command, as in --agent-prefix 'apptainer "
            "exec --nv image.sif'. --remote-python then names the Python in the image.",
            Kind(parse_words, "COMMAND", "a program with its arguments", "'apptainer exec image.sif'"),
        ),
    ),
    "Hosts whose agents join by themselves": (
        Option(
            "--wait-for-agents",
            "wait_for_agents",
            "Wait until agents with slots for -np workers have joined, and print the line that starts one (`hvdrun "
            "agent --join`). A static job waits without a limit, an elastic one for --elastic-timeout. An elastic job "
            "also adds agents that join later.",
        ),
        Option(
            "--bind",
            "bind",
            "The address at which hvdrun listens for agents. Without it: the address of this machine's outgoing "
            "connections, and a free port.",
            Kind(parse_bind, "ADDRESS:PORT", "an address of this machine, with or without a port", "10.0.0.1:29400"),
        ),
        Option(
            "--token-file",
            "token_file",
            "The token from `hvdrun token FILE`; hvdrun makes one if there is no file. Without it: a file in this "
            "folder, which is removed when the job ends.",
            Kind(parse_local_path, FILE.metavar, FILE.wanted, "job.token"),
        ),
    ),
    "Input and output": (
        Option(
            "--output-filename",
            "output_folder",
            "Also write the output of each worker to files in this folder of this machine: DIR/rank.0/stdout, "
            "DIR/rank.0/stderr and so on; of the workers that have the rank later, DIR/rank.0/stdout.1 and so on. "
            "DIR/index.json tells which worker wrote which.",
            FOLDER,
        ),
        Option(
            "--detach",
            "detach",
            "Let the job outlive this terminal: print its name, and return when its workers have started. Then hvdrun "
            "ps, attach, logs, stop and wait find it by its name, on this machine.",
        ),
        Option(
            "--stdin -stdin",
            "stdin_rank",
            "Let the worker of this rank read hvdrun's standard input (a pipe, a file, a debugger's commands); "
            "the others have none.",
            Kind(parse_whole_number, "RANK", "the rank of one worker", "0"),
        ),
        Option(
            "--log-level",
            "log_level",
            "Which of its own sentences hvdrun prints: debug adds what it does, warning leaves losses and faults, "
            "error only why the job failed. Horovod's words are taken too.",
            Kind(LogLevel, "LEVEL", "debug, info, warning or error", "warning"),
            default=LogLevel.INFO.value,
        ),
        Option(
            "--log-file",
            "log_file",
            "Also write these sentences to the end of this file of this machine, each with time, level, host and job.",
            Kind(parse_local_path, FILE.metavar, FILE.wanted, "hvdrun.log"),
        ),
        Option(
            "--log-format",
            "log_format",
            "The form of that file: text, or json with one object in each line. With json and without --log-file, "
            "hvdrun's own lines on standard error have this form.",
            Kind(LogFormat, "FORMAT", "text or json", "json"),
            default=LogFormat.TEXT.value,
        ),
        Option(
            "--outcome",
            "outcome_file",
            "When the job has ended, also by a failure or Ctrl-C, write how it ended, and what its time was spent on, "
            "into this file of this machine: one JSON object. The file of an earlier job is removed at the start.",
            Kind(parse_local_path, FILE.metavar, FILE.wanted, "outcome.json"),
        ),
        Option(
            "--no-prefix",
            "marks_ranks",
            "Print the workers' lines without [rank] before each; equal tracebacks are not folded then.",
            switches_off=True,
        ),
        Option(
            "--prefix-output-with-timestamp -prefix-timestamp",
            "marks_times",
            "Print the local time before each line, also before hvdrun's own lines.",
        ),
    ),
    "Time limits (30, 30s, 2m, 1.5h, 500ms)": (
        Option(
            "--start-timeout",
            "start_timeout_seconds",
            "How long the job may take from the first worker that waits in hvd.init() until all have joined. Then a "
            "static job ends; an elastic one starts with those that have joined, if they are at least --min-np.",
            TIME,
            default=f"{DEFAULT_START_TIMEOUT_SECONDS:g}s",
            environment="HOROVOD_START_TIMEOUT",
        ),
        Option(
            "--grace",
            "grace_seconds",
            "How long workers may take to end: after a failure or a stop notice (SIGUSR2), and from the first signal "
            "(SIGTERM; SIGINT after Ctrl-C) to SIGKILL.",
            TIME_OR_ZERO,
            default=f"{DEFAULT_GRACE_SECONDS:g}s",
        ),
        Option(
            "--watch-after",
            "watch_after_seconds",
            "How long ranks wait in a collective before hvdrun prints who holds them up, and where that rank is; again "
            "when they have waited twice as long. 0: never. Without it: as HOROVOD_STALL_CHECK_TIME_SECONDS says, else "
            "10s.",
            TIME_OR_ZERO,
        ),
        Option(
            "--hang-timeout",
            "hang_timeout_seconds",
            "How long the collectives of all ranks may stand still. Then the rank that holds up the others is killed: "
            "the job ends, or continues without it as after any other loss. Longer than all that a rank does alone, "
            "such as an evaluation. Without it: without a limit.",
            TIME,
        ),
        Option(
            "--lease",
            "lease_seconds",
            "A host counts as lost when its next report is late by this time (it sends six in that time), and a worker "
            "of an elastic job when it is stopped (SIGSTOP) for this time. Without it: "
            f"{ELASTIC_LEASE_SECONDS:g}s in elastic jobs, {RESTART_LEASE_SECONDS:g}s with --max-restarts, "
            f"{DEFAULT_LEASE_SECONDS:g}s in others.",
            TIME,
        ),
        Option(
            "--launcher-timeout",
            "launcher_timeout_seconds",
            "How long the workers on another host continue without contact to hvdrun, whose machine may sleep. Then "
            "they are ended. At least the lease.",
            TIME,
            default=f"{DEFAULT_LAUNCHER_TIMEOUT_SECONDS:g}s",
        ),
        Option(
            "--server-timeout",
            "server_timeout_seconds",
            "How long the workers of a job of --detach continue without contact to hvdrun, which may have been killed. "
            "Then they get a stop notice, and a minute to save, and are ended. At least the lease.",
            TIME,
            default=f"{DEFAULT_SERVER_TIMEOUT_SECONDS:g}s",
        ),
    ),
    "Options of mpirun without an effect": (
        Option(
            "-mca --mca",
            "mca",
            "A setting of Open MPI, which hvdrun does not use.",
            Kind(str, "NAME VALUE", "two words, a name and a value", "pml ob1"),
            words=2,
            repeats=True,
        ),
        Option("--tag-output -tag-output", "tag_output", "Lines have tags without it."),
        Option("--allow-run-as-root -allow-run-as-root", "allow_run_as_root", "Root may use hvdrun like any user."),
    ),
    "Other": (
        Option("-v --verbose", "verbose", "Print what hvdrun itself does; the same as --log-level debug."),
        Option(
            "--config-file",
            "config_file",
            "Read options from this file, YAML or TOML, with their long names as keys, as in np: 8, and the "
            "command, as in command: python train.py. The command line overrides the file, the file overrides the "
            "environment. It may have the sections of Horovod's files.",
            FILE,
        ),
        Option(
            "--write-config",
            "write_config",
            "Write such a file with all given options and the command; with --dry-run hvdrun does nothing else.",
            FILE,
        ),
        Option("--dry-run", "dry_run", "Print where and how the workers would run, and start nothing."),
        Option(
            "--completion",
            "completion",
            "Print the script that completes hvdrun's command line in this shell: bash, zsh or fish. In ~/.bashrc: "
            'eval "$(hvdrun --completion bash)".',
            Kind(Shell, "SHELL", "bash, zsh or fish", "bash"),
            acts=True,
        ),
        Option("--version", "version", "Print hvdrun's version.", acts=True),
        Option(
            "-h --help", "help", "Print the most used options; with the word `all` after it, all options.", acts=True
        ),
    ),
}

OPTIONS: tuple[Option, ...] = tuple(itertools.chain.from_iterable(TABLE.values()))
BY_FLAG: Mapping[str, Option] = {flag: option for option in OPTIONS for flag in option.flags}
BY_DEST: Mapping[str, Option] = {option.dest: option for option in OPTIONS}
