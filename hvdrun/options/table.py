"""All options, in the order in which they are shown."""

from collections.abc import Mapping

from hvdrun.options.elastic import ELASTIC, LAUNCHER_TIMEOUT, LEASE
from hvdrun.options.files import CHECKPOINT, CONFIG_FILE, OUTPUT_FILENAME, WRITE_CONFIG
from hvdrun.options.joining import JOINING
from hvdrun.options.option import Group, Option
from hvdrun.options.remote import REMOTE
from hvdrun.options.values import (
    MAX_WORKERS,
    parse_count,
    parse_duration,
    parse_interfaces,
    parse_limit,
    parse_path,
    parse_whole_number,
)
from hvdrun.shim.path import ShimMode
from hvdrun.spec.limits import DEFAULT_GRACE_SECONDS, DEFAULT_START_TIMEOUT_SECONDS
from hvdrun.spec.mapping import BindTo, MapBy
from rendezvous.backend import Backend
from rendezvous.bootstrap import BACKEND

_WORKERS = (
    Option(
        flags=("-np", "--num-proc", "-n", "--np"),
        dest="size",
        group=Group.WORKERS,
        help="How many workers to start.",
        parse=parse_count,
        metavar="N",
        wanted=f"a number of workers from 1 to {MAX_WORKERS}, as in -np 2",
    ),
    Option(
        flags=("-map-by", "--map-by"),
        dest="map_by",
        group=Group.WORKERS,
        help="Where fewer workers than slots go: slot fills the hosts one after the other, node gives each host the "
        "same number. Either way neighbouring ranks share a host.",
        parse=MapBy,
        metavar="WHAT",
        wanted="slot or node, as in -map-by slot",
        default=MapBy.SLOT.value,
    ),
    Option(
        flags=("-bind-to", "--bind-to"),
        dest="bind_to",
        group=Group.WORKERS,
        help="Which CPUs a worker may use: none leaves it all of them; core, socket or numa (a NUMA node) gives each "
        "worker of a host the next one, in turn.",
        parse=BindTo,
        metavar="WHAT",
        wanted="none, core, socket or numa, as in -bind-to none",
        default=BindTo.NONE.value,
    ),
    Option(
        flags=("--oversubscribe", "-oversubscribe"),
        dest="oversubscribe",
        group=Group.WORKERS,
        help="Allow more workers than slots; what exceeds them is spread evenly.",
    ),
    Option(
        flags=("-x",),
        dest="forwarded",
        group=Group.WORKERS,
        help="Give the workers on all hosts a variable: hvdrun's own (-x NAME), several of these (-x 'NCCL_*'), or "
        "one with this value. May be given several times.",
        parse=str,
        repeats=True,
        metavar="NAME[=VALUE]",
        wanted="a variable of the environment, as in -x NCCL_DEBUG=INFO",
    ),
    Option(
        flags=("--wdir", "-wdir"),
        dest="directory",
        group=Group.WORKERS,
        help="The workers' working directory, on every host. Without it: that of hvdrun.",
        parse=parse_path,
        metavar="DIR",
        wanted="the name of a folder, as in --wdir /work",
    ),
    CHECKPOINT,
    Option(
        flags=("--no-prefork",),
        dest="prefork",
        switches_off=True,
        group=Group.WORKERS,
        help="Execute every worker, instead of forking Python workers from a process that has imported torch.",
    ),
    Option(
        flags=("--backend",),
        dest="backend",
        group=Group.WORKERS,
        help="What tensors travel through. Without it: gloo, and NCCL for CUDA tensors where torch has it. gloo: all "
        "take gloo; nccl: CUDA tensors take NCCL, CPU tensors gloo; ucc: CPU tensors take UCC as far as it is "
        "trusted, else gloo. One that the workers' torch lacks is refused.",
        parse=Backend,
        metavar="NAME",
        wanted="gloo, nccl or ucc, as in --backend gloo",
        environment=BACKEND,
    ),
    Option(
        flags=("--horovod-shim",),
        dest="horovod_shim",
        group=Group.WORKERS,
        help="What `import horovod` means in the workers: with auto, Horovod where their Python has it, else hvdrun's "
        "own; with on, hvdrun's own; with off, Horovod or nothing.",
        parse=ShimMode,
        metavar="WHEN",
        wanted="auto, on or off, as in --horovod-shim auto",
        default=ShimMode.AUTO.value,
    ),
)

