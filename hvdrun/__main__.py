"""`hvdrun`, and `python -m hvdrun`."""

import signal
import sys


def main() -> int:
    """Run hvdrun and return its exit code; a Ctrl-C while it is still being imported ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hvdrun.search_path import prefer_own_packages  # noqa: PLC0415 - see above

    prefer_own_packages()
    from hvdrun.process_start import prepare_process  # noqa: PLC0415 - only now what it imports is surely ours

    prepare_process()
    from hvdrun import cli  # noqa: PLC0415 - see above

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
