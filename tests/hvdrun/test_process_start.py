"""What a program of hvdrun sets at its start."""

from tests.hvdrun.interpreter import run_python

PREPARES = """
import resource, signal
from hvdrun.process_start import prepare_process

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
prepare_process()
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(*(int(signal.getsignal(number)) for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT)))
print(*set(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""


def test_what_a_careless_parent_left_is_taken_back_and_what_nohup_wants_stays() -> None:
    mask, handlers, limits = run_python("-c", PREPARES).stdout.splitlines()
    assert (mask, handlers, len(limits.split())) == ("set()", "0 1 1", 1)
