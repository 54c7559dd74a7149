"""This computer: what it is, what its children get, where things are kept."""
