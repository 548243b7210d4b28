"""`hvdrun`, and `python -m hvdrun`. Pythons that are too old for hvdrun must be able to parse this file."""

import signal
import sys

from hvdrun.startup.requirements import find_obstacle

_CANNOT_LAUNCH = 125


def main() -> int:
    """Run hvdrun and return its exit code; a Ctrl-C while it is still being imported ends it without a traceback."""
    obstacle = find_obstacle(sys.version_info[:3], sys.platform, sys.executable)
    if obstacle:
        sys.stderr.write("hvdrun: " + obstacle + "\n")
        return _CANNOT_LAUNCH
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hvdrun.startup.early import keep_notice, prefer_own_packages  # noqa: PLC0415 - an old Python cannot import it

    keep_notice()
    from hvdrun.startup.container_init import leave_init_behind  # noqa: PLC0415 - an old Python cannot import it

    leave_init_behind()
    prefer_own_packages()
    from hvdrun.startup.process import prepare_process  # noqa: PLC0415 - from here on imports are our own

    prepare_process()
    from hvdrun.cli import program as cli  # noqa: PLC0415 - from here on imports are our own

    return cli.main()


def run() -> None:
    """Run hvdrun and end this process."""
    code = main()
    from hvdrun.startup.process import end_process  # noqa: PLC0415 - after the check above

    end_process(code)


if __name__ == "__main__":
    run()
