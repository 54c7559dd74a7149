"""What is replayed: a server and the requests that are played on it, and what came of
one play."""
