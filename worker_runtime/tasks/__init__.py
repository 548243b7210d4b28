"""How a worker runs the functions of `hvdrun.run()`, one after the other."""
