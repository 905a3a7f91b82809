"""Controllers: rule-based baselines and the learned policy."""
