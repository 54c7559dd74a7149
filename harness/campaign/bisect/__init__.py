"""The release or commit that a failure came in with, and the one that it went with."""
