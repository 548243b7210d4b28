"""Every collective, once, on torch tensors; the framework packages only translate arrays.

In come the tensors of one call, the ranks, and how to combine. Out comes an `Operation`: made with its tensors, it says
what is wrong with the call on this rank alone (ValueError) before anything is asked. What the ranks must agree on
stands in its signature, which the sequencer compares. It is started in a torch group, and makes the result.

What gloo does wrong or not at all is made right here. Tensors that are not contiguous go through a copy, since gloo
would overwrite their neighbours; dtypes that gloo does not know travel as others or as bytes; what is uneven is built
from what gloo does well. An operation can be started again in another group after a failure, unless it works in place.
The table of what may be done with which dtype stands in `dtypes`.

Threads: none. An operation is made in the caller's thread, started in the one that drives the connection to the
sequencer, and finished in the one that waits for it.
"""
