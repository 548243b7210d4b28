"""The jobs of this user on this machine: how they are found, and those that outlive their terminal."""
