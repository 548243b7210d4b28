"""The live line of a start that takes long, on a real terminal: there while it is wanted, and gone without a trace."""

import re

from tests.system.launcher import Launcher
from tests.system.scripts import WAIT_FOR
from tests.system.terminal import CTRL_Z, Terminal, draw
from tests.waiting import wait_until

SHOWN = r"hosts connected (\d)/1, workers joined (\d)/2, \d\.\d s"

# Says nothing until the test lets it, and never joins.
PLAIN = f"""{WAIT_FOR}
wait_for("go")
print("hello from", os.environ["HOROVOD_RANK"], flush=True)
time.sleep(0.6)
"""


def open_terminal(hvdrun: Launcher, *words: str) -> Terminal:
    command = hvdrun.command("-np", "2", *words)
    return Terminal(*command, directory=hvdrun.directory, environment=hvdrun.environment())


def is_shown(line: str) -> bool:
    return re.fullmatch(f"hvdrun: {SHOWN}", line) is not None


def test_the_first_output_of_a_plain_program_ends_the_start_line(hvdrun: Launcher) -> None:
    hvdrun.write("program.py", PLAIN)
    with open_terminal(hvdrun, "python", "program.py") as terminal:
        terminal.wait_for(SHOWN, 60, count=3)
        wait_until(lambda: [*map(is_shown, terminal.screen())] == [True])  # the start line is drawn anew meanwhile
        hvdrun.write("go", "")
        assert terminal.wait(60) == 0
        assert sorted(terminal.screen()) == ["[0] hello from 0", "[1] hello from 1"]
        after = terminal.text()
        assert "joined" not in after[after.index("hello") :]


def test_ctrl_z_erases_the_start_line(hvdrun: Launcher) -> None:
    hvdrun.write("program.py", PLAIN)
    with open_terminal(hvdrun, "python", "program.py") as terminal:
        terminal.wait_for(SHOWN, 60)
        terminal.press(CTRL_Z)
        wait_until(lambda: terminal.screen() == [])
        hvdrun.write("go", "")
        assert terminal.wait(60) == 0


def test_the_drawn_screen_is_what_a_terminal_shows() -> None:
    assert draw("one\r\ntwo\rT\x1b[31mW\x1b[0m\r\n") == ["one", "TWo"]
    assert draw("long line\r\x1b[Kx") == ["x"]
    assert draw("gone\r\x1b[K") == []
