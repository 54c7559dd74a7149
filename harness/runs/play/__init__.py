"""A case on a fresh server: the requests of the case, by their barriers, and what came
of them."""
