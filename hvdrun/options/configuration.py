"""Configuration files: YAML or TOML, with the options' long names as keys, and the sections of Horovod's files.

Only a job that names a file imports this module. What is written here gives the same job when it is read again.
"""

import errno
import os
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from hvdrun.errors import BadValueError
from hvdrun.options.horovodrun import BY_FLAG, translate
from hvdrun.options.kinds import parse_path
from hvdrun.options.languages import ConfigurationError, Node, parse_toml, parse_yaml, render_toml, render_yaml
from hvdrun.options.option import Option, RawValues
from hvdrun.options.table import BY_FLAG as OF_HVDRUN
from hvdrun.options.table import OPTIONS
from hvdrun.options.words import Typed
from hvdrun.startup.paths import read_file

_MAX_BYTES = 1024 * 1024  # /dev/zero has no end
_FLAG = "--config-file"
_OF_FILES = frozenset({"config_file", "write_config"})
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_PRIVATE = 0o600  # values of -x may be secrets
_NOT_WRITTEN = frozenset({"dry_run"})  # the option shows the job, and is no part of the job

COMMAND = "command"
_CONTROLLER = "controller"


def _list_keys(option: Option) -> list[str]:
    """The keys of an option: its flags without the dashes; a single letter only where it has no longer flag."""
    names = [flag.lstrip("-") for flag in option.flags]
    return [name for name in names if len(name) > 1] or names


KEYS: Mapping[str, Option] = {
    key: option for option in OPTIONS if not option.acts and option.dest not in _OF_FILES for key in _list_keys(option)
}


def _name_flags(keys: str, prefix: str = "") -> dict[str, str]:
    """The option of horovodrun that each key of a section stands for."""
    return {key: f"--{prefix}{key.replace('_', '-')}" for key in keys.split()}


# By section of Horovod's files and by key: the option of horovodrun.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    _CONTROLLER: {},
    "params": _name_flags(
        "fusion_threshold_mb cycle_time_ms cache_capacity hierarchical_allreduce hierarchical_allgather torus_allreduce"
    ),
    "autotune": {
        "enabled": "--autotune",
        **_name_flags(
            "log_file warmup_samples steps_per_sample bayes_opt_max_samples gaussian_process_noise", "autotune-"
        ),
    },
    "timeline": _name_flags("filename mark_cycles", "timeline-"),
    "stall_check": {
        "enabled": "--stall-check",
        **_name_flags("warning_time_seconds shutdown_time_seconds", "stall-check-"),
    },
    "library_options": _name_flags("mpi_threads_disable num_nccl_streams thread_affinity gloo_timeout_seconds"),
    "logging": _name_flags("level with_timestamp", "log-"),
}
_OFF = {"--log-with-timestamp": "--log-without-timestamp"}  # of the others --no-NAME


@dataclass(slots=True)
class Configuration:
    """The contents of a file.

    given: the options' values by dest, as from the command line; sources: how errors call each.
    command: the user's, for a command line that has none.
    remarks: sentences for the user. unknown: an error for each key that is no option.
    """

    given: dict[str, RawValues] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    unknown: list[ConfigurationError] = field(default_factory=list)


def read_configuration(name: str, *, ignores_unknown: bool = False) -> Configuration:
    """Read a file: TOML where its name ends with .toml, otherwise YAML.

    Args:
        name: the name of the file.
        ignores_unknown: remark on keys that are no option, as Horovod does, instead of refusing them.

    Raises:
        BadValueError: no file can have such a name.
        ConfigurationError: the file cannot be read, or an option does not take such a value.
    """
    table = _load(name)
    found = Configuration()
    spelled: dict[str, str] = {}

    # Sections add to the options.
    for key, node in sorted(table.items(), key=lambda item: item[0] in SECTIONS):
        option = KEYS.get(key.replace("_", "-"))
        # `timeline` is an option of hvdrun with a value, and a section of Horovod's with keys.
        if key in SECTIONS and (option is None or isinstance(node.content, Mapping)):
            _add_section(found, key, node, name)
        elif key == COMMAND:
            found.command = _read_command(node, name)
        elif option is None:
            found.unknown.append(_explain_unknown(name, key, [*KEYS, *SECTIONS, COMMAND], node.line))
        elif node.content is not None:
            if option.dest in spelled:
                raise ConfigurationError(name, f"{spelled[option.dest]} and {key} mean the same", node.line)
            spelled[option.dest] = key
            found.given[option.dest] = _read_value(option, node, name, key)
            found.sources[option.dest] = f"{key} in {node.locate(name)}"

    if found.unknown:
        if not ignores_unknown:
            raise found.unknown[0]
        found.remarks.append(f"these keys have no effect: {' '.join(map(str, found.unknown))}")
    return found


