"""What Horovod's packages for the frameworks have in common, as far as programs import it."""
