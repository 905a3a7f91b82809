"""The report on runs: what they are, what they came to, what the controller learned.

One document of words and tables is made from the views of each run, and written as HTML or
Markdown. The same values are the JSON.
"""
