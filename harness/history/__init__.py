"""What follows from many runs: the state of a cell, flakiness, what changed since the
night before.

Pure functions over the records of the ledger (``failure/documents``), and the file that
keeps them."""
