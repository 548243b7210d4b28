"""The options of elastic jobs, and the lease, whose default depends on whether a job is one."""

from hvdrun.options.option import Group, Option
from hvdrun.options.values import (
    MAX_WORKERS,
    parse_cooldown,
    parse_count,
    parse_limit,
    parse_shell_command,
    parse_slots,
    parse_whole_number,
)
from hvdrun.spec.elasticity import (
    COOLDOWN_BOUNDS_SECONDS,
    DEFAULT_COOLDOWN_SECONDS,
    DEFAULT_LEASE_SECONDS,
    DEFAULT_SLOT_COOLDOWN_SECONDS,
    DEFAULT_SLOT_FAILURES,
    DEFAULT_TIMEOUT_SECONDS,
)
from hvdrun.spec.hosts import MAX_SLOTS_PER_HOST
from hvdrun.spec.limits import DEFAULT_LAUNCHER_TIMEOUT_SECONDS
from hvdrun.spec.limits import DEFAULT_LEASE_SECONDS as STATIC_LEASE_SECONDS

_LEAST_SECONDS, _MOST_SECONDS = COOLDOWN_BOUNDS_SECONDS

ELASTIC = (
    Option(
        flags=("--min-np", "--min-num-proc"),
        dest="min_size",
        group=Group.ELASTIC,
        help="With how few workers the job goes on when others are lost. Without it: -np.",
        parse=parse_count,
        metavar="N",
        wanted=f"a number of workers from 1 to {MAX_WORKERS}, as in --min-np 1",
    ),
    Option(
        flags=("--max-np", "--max-num-proc"),
        dest="max_size",
        group=Group.ELASTIC,
        help="To how many workers the job may grow. Without it: to all slots of the hosts.",
        parse=parse_count,
        metavar="N",
        wanted=f"a number of workers from 1 to {MAX_WORKERS}, as in --max-np 8",
    ),
    Option(
        flags=("--host-discovery-script",),
        dest="script",
        group=Group.ELASTIC,
        help="A command of the shell, run about once a second, that names the hosts in place of -H: one a line, "
        "server1:4 or server1; one with :0 is not used. When it fails or names none, the hosts stay as they are.",
        parse=parse_shell_command,
        metavar="COMMAND",
        wanted="a command for the shell, as in --host-discovery-script ./discover.sh",
    ),
    Option(
        flags=("--slots-per-host",),
        dest="slots_per_host",
        group=Group.ELASTIC,
        help="What a host offers that the script names without slots. Without it: 1.",
        parse=parse_slots,
        metavar="N",
        wanted=f"a number of slots from 1 to {MAX_SLOTS_PER_HOST}, as in --slots-per-host 4",
    ),
    Option(
        flags=("--elastic-timeout",),
        dest="elastic_timeout_seconds",
        group=Group.ELASTIC,
        help="How long the job waits for hosts with enough slots, at the start and after losses.",
        parse=parse_limit,
        metavar="TIME",
        wanted="a time longer than 0, as in --elastic-timeout 10m",
        default=f"{DEFAULT_TIMEOUT_SECONDS:g}s",
        environment="HOROVOD_ELASTIC_TIMEOUT",
    ),
    Option(
        flags=("--reset-limit",),
        dest="reset_limit",
        group=Group.ELASTIC,
        help="How often the workers may be put together anew; after that no host is taken in, and one that is not "
        "named any more stays in use until its workers end. Without it: as often as it takes.",
        parse=parse_whole_number,
        metavar="N",
        wanted=f"a number from 0 to {MAX_WORKERS}, as in --reset-limit 10",
    ),
    Option(
        flags=("--blacklist-cooldown-range",),
        dest="cooldown_seconds",
        group=Group.ELASTIC,
        help="For how long a host is left alone after it failed: at first MIN, then longer each time, up to MAX.",
        parse=parse_cooldown,
        words=2,
        metavar="MIN MAX",
        wanted=f"two times from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g} s, the shorter first, as in "
        "--blacklist-cooldown-range 10 100",
        default=" ".join(f"{seconds:g}" for seconds in DEFAULT_COOLDOWN_SECONDS),
    ),
    Option(
        flags=("--slot-failures",),
        dest="slot_failures",
        group=Group.ELASTIC,
        help="After how many failures of its workers a slot is left alone; those of workers that had trained some "
        "steps do not count. Half of its slots close a host.",
        parse=parse_count,
        metavar="N",
        wanted=f"a number from 1 to {MAX_WORKERS}, as in --slot-failures 10",
        default=f"{DEFAULT_SLOT_FAILURES}",
    ),
    Option(
        flags=("--slot-cooldown",),
        dest="slot_cooldown_seconds",
        group=Group.ELASTIC,
        help="For how long such a slot is left alone, and after which time without another a failure is forgotten.",
        parse=parse_limit,
        metavar="TIME",
        wanted="a time longer than 0, as in --slot-cooldown 10m",
        default=f"{DEFAULT_SLOT_COOLDOWN_SECONDS:g}s",
    ),
)

LEASE = Option(
    flags=("--lease",),
    dest="lease_seconds",
    group=Group.TIME,
    help="How long a host may be silent, from when its next report is due (six times a lease), or a worker of an "
    f"elastic job be stopped, before it counts as lost. Without it: {DEFAULT_LEASE_SECONDS:g}s in elastic jobs, "
    f"{STATIC_LEASE_SECONDS:g}s in others.",
    parse=parse_limit,
    metavar="TIME",
    wanted="a time longer than 0, as in --lease 30s",
)

LAUNCHER_TIMEOUT = Option(
    flags=("--launcher-timeout",),
    dest="launcher_timeout_seconds",
    group=Group.TIME,
    help="How long the workers on another host go on without a word from hvdrun, which may be stopped, or asleep with "
    "its laptop, before they are ended; at least the lease.",
    parse=parse_limit,
    metavar="TIME",
    wanted="a time longer than 0, as in --launcher-timeout 10m",
    default=f"{DEFAULT_LAUNCHER_TIMEOUT_SECONDS:g}s",
)