_HOSTS = (
    Option(
        flags=("-H", "--hosts", "-host", "--host"),
        dest="hosts",
        group=Group.HOSTS,
        help="Where to start them: hosts with their slots, filled in this order. A bare name is one slot, a host "
        "named twice adds up, user@ may stand before it, an IPv6 address stands in brackets: [2001:db8::1]:4. Without "
        "it: localhost, N slots.",
        parse=str,
        metavar="A:4,B:4",
        wanted="hosts, as in -H server1:4,server2:4",
    ),
    Option(
        flags=("--hostfile", "-hostfile", "-machinefile", "--machinefile"),
        dest="hostfile",
        group=Group.HOSTS,
        help="The same from a file, one host a line: server1 slots=4, server1:4 or server1.",
        parse=parse_path,
        metavar="FILE",
        wanted="the name of a file, as in --hostfile hosts.txt",
    ),
    Option(
        flags=("--network-interfaces", "--network-interface", "--nics"),
        dest="interfaces",
        group=Group.HOSTS,
        help="The network interfaces to use between the hosts, by name (eth1), pattern (ib*) or subnet (10.1.0.0/16), "
        "the preferred ones first. Without it: those that the hosts prove to reach each other through.",
        parse=parse_interfaces,
        repeats=True,
        metavar="A,B",
        wanted="names of interfaces, patterns of them or subnets, as in --network-interfaces eth0,ib*,10.1.0.0/16",
    ),
)

_TIME = (
    Option(
        flags=("--start-timeout",),
        dest="start_timeout_seconds",
        group=Group.TIME,
        help="How long the job may take until all workers have joined.",
        parse=parse_limit,
        metavar="TIME",
        wanted="a time longer than 0, as in --start-timeout 2m",
        default=f"{DEFAULT_START_TIMEOUT_SECONDS:g}s",
        environment="HOROVOD_START_TIMEOUT",
    ),
    Option(
        flags=("--grace",),
        dest="grace_seconds",
        group=Group.TIME,
        help="How long a worker has to end when it has failed, or after a stop notice (SIGUSR2), and between SIGTERM "
        "(after a Ctrl-C SIGINT) and SIGKILL when the job ends early.",
        parse=parse_duration,
        metavar="TIME",
        wanted="a time, as in --grace 5s",
        default=f"{DEFAULT_GRACE_SECONDS:g}s",
    ),
    LEASE,
    LAUNCHER_TIMEOUT,
)

_OUTPUT = (
    OUTPUT_FILENAME,
    Option(
        flags=("--stdin", "-stdin"),
        dest="stdin_rank",
        group=Group.OUTPUT,
        help="Let the worker of this rank read hvdrun's standard input (a pipe, a file, a debugger's commands); the "
        "others have none.",
        parse=parse_whole_number,
        metavar="RANK",
        wanted="the rank of one worker, as in --stdin 0",
    ),
    Option(
        flags=("--no-prefix",),
        dest="marks_ranks",
        switches_off=True,
        group=Group.OUTPUT,
        help="Show the workers' lines without [rank] before each.",
    ),
    Option(
        flags=("--prefix-output-with-timestamp", "-prefix-timestamp"),
        dest="marks_times",
        group=Group.OUTPUT,
        help="Show before each line, hvdrun's own too, when it came, in local time.",
    ),
)

_MPIRUN = (
    Option(
        flags=("-mca", "--mca"),
        dest="mca",
        group=Group.MPIRUN,
        help="A setting of Open MPI, which is not underneath.",
        parse=str,
        words=2,
        repeats=True,
        metavar="NAME VALUE",
        wanted="two words, a name and a value, as in -mca pml ob1",
    ),
    Option(
        flags=("--tag-output", "-tag-output"),
        dest="tag_output",
        group=Group.MPIRUN,
        help="Lines are tagged already.",
    ),
    Option(
        flags=("--allow-run-as-root", "-allow-run-as-root"),
        dest="allow_run_as_root",
        group=Group.MPIRUN,
        help="Root may use hvdrun as any user may.",
    ),
)

_OTHER = (
    Option(
        flags=("-v", "--verbose"),
        dest="verbose",
        group=Group.OTHER,
        help="Say what hvdrun itself does.",
    ),
    CONFIG_FILE,
    WRITE_CONFIG,
    Option(flags=("--dry-run",), dest="dry_run", group=Group.OTHER, help="Start nothing, and show what would be."),
    Option(flags=("--version",), dest="version", group=Group.OTHER, help="Print hvdrun's version.", acts=True),
    Option(flags=("-h", "--help"), dest="help", group=Group.OTHER, help="Print this page.", acts=True),
)

OPTIONS = (*_WORKERS, *_HOSTS, *ELASTIC, *REMOTE, *JOINING, *_OUTPUT, *_TIME, *_MPIRUN, *_OTHER)
BY_FLAG: Mapping[str, Option] = {flag: option for option in OPTIONS for flag in option.flags}
BY_DEST: Mapping[str, Option] = {option.dest: option for option in OPTIONS}
