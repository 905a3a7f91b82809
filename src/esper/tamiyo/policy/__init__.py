"""Observations, action masks and the policy network of the learned controller."""
