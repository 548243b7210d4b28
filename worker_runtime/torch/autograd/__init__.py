"""The gradients of the collectives, and with them what is differentiable; one file for each kind."""
