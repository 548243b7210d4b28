"""All options of hvdrun, in the order of --help. Long because each option has a row.

An option gives its value to the field of `JobSpec` that has the name of its dest. So a new option needs three changes:
its row here, a field in `hvdrun/spec`, and the code that uses the field.
"""

import itertools
from collections.abc import Mapping

from hvdrun.options.kinds import (
    COOLDOWN,
    COUNT,
    FILE,
    FOLDER,
    INTERFACES,
    LOCAL_FILE,
    MAX_PORT,
    MAX_WORKERS,
    PROGRAM,
    SLOTS,
    TIME,
    Shell,
    parse_absolute_path,
    parse_bind,
    parse_duration,
    parse_integer,
    parse_local_program,
    parse_port,
    parse_private_key,
    parse_shell_command,
    parse_whole_number,
)
from hvdrun.options.option import Kind, Option
from hvdrun.processes.binding import BindTo
from hvdrun.shim.path import ShimMode
from hvdrun.spec.limits import (
    DEFAULT_COOLDOWN_SECONDS,
    DEFAULT_GRACE_SECONDS,
    DEFAULT_LAUNCHER_TIMEOUT_SECONDS,
    DEFAULT_LEASE_SECONDS,
    DEFAULT_SLOT_COOLDOWN_SECONDS,
    DEFAULT_SLOT_FAILURES,
    DEFAULT_START_TIMEOUT_SECONDS,
    DEFAULT_TIMEOUT_SECONDS,
    ELASTIC_LEASE_SECONDS,
)
from hvdrun.spec.mapping import MapBy
from rendezvous.bootstrap import BACKEND, Backend
from rendezvous.bootstrap import CHECKPOINT as CHECKPOINT_VARIABLE

COMPLETION_VARIABLE = "_HVDRUN_COMPLETE"  # the script of --completion sets it to ask for the words that may follow

