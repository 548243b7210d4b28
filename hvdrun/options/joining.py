"""The options of jobs whose hosts come by themselves."""

from hvdrun.options.option import Group, Option
from hvdrun.options.values import parse_bind, parse_path

JOINING = (
    Option(
        flags=("--wait-for-agents",),
        dest="wait_for_agents",
        group=Group.JOINING,
        help="Wait until agents have come with slots for -np workers, however long that takes, and print the line "
        "that starts one (`hvdrun agent --join`). An elastic job takes in later ones too.",
    ),
    Option(
        flags=("--bind",),
        dest="bind",
        group=Group.JOINING,
        help="Where to listen for them. Without it: the address from which this machine goes out, and a free port.",
        parse=parse_bind,
        metavar="ADDRESS:PORT",
        wanted="an address of this machine, with or without a port, as in --bind 10.0.0.1:29400",
    ),
    Option(
        flags=("--token-file",),
        dest="token_file",
        group=Group.JOINING,
        help="The token that `hvdrun token FILE` has made; made here where there is none. Without it: a file in this "
        "folder that ends with the job.",
        parse=parse_path,
        metavar="FILE",
        wanted="the name of a file, as in --token-file job.token",
    ),
)
