"""Benchmarking controllers: arms, tuning, statistics, claims."""
