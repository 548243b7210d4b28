"""The wire contract: rendezvous.proto and the code generated from it (`make protos`)."""
