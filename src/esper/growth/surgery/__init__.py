"""Surgery: editing a model's own layers so that it has more units or blocks and computes the same.

``layers`` says which tensors of a layer have an entry for each unit; ``tracing`` finds the places
of a model that can be widened, with ``heads`` and ``experts``, and ``checking`` that they compute
the same on any input; ``places`` groups those that repeat, ``blocks`` finds lists to deepen,
``edits`` carries out changes that can be undone, ``carrying`` lets optimizers follow and
``configuration`` configurations, ``operations`` does all or nothing, and ``changes`` has the two
functions that users call.
"""
