"""How the lab's own tests call ssh."""

LOGIN = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30")
KNOCK = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=1")  # where no answer is expected
