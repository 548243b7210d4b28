"""The gradients of the collectives: one autograd function over each collective and its adjoint."""