def _load(name: str) -> Mapping[str, Node]:
    """The keys of a file, each with its value."""
    try:
        path = parse_path(name)
    except ValueError as error:
        raise BadValueError(_FLAG, OF_HVDRUN[_FLAG].wanted, name) from error
    try:
        data = read_file(path, _MAX_BYTES)
        if len(data) > _MAX_BYTES:
            raise ConfigurationError(name, f"it is longer than {_MAX_BYTES} bytes")
        text = data.decode()
    except OSError as error:
        raise ConfigurationError(name, f"it cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(name, "it is no text in UTF-8") from error

    if path.suffix == ".toml":
        tree = parse_toml(text, name)
    else:
        tree = parse_yaml(text, name)

    if tree.content is None:
        return {}
    if not isinstance(tree.content, Mapping):
        raise ConfigurationError(name, "keys with values are expected, as in np: 2", tree.line)
    return tree.content


def _add_section(found: Configuration, section: str, node: Node, name: str) -> None:
    """Add the values that a section of Horovod's files gives to hvdrun's options."""
    if node.content is None:
        return
    meaning = translate(list(_read_section(found, section, node, name)))
    found.remarks.extend(meaning.remarks)
    for dest, given in meaning.given.items():
        former = found.given.get(dest)
        if isinstance(former, tuple) and isinstance(given, tuple):
            found.given[dest] = (*former, *given)
        else:
            found.given[dest] = given
        found.sources.setdefault(dest, f"{section} in {node.locate(name)}")


def _read_section(found: Configuration, section: str, node: Node, name: str) -> Iterator[Typed]:
    """The options of horovodrun that the keys of a section stand for."""
    if section == _CONTROLLER:
        if node.content not in {"gloo", "mpi"}:
            raise ConfigurationError(name, "controller takes gloo or mpi", node.line)
        yield _type(f"--{node.content}")
        return
    if not isinstance(node.content, Mapping):
        raise ConfigurationError(name, f"{section} takes keys with values", node.line)
    for key, item in node.content.items():
        flag = SECTIONS[section].get(key.replace("-", "_"))
        if flag is None:
            known = [f"{section}.{each}" for each in SECTIONS[section]]
            found.unknown.append(_explain_unknown(name, f"{section}.{key}", known, item.line))
        elif item.content is not None:
            yield _read_setting(flag, f"{section}.{key}", item, name)


def _read_setting(flag: str, key: str, node: Node, name: str) -> Typed:
    """The option of horovodrun that a key with its value stands for."""
    if not isinstance(node.content, str):
        raise ConfigurationError(name, f"{key} takes one value", node.line)
    if not BY_FLAG[flag].takes_value:
        if _read_switch(key, node, name):
            return _type(flag)
        return _type(_OFF.get(flag, f"--no-{flag[2:]}"))
    try:
        BY_FLAG[flag].read(node.content, flag)
    except BadValueError as error:
        raise ConfigurationError(name, str(error).rstrip("."), node.line) from error
    return _type(flag, node.content)


def _type(flag: str, *values: str) -> Typed:
    return Typed(BY_FLAG[flag], flag, values)


def _explain_unknown(name: str, key: str, known: Collection[str], line: int | None) -> ConfigurationError:
    if (flag := f"--{key.replace('_', '-')}") in OF_HVDRUN:
        return ConfigurationError(name, f"{flag} belongs on the command line, and not in a file", line)
    nearest = get_close_matches(key, known, n=1) or get_close_matches(key.replace("_", "-"), known, n=1)
    advice = f"did you mean {nearest[0]}?" if nearest else "hvdrun --help all lists them."
    return ConfigurationError(name, f"there is no key {key!r}: {advice}", line)


def _read_command(node: Node, name: str) -> tuple[str, ...]:
    """The words of a command: a list, or a text that is split as a shell splits it."""
    wanted = "command takes a list of words or a text, as in command: python train.py"
    match node.content:
        case None:
            return ()
        case str(text):
            try:
                return tuple(shlex.split(text))
            except ValueError as error:
                raise ConfigurationError(name, f"{wanted}: {error}", node.line) from error
        case tuple(items):
            words = tuple(item.content for item in items if isinstance(item.content, str))
            if len(words) == len(items):
                return words
    raise ConfigurationError(name, wanted, node.line)


def _read_switch(key: str, node: Node, name: str) -> bool:
    word = ""
    if isinstance(node.content, str):
        word = node.content.lower()
    if word not in _TRUE | _FALSE:
        raise ConfigurationError(name, f"{key} takes true or false", node.line)
    return word in _TRUE


def _read_value(option: Option, node: Node, name: str, key: str) -> RawValues:
    """The value of an option, as from the command line."""
    if not option.takes_value:
        return _read_switch(key, node, name)
    content = node.content
    if option.dest == "hosts" and isinstance(content, tuple):
        return ",".join(str(_read_words(option, item, name, key)) for item in content)
    if not option.repeats:
        return _read_words(option, node, name, key)
    items: tuple[Node, ...] = (node,)
    if isinstance(content, tuple) and (option.words == 1 or all(isinstance(item.content, tuple) for item in content)):
        items = content
    return tuple(_read_words(option, item, name, key) for item in items)


def _read_words(option: Option, node: Node, name: str, key: str) -> str | tuple[str, ...]:
    """The words that would follow the flag once."""
    items: tuple[Node, ...] = ()
    if option.words == 1:
        items = (node,)
    elif isinstance(node.content, tuple):
        items = node.content
    words = tuple(item.content for item in items if isinstance(item.content, str))
    if len(words) != option.words or len(items) != option.words:
        raise ConfigurationError(name, f"{key} takes {option.wanted}", node.line)
    if option.words == 1:
        return words[0]
    return words


def write_configuration(path: Path, given: Mapping[str, RawValues], command: tuple[str, ...] = ()) -> None:
    """Write the options' values by dest and the user's command: TOML where the name ends with .toml, otherwise YAML.

    Raises:
        ConfigurationError: the file cannot be written, or its language cannot express a value.
    """
    names: dict[str, str] = {}
    for key, option in KEYS.items():
        names.setdefault(option.dest, key)

    table: dict[str, RawValues] = {}
    for option in OPTIONS:
        value = given.get(option.dest)
        if option.dest in names and option.dest not in _NOT_WRITTEN and value not in (None, ()):
            table[names[option.dest]] = value
    if command:
        table[COMMAND] = command

    if path.suffix == ".toml":
        text = render_toml(table, str(path))
    else:
        text = render_yaml(table)

    try:
        _write_private(path, text.encode())
    except OSError as error:
        raise ConfigurationError(str(path), f"it cannot be written: {error.strerror or error}") from error


def _write_private(path: Path, text: bytes) -> None:
    """Replace a file by one that only its owner may read: it may have values of variables. It is written as a whole.

    Raises:
        OSError: it cannot be written, or is a link or another special file, which would be replaced.
    """
    with suppress(FileNotFoundError):  # then the file is new
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(errno.EINVAL, "it is a link, a folder or a device; name a file")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "wb") as file:
            file.write(text)
        unfinished.rename(path)
    except OSError:
        with suppress(OSError):  # the unfinished file was not created
            unfinished.unlink()
        raise
