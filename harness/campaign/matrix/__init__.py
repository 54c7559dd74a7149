"""Many cells: which ones, in what order, each a `mmrepro run` of its own, within time
and disk."""
