"""The file of hvdrun's own log: its form, and the error of one that cannot be written."""

from enum import StrEnum
from pathlib import Path

from hvdrun.errors import LaunchError


class LogFormat(StrEnum):
    """The form of a record: lines for a person, or one JSON object in a line."""

    TEXT = "text"
    JSON = "json"


class LogFileError(LaunchError):
    """The file of --log-file cannot be opened.

    Cause: Its folder does not exist, you may not write there, it is a folder, or another user has put a link there.
    Remedy: Name a file in a folder that exists and is yours.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{str(path)!r} of --log-file cannot be written: {reason}; name another file.")
