"""The account of this process: what its time is spent on.

The other packages tell it where the program blocks in them, and where a step ends. They know nothing of its file.
"""

from worker_runtime.account.account import Account
from worker_runtime.rendezvous import Part as Part

ACCOUNT = Account()
