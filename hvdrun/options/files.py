"""The options that name files of hvdrun's own."""

from hvdrun.options.option import Group, Option
from hvdrun.options.values import parse_path
from rendezvous.bootstrap import CHECKPOINT as CHECKPOINT_VARIABLE

OUTPUT_FILENAME = Option(
    flags=("--output-filename",),
    dest="output_folder",
    group=Group.OUTPUT,
    help="Write what each worker prints also into files beneath this folder of this machine: DIR/rank.0/stdout, "
    "DIR/rank.0/stderr and so on. A line goes to the rank that its worker has when it is printed.",
    parse=parse_path,
    metavar="DIR",
    wanted="the name of a folder, as in --output-filename logs",
)

CHECKPOINT = Option(
    flags=("--checkpoint",),
    dest="checkpoint",
    group=Group.WORKERS,
    help="The folder of the job's checkpoints, which all hosts share. A function under hvd.elastic.run begins with the "
    "newest one, and writes one when the job is told to stop.",
    parse=parse_path,
    metavar="DIR",
    wanted="the name of a folder, as in --checkpoint /shared/run1",
    environment=CHECKPOINT_VARIABLE,
)

CONFIG_FILE = Option(
    flags=("--config-file",),
    dest="config_file",
    group=Group.OTHER,
    help="Read options from this file, YAML or TOML, with their long names as keys, as in np: 8, and the command, as "
    "in command: python train.py. What is typed comes before the file, the file before the environment. Horovod's "
    "sections are understood.",
    parse=parse_path,
    metavar="FILE",
    wanted="the name of a file, as in --config-file job.yaml",
)
WRITE_CONFIG = Option(
    flags=("--write-config",),
    dest="write_config",
    group=Group.OTHER,
    help="Write such a file with the options and the command given, wherever from; with --dry-run nothing else is "
    "done.",
    parse=parse_path,
    metavar="FILE",
    wanted="the name of a file, as in --write-config job.yaml",
)
