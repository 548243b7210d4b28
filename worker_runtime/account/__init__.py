"""The account of this process: what its time is spent on.

The other rooms tell it where the program blocks in them, and where a step ends. They know nothing of files.
"""

from worker_runtime.account.account import Account
from worker_runtime.rendezvous import Part as Part

ACCOUNT = Account()
