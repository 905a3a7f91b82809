"""Benchmarking controllers: arms, tuning, model cards."""
