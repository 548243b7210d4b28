"""The account that runs this process. In a container the password database may not have it."""

import getpass
import os
import pwd
from pathlib import Path

_NO_HOME = Path("/nonexistent")  # as Debian calls the home of an account that has none


def has_account() -> bool:
    """The password database has this process's user; ssh needs that."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def name_user() -> str:
    """The user's name as ssh has it: from the password database, else from $USER, else the number."""
    if has_account():
        return pwd.getpwuid(os.getuid()).pw_name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the version of Python decides which
        return str(os.getuid())


def find_home() -> Path:
    """The user's home folder as ssh has it: from the password database, else from $HOME.

    It does not exist if the account has none.
    """
    if has_account():
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    try:
        return Path.home()
    except RuntimeError:
        return _NO_HOME
