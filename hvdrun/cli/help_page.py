"""What --help says besides the options."""

ABOUT = """\
Starts N workers of COMMAND, on this machine or over SSH on several hosts, connects them for training, and ends them
all when one fails. The exit code is that of the first worker that failed. An elastic job (--min-np,
--host-discovery-script) goes on without those that fail, and grows. Options stand before COMMAND; what follows is its
own. The usual words of mpirun are understood; hvdrun horovodrun takes all options of horovodrun."""

EXAMPLES = (
    ("hvdrun -np 4 python train.py", "four workers on this machine"),
    ("hvdrun -np 8 -H server1:4,server2:4 python train.py", "four on each of two hosts"),
    ("hvdrun -np 8 --hostfile hosts.txt python train.py", "the hosts from a file"),
    ("hvdrun -np 8 -H me@server1:4,server2:4 -p 2222 -x 'NCCL_*' python train.py", "another user, port, variables"),
    ("hvdrun -np 8 --min-np 4 -H server1:4,server2:4 python train.py", "goes on when a host is lost"),
    ("hvdrun -np 2 --host-discovery-script ./hosts.sh python train.py", "hosts that come and go"),
    ("hvdrun -np 2 -- ./program -v", "everything after -- is the command"),
)

EXIT_CODES = (
    ("0", "all workers ended well, or an elastic job has gone on without those that failed"),
    ("1 to 255", "the exit code of the worker whose failure has ended the job; 128+n when signal n ended it"),
    ("2", "hvdrun was used wrongly; nothing was started"),
    ("74", "the output could not be written: the disk is full; all workers, if any, ended well"),
    ("75", "start it again: after a stop notice or a lost host, with too few workers left, or --checkpoint in use"),
    ("124", "the job did not start in time"),
    ("125", "hvdrun itself could not launch"),
    ("126, 127", "the command is not executable, was not found"),
    ("129, 143", "ended by SIGHUP, SIGTERM"),
    ("130", "ended by SIGINT (Ctrl-C), of which hvdrun itself dies"),
    ("141", "whoever read the output has gone, as with | head"),
)
