"""What can be wrong with a configuration file."""

from hvdrun.errors import UsageError


class ConfigurationError(UsageError):
    """A configuration file cannot be read or written, or says what cannot be; `fault` is a sentence, or a part of one.

    name: of the file. line: where in it, counted from 1; None where that is not known.
    """

    def __init__(self, name: str, fault: str, line: int | None = None) -> None:
        where = name if line is None else f"{name}, line {line}"
        super().__init__(f"{where}: {fault.rstrip('.')}{'' if fault.endswith('?') else '.'}")
        self.line = line
