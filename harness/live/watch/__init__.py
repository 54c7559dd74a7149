"""A deep health check: a real small inference at an interval, and a diagnosis when it
fails."""
