"""What follows from many runs: the state of a cell, flakiness, what changed since the night before.

Pure functions over the records of ``mmrepro.failure.documents.ledger``, and the file that they are kept in.
"""
