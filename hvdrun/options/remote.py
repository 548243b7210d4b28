"""The options for hosts other than this one."""

from hvdrun.options.option import Group, Option
from hvdrun.options.values import (
    MAX_PORT,
    parse_absolute_path,
    parse_path,
    parse_port,
    parse_shell_command,
    parse_words,
)

REMOTE = (
    Option(
        flags=("-p", "--ssh-port"),
        dest="ssh_port",
        group=Group.REMOTE,
        help="The port of their SSH servers. Without it: as ~/.ssh/config says.",
        parse=parse_port,
        metavar="PORT",
        wanted=f"a port from 1 to {MAX_PORT}, as in -p 2222",
    ),
    Option(
        flags=("-i", "--ssh-identity-file"),
        dest="ssh_identity_file",
        group=Group.REMOTE,
        help="The private key to log in with. Without it: as ~/.ssh/config and the SSH agent say.",
        parse=parse_path,
        metavar="FILE",
        wanted="the name of a private key's file, as in -i ~/.ssh/id_ed25519",
    ),
    Option(
        flags=("--ssh-accept-new",),
        dest="ssh_accept_new",
        group=Group.REMOTE,
        help="Accept the key of a host that known_hosts does not have; a changed one is never accepted.",
    ),
    Option(
        flags=("--remote-python",),
        dest="python",
        group=Group.REMOTE,
        help="The Python there, for the agent and for a bare python in COMMAND. Without it: the path of this "
        "machine's python.",
        parse=parse_absolute_path,
        metavar="PATH",
        wanted="an absolute path, as in --remote-python /opt/venv/bin/python",
    ),
    Option(
        flags=("--remote-prefix",),
        dest="prefix",
        group=Group.REMOTE,
        help="What the shell there does first, as in --remote-prefix 'source env.sh'. PATH and its like, which "
        "otherwise come from here, are then left to it.",
        parse=parse_shell_command,
        metavar="COMMAND",
        wanted="a command for the shell there, as in --remote-prefix 'source env.sh'",
    ),
    Option(
        flags=("--rsh",),
        dest="rsh",
        group=Group.REMOTE,
        help="Reach them by this command in place of hvdrun's own SSH; host and command follow it, or stand where "
        "{host} and {command} do.",
        parse=parse_words,
        metavar="COMMAND",
        wanted="a program with its arguments, as in --rsh 'ssh -q'",
    ),
    Option(
        flags=("--agent-prefix",),
        dest="agent_prefix",
        group=Group.REMOTE,
        help="Run the agents, and so the workers, of all hosts behind this command, as in --agent-prefix 'apptainer "
        "exec --nv image.sif'. --remote-python then names the Python in the image.",
        parse=parse_words,
        metavar="COMMAND",
        wanted="a program with its arguments, as in --agent-prefix 'apptainer exec image.sif'",
    ),
)
