"""What hvdrun requires to run. Pythons that are too old for it must be able to parse this file, down to 3.4."""

_SYSTEMS = {"darwin": "macOS", "win32": "Windows"}


def find_obstacle(version: "tuple[int, ...]", platform: str, executable: str) -> str:
    """A sentence that says why hvdrun cannot run; empty when it can.

    version: the version of Python. platform: sys.platform. executable: the interpreter's file.
    """
    if version < (3, 11):
        found = executable + " is Python " + ".".join(map(str, version))
        return "Python 3.11 or newer is needed, but " + found + ": start hvdrun with a newer one."
    if platform != "linux":
        system = _SYSTEMS.get(platform, platform)
        return "Linux is needed, but this is " + system + ": start hvdrun, and its workers, on Linux machines."
    return ""
