"""What click is told of the options."""

import click

from hvdrun.options import BY_FLAG, make_click_options


def make_command() -> click.Command:
    options = make_click_options({"help": lambda *_: None, "version": lambda *_: None})
    return click.Command("x", params=[*options, click.Argument(["command"], nargs=-1, type=click.UNPROCESSED)])


def test_click_gets_every_spelling() -> None:
    parameters = make_click_options({"help": lambda *_: None, "version": lambda *_: None})
    assert {flag for parameter in parameters for flag in parameter.opts} == set(BY_FLAG)
    assert all(isinstance(parameter, click.Option) for parameter in parameters)


def test_click_keeps_values_as_text_and_collects_what_repeats() -> None:
    words = ["-np", "2", "-mca", "pml", "ob1", "-x", "A=1", "-mca", "btl", "^openib", "-x", "B"]
    values = make_command().make_context("x", words).params
    assert values["size"] == "2"
    assert values["mca"] == (("pml", "ob1"), ("btl", "^openib"))
    assert values["forwarded"] == ("A=1", "B")
    assert values["hosts"] is None
