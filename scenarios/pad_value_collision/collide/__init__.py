"""Two different pictures that an engine takes for one: the arithmetic, the search, the
result. The folder is a script as well: see ``__main__``.

``place_for("sglang", "0.5.6")`` names an environment, ``find_pair(place, …)`` searches
in it. Some imports are heavy; ``mmrepro.failure.documents.model`` alone is not."""
