"""Many cells: which ones, in what order, each as a `mmrepro run` of its own, within time and disk.

``trial`` is one run in a process of its own; what follows from the runs is in ``mmrepro.history``.
"""
