"""The sections of Horovod's YAML, each key with the option of horovodrun that it stands for."""

from collections.abc import Mapping, Sequence

from hvdrun.errors import BadValueError
from hvdrun.options.configuration.languages import ConfigurationError, Node
from hvdrun.options.horovodrun.table import BY_WORD
from hvdrun.options.horovodrun.words import Translation, Typed, translate

_CONTROLLER = "controller"
_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})

# By section: what the flags of its keys begin with, and its keys.
_KEYS = {
    "params": (
        "",
        (
            "fusion_threshold_mb cycle_time_ms cache_capacity "
            "hierarchical_allreduce hierarchical_allgather torus_allreduce"
        ),
    ),
    "autotune": (
        "autotune-",
        "enabled log_file warmup_samples steps_per_sample bayes_opt_max_samples gaussian_process_noise",
    ),
    "timeline": ("timeline-", "filename mark_cycles"),
    "stall_check": ("stall-check-", "enabled warning_time_seconds shutdown_time_seconds"),
    "library_options": ("", "mpi_threads_disable num_nccl_streams thread_affinity gloo_timeout_seconds"),
    "logging": ("log-", "level with_timestamp"),
}
_ENABLED = "-enabled"  # of a switch that has the name of its section
_OFF = {"--log-with-timestamp": "--log-without-timestamp"}
# By section, by key: the flag.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    _CONTROLLER: {},
    **{
        section: {key: f"--{prefix}{key.replace('_', '-')}".removesuffix(_ENABLED) for key in keys.split()}
        for section, (prefix, keys) in _KEYS.items()
    },
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
        flag = SECTIONS[section].get(key)
        if flag is None:
            strangers.append((f"{section}.{key}", item.line))
        elif item.content is not None:
            typed.append(_read(flag, f"{section}.{key}", item, name))
            _translate(typed[-1:], name, item.line)  # a value that is wrong is refused with its own line
    return _translate(typed, name, node.line), strangers


def _read(flag: str, key: str, node: Node, name: str) -> Typed:
    """What a key says, as if it had been typed."""
    if not isinstance(node.content, str):
        raise ConfigurationError(name, f"{key} takes one value", node.line)
    if BY_WORD[flag].words:
        return _type(flag, (node.content,))
    word = node.content.lower()
    if word not in _YES | _NO:
        raise ConfigurationError(name, f"{key} takes true or false", node.line)
    return _type(flag if word in _YES else _OFF.get(flag, f"--no-{flag[2:]}"), ())


def _type(flag: str, values: tuple[str, ...]) -> Typed:
    return Typed(BY_WORD[flag], flag, values)


def _translate(typed: Sequence[Typed], name: str, line: int | None) -> Translation:
    try:
        return translate(typed)
    except BadValueError as error:
        raise ConfigurationError(name, str(error).rstrip("."), line) from error