TABLE: Mapping[str, tuple[Option, ...]] = {
    "Workers": (
        Option("-np --num-proc -n --np", "size", "How many workers to start.", COUNT, "2"),
        Option(
            "-map-by --map-by",
            "map_by",
            "Where fewer workers than slots go: slot fills the hosts one after the other, node gives each host the "
            "same number. Either way neighbouring ranks share a host.",
            Kind(MapBy, "WHAT", "slot or node"),
            "slot",
            default=MapBy.SLOT.value,
        ),
        Option(
            "-bind-to --bind-to",
            "bind_to",
            "Which CPUs a worker may use: none leaves it all of them; core, socket or numa (a NUMA node) gives each "
            "worker of a host the next one, in turn.",
            Kind(BindTo, "WHAT", "none, core, socket or numa"),
            "none",
            default=BindTo.NONE.value,
        ),
        Option(
            "--oversubscribe -oversubscribe",
            "oversubscribe",
            "Allow more workers than slots; what exceeds them is spread evenly.",
        ),
        Option(
            "-x",
            "forwarded",
            "Give the workers on all hosts a variable: hvdrun's own (-x NAME), several of these (-x 'NCCL_*'), or "
            "one with this value. May be given several times.",
            Kind(str, "NAME[=VALUE]", "a variable of the environment"),
            "NCCL_DEBUG=INFO",
            repeats=True,
        ),
        Option(
            "--wdir -wdir",
            "directory",
            "The workers' working directory, on every host. Without it: that of hvdrun.",
            FOLDER,
            "/work",
        ),
        Option(
            "--checkpoint",
            "checkpoint",
            "The folder of the job's checkpoints, which all hosts share. A function under hvd.elastic.run begins with "
            "the newest one, and writes one after a stop notice (SIGUSR2).",
            FOLDER,
            "/shared/run1",
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
            "What tensors travel through. Without it: gloo, and NCCL for CUDA tensors where torch has it. gloo: all "
            "take gloo; nccl: CUDA tensors take NCCL, CPU tensors gloo; ucc: CPU tensors take UCC as far as it is "
            "trusted, else gloo. One that the workers' torch lacks is refused.",
            Kind(Backend, "NAME", "gloo, nccl or ucc"),
            "gloo",
            environment=BACKEND,
        ),
        Option(
            "--horovod-shim",
            "horovod_shim",
            "What `import horovod` means in the workers: with auto, Horovod where their Python has it, else hvdrun's "
            "own; with on, hvdrun's own; with off, Horovod or nothing.",
            Kind(ShimMode, "WHEN", "auto, on or off"),
            "auto",
            default=ShimMode.AUTO.value,
        ),
    ),
    "Hosts": (
        Option(
            "-H --hosts -host --host",
            "hosts",
            "Where to start them: hosts with their slots, filled in this order. A bare name is one slot, a host named "
            "twice adds up, user@ may stand before it, an IPv6 address stands in brackets: [2001:db8::1]:4. Without "
            "it: localhost, N slots.",
            Kind(str, "A:4,B:4", "hosts"),
            "server1:4,server2:4",
        ),
        Option(
            "--hostfile -hostfile -machinefile --machinefile",
            "hostfile",
            "The same from a file, one host a line: server1 slots=4, server1:4 or server1.",
            FILE,
            "hosts.txt",
        ),
        Option(
            "--network-interfaces --network-interface --nics",
            "interfaces",
            "The network interfaces to use between the hosts, by name (eth1), pattern (ib*) or subnet (10.1.0.0/16), "
            "the preferred ones first. Without it: those that the hosts prove to reach each other through.",
            INTERFACES,
            "eth0,ib*,10.1.0.0/16",
            repeats=True,
        ),
    ),
    "Elastic jobs, which lose and gain workers": (
        Option(
            "--min-np --min-num-proc",
            "min_size",
            "With how few workers the job continues when others are lost. Without it: -np.",
            COUNT,
            "1",
        ),
        Option(
            "--max-np --max-num-proc",
            "max_size",
            "To how many workers the job may grow. Without it: to all slots of the hosts.",
            COUNT,
            "8",
        ),
        Option(
            "--host-discovery-script",
            "script",
            "A command of the shell, run about once a second, that names the hosts in place of -H: one a line, "
            "server1:4 or server1; one with :0 is not used. When it fails or names none, the hosts stay as they are.",
            Kind(parse_shell_command, "COMMAND", "a command for the shell"),
            "./discover.sh",
        ),
        Option(
            "--slots-per-host",
            "slots_per_host",
            "What a host offers that the script names without slots. Without it: 1.",
            SLOTS,
            "4",
        ),
        Option(
            "--elastic-timeout",
            "timeout_seconds",
            "How long the job waits for hosts with enough slots, at the start and after losses.",
            TIME,
            "10m",
            default=f"{DEFAULT_TIMEOUT_SECONDS:g}s",
            environment="HOROVOD_ELASTIC_TIMEOUT",
        ),
        Option(
            "--reset-limit",
            "reset_limit",
            "How often the workers may be put together anew; after that no host is taken in, and one that is not "
            "named any more stays in use until its workers end. Without it: as often as it takes.",
            Kind(parse_whole_number, "N", f"a number from 0 to {MAX_WORKERS}"),
            "10",
        ),
        Option(
            "--blacklist-cooldown-range",
            "cooldown_seconds",
            "For how long a host is left alone after it failed: at first MIN, then longer each time, up to MAX.",
            COOLDOWN,
            "10 100",
            words=2,
            default=" ".join(f"{seconds:g}" for seconds in DEFAULT_COOLDOWN_SECONDS),
        ),
        Option(
            "--slot-failures",
            "slot_failures",
            "After how many failures of its workers a slot is left alone; those of workers that had trained some "
            "steps do not count. Half of its slots close a host.",
            Kind(parse_integer, "N", f"a number from 1 to {MAX_WORKERS}"),
            "10",
            default=f"{DEFAULT_SLOT_FAILURES}",
        ),
        Option(
            "--slot-cooldown",
            "slot_cooldown_seconds",
            "For how long such a slot is left alone, and after which time without another a failure is forgotten.",
            TIME,
            "10m",
            default=f"{DEFAULT_SLOT_COOLDOWN_SECONDS:g}s",
        ),
    ),
    "Hosts other than this one": (
        Option(
            "-p --ssh-port",
            "ssh_port",
            "The port of their SSH servers. Without it: as ~/.ssh/config says.",
            Kind(parse_port, "PORT", f"a port from 1 to {MAX_PORT}"),
            "2222",
        ),
        Option(
            "-i --ssh-identity-file",
            "ssh_identity_file",
            "The private key to log in with. Without it: as ~/.ssh/config and the SSH agent say.",
            Kind(parse_private_key, "FILE", "the name of a private key's file"),
            "~/.ssh/id_ed25519",
        ),
        Option(
            "--ssh-accept-new",
            "ssh_accept_new",
            "Accept the key of a host that known_hosts does not have; a changed one is never accepted.",
        ),
        Option(
            "--remote-python",
            "python",
            "The Python there, for the agent and for a bare python in COMMAND. Without it: the path of this "
            "machine's python.",
            Kind(parse_absolute_path, "PATH", "an absolute path"),
            "/opt/venv/bin/python",
        ),
        Option(
            "--remote-prefix",
            "prefix",
            "What the shell there does first, as in --remote-prefix 'source env.sh'. PATH and its like, which "
            "otherwise come from here, are then left to it.",
            Kind(parse_shell_command, "COMMAND", "a command for the shell there"),
            "'source env.sh'",
        ),
        Option(
            "--rsh",
            "rsh",
            "Reach them by this command in place of hvdrun's own SSH; host and command follow it, or stand where "
            "{host} and {command} do.",
            Kind(parse_local_program, PROGRAM.metavar, PROGRAM.wanted),
            "'ssh -q'",
        ),
        Option(
            "--agent-prefix",
            "agent_prefix",
            "Run the agents, and so the workers, of all hosts behind this command, as in --agent-prefix 'apptainer "
            "exec --nv image.sif'. --remote-python then names the Python in the image.",
            PROGRAM,
            "'apptainer exec image.sif'",
        ),
    ),
    "Hosts whose agents come by themselves": (
        Option(
            "--wait-for-agents",
            "wait_for_agents",
            "Wait until agents have come with slots for -np workers, however long that takes, and print the line "
            "that starts one (`hvdrun agent --join`). An elastic job takes in later ones too.",
        ),
        Option(
            "--bind",
            "bind",
            "Where to listen for them. Without it: the address from which this machine goes out, and a free port.",
            Kind(parse_bind, "ADDRESS:PORT", "an address of this machine, with or without a port"),
            "10.0.0.1:29400",
        ),
        Option(
            "--token-file",
            "token_file",
            "The token that `hvdrun token FILE` has made; made here where there is none. Without it: a file in this "
            "folder that ends with the job.",
            LOCAL_FILE,
            "job.token",
        ),
    ),
    "Input and output": (
        Option(
            "--output-filename",
            "output_folder",
            "Write what each worker prints also into files beneath this folder of this machine: DIR/rank.0/stdout, "
            "DIR/rank.0/stderr and so on. A line goes to the rank that its worker has when it is printed.",
            FOLDER,
            "logs",
        ),
        Option(
            "--stdin -stdin",
            "stdin_rank",
            "Let the worker of this rank read hvdrun's standard input (a pipe, a file, a debugger's commands); the "
            "others have none.",
            Kind(parse_whole_number, "RANK", "the rank of one worker"),
            "0",
        ),
        Option("--no-prefix", "marks_ranks", "Show the workers' lines without [rank] before each.", switches_off=True),
        Option(
            "--prefix-output-with-timestamp -prefix-timestamp",
            "marks_times",
            "Show before each line, hvdrun's own too, when it came, in local time.",
        ),
    ),
    "Time limits (30, 30s, 2m, 1.5h, 500ms)": (
        Option(
            "--start-timeout",
            "start_timeout_seconds",
            "How long the job may take until all workers have joined.",
            TIME,
            "2m",
            default=f"{DEFAULT_START_TIMEOUT_SECONDS:g}s",
            environment="HOROVOD_START_TIMEOUT",
        ),
        Option(
            "--grace",
            "grace_seconds",
            "How long a worker has to end when it has failed, or after a stop notice (SIGUSR2), and between SIGTERM "
            "(after a Ctrl-C SIGINT) and SIGKILL when the job ends early.",
            Kind(parse_duration, "TIME", "a time"),
            "5s",
            default=f"{DEFAULT_GRACE_SECONDS:g}s",
        ),
        Option(
            "--lease",
            "lease_seconds",
            "How long a host may be silent, from when its next report is due (six times a lease), or a worker of an "
            f"elastic job be stopped, before it counts as lost. Without it: {ELASTIC_LEASE_SECONDS:g}s in elastic "
            f"jobs, {DEFAULT_LEASE_SECONDS:g}s in others.",
            TIME,
            "30s",
        ),
        Option(
            "--launcher-timeout",
            "launcher_timeout_seconds",
            "How long the workers on another host continue when they hear nothing from hvdrun, which may be stopped, "
            "or asleep with its laptop, before they are ended; at least the lease.",
            TIME,
            "10m",
            default=f"{DEFAULT_LAUNCHER_TIMEOUT_SECONDS:g}s",
        ),
    ),
    "Words of mpirun without an effect here": (
        Option(
            "-mca --mca",
            "mca",
            "A setting of Open MPI, which is not underneath.",
            Kind(str, "NAME VALUE", "two words, a name and a value"),
            "pml ob1",
            words=2,
            repeats=True,
        ),
        Option("--tag-output -tag-output", "tag_output", "Lines are tagged already."),
        Option("--allow-run-as-root -allow-run-as-root", "allow_run_as_root", "Root may use hvdrun as any user may."),
    ),
    "Other": (
        Option("-v --verbose", "verbose", "Say what hvdrun itself does."),
        Option(
            "--config-file",
            "config_file",
            "Read options from this file, YAML or TOML, with their long names as keys, as in np: 8, and the command, "
            "as in command: python train.py. What is typed comes before the file, the file before the environment. "
            "Horovod's sections are understood.",
            FILE,
            "job.yaml",
        ),
        Option(
            "--write-config",
            "write_config",
            "Write such a file with the options and the command given, wherever from; with --dry-run nothing else is "
            "done.",
            FILE,
            "job.yaml",
        ),
        Option("--dry-run", "dry_run", "Start nothing, and show what would be."),
        Option(
            "--completion",
            "completion",
            "Print what makes this shell complete the words of hvdrun: bash, zsh or fish. In ~/.bashrc: "
            'eval "$(hvdrun --completion bash)".',
            Kind(Shell, "SHELL", "bash, zsh or fish"),
            "bash",
            acts=True,
        ),
        Option("--version", "version", "Print hvdrun's version.", acts=True),
        Option("-h --help", "help", "Print this page.", acts=True),
    ),
}

OPTIONS: tuple[Option, ...] = tuple(itertools.chain.from_iterable(TABLE.values()))
BY_FLAG: Mapping[str, Option] = {flag: option for option in OPTIONS for flag in option.flags}
BY_DEST: Mapping[str, Option] = {option.dest: option for option in OPTIONS}
