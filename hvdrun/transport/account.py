"""The account that runs this process; a container may run it under a number that no password database knows."""

import getpass
import os
import pwd
from pathlib import Path

_NO_HOME = Path("/nonexistent")  # as Debian calls the home of an account that has none


def name_user() -> str:
    """The user, as ssh names them: by the password database, else by $USER and its like, else the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        pass
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a Python's version decides which
        return str(os.getuid())


def find_home() -> Path:
    """The user's home folder; one that does not exist where the account has none."""
    try:
        return Path.home()
    except RuntimeError:
        return _NO_HOME
