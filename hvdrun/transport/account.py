"""The account that runs this process. In a container the password database may not have it."""

import getpass
import os
import pwd
from pathlib import Path

_NO_HOME = Path("/nonexistent")  # as Debian calls the home of an account that has none


def name_user() -> str:
    """The user's name as ssh has it: from the password database, else from $USER, else the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the password database lacks this user
        pass
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the version of Python decides which
        return str(os.getuid())


def find_home() -> Path:
    """The user's home folder; one that does not exist if the account has none."""
    try:
        return Path.home()
    except RuntimeError:
        return _NO_HOME
