"""The ways of training hosts that an evaluation compares, one file for each family."""
