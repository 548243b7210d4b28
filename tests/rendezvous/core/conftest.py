"""Offers --rewrite, which writes the transcripts anew instead of comparing them."""

import os

import pytest

REWRITE_VARIABLE = "HVDRUN_REWRITE"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --rewrite; pytest knows it where this folder, or a file in it, is named on the command line."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help=f"write the transcripts of the core anew (from anywhere: {REWRITE_VARIABLE}=1)",
    )


@pytest.fixture(scope="session")
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether transcripts are to be written anew."""
    return pytestconfig.getoption("--rewrite", default=False) or os.environ.get(REWRITE_VARIABLE) == "1"
