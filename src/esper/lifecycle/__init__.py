"""The rules of growth as data: stages, actions, causal masks and legality."""
