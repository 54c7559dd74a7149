"""From evidence to truth, and all that is written of a run: ``signature``,
``documents``."""
