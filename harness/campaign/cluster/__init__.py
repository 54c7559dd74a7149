"""A night on the machines of a Ray cluster.

Only ``machines`` imports Ray, and only when a night is run there.
"""
