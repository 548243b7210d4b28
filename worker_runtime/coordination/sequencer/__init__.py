"""The process that fixes one order of the collectives of a generation: the rules of `core.ordering` behind sockets."""
