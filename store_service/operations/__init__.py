"""The stories: one function, one transaction each. They decide; the floor below writes, the floor above speaks gRPC."""
