"""An operation from its submission to its result."""
