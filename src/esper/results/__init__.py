"""The results of controllers on the same hosts: their comparison, in numbers, words and files."""
