"""Which addresses the hosts of a job use among each other: found, probed on real sockets, and chosen by proof."""
