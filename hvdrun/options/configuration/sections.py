"""The sections of Horovod's YAML, each key with the option of horovodrun that it stands for."""

from collections.abc import Mapping, Sequence

from hvdrun.errors import BadValueError
from hvdrun.options.configuration.languages import ConfigurationError, Node
from hvdrun.options.horovodrun.table import BY_WORD
from hvdrun.options.horovodrun.words import Translation, Typed, translate

_CONTROLLER = "controller"
_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})

# By section, by key: the flag. A switch has two, of which the second one switches off.
_TIMES = "--log-with-timestamp --log-without-timestamp"
SECTIONS: Mapping[str, Mapping[str, str]] = {
    _CONTROLLER: {},
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb",
        "cycle_time_ms": "--cycle-time-ms",
        "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": "--hierarchical-allreduce --no-hierarchical-allreduce",
        "hierarchical_allgather": "--hierarchical-allgather --no-hierarchical-allgather",
        "torus_allreduce": "--torus-allreduce --no-torus-allreduce",
    },
    "autotune": {
        "enabled": "--autotune --no-autotune",
        "log_file": "--autotune-log-file",
        "warmup_samples": "--autotune-warmup-samples",
        "steps_per_sample": "--autotune-steps-per-sample",
        "bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
        "gaussian_process_noise": "--autotune-gaussian-process-noise",
    },
    "timeline": {
        "filename": "--timeline-filename",
        "mark_cycles": "--timeline-mark-cycles --no-timeline-mark-cycles",
    },
    "stall_check": {
        "enabled": "--stall-check --no-stall-check",
        "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    },
    "library_options": {
        "mpi_threads_disable": "--mpi-threads-disable --no-mpi-threads-disable",
        "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity",
        "gloo_timeout_seconds": "--gloo-timeout-seconds",
    },
    "logging": {"level": "--log-level", "with_timestamp": _TIMES},
}


def read_section(section: str, node: Node, name: str) -> tuple[Translation, Sequence[tuple[str, int | None]]]:
    """What a section means, and its keys that mean nothing, each with its line.

    Args:
        section: its key, one of SECTIONS.
        node: what stands beneath it.
        name: what errors call the file.

    Raises:
        ConfigurationError: a key cannot have such a value.
    """
    if section == _CONTROLLER:
        if node.content not in {"gloo", "mpi"}:
            raise ConfigurationError(name, "controller takes gloo or mpi", node.line)
        return _translate([_type(f"--{node.content}", ())], name, node.line), ()
    if not isinstance(node.content, Mapping):
        raise ConfigurationError(name, f"{section} takes keys with values", node.line)
    typed: list[Typed] = []
    strangers: list[tuple[str, int | None]] = []
    for key, item in node.content.items():
        flags = SECTIONS[section].get(key)
        if flags is None:
            strangers.append((f"{section}.{key}", item.line))
        elif item.content is not None:
            typed.append(_read(flags, f"{section}.{key}", item, name))
            _translate(typed[-1:], name, item.line)  # a value that is wrong is refused with its own line
    return _translate(typed, name, node.line), strangers


def _read(flags: str, key: str, node: Node, name: str) -> Typed:
    """What a key says, as if it had been typed."""
    flag, *off = flags.split()
    if not isinstance(node.content, str):
        raise ConfigurationError(name, f"{key} takes one value", node.line)
    if not off:
        return _type(flag, (node.content,))
    word = node.content.lower()
    if word not in _YES | _NO:
        raise ConfigurationError(name, f"{key} takes true or false", node.line)
    return _type(flag if word in _YES else off[0], ())


def _type(flag: str, values: tuple[str, ...]) -> Typed:
    return Typed(BY_WORD[flag], flag, values)


def _translate(typed: Sequence[Typed], name: str, line: int | None) -> Translation:
    try:
        return translate(typed)
    except BadValueError as error:
        raise ConfigurationError(name, str(error).rstrip("."), line) from error
