"""The report on one or more runs.

``values`` collects the data, ``document`` arranges it as sections of text and tables, and ``page``
and ``markdown`` write that document. The JSON report is the data itself.
"""
