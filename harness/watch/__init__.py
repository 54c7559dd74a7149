"""A deep health check: a real small inference at an interval, and a diagnosis when it fails."""

from mmrepro.watch.checker import Checker
from mmrepro.watch.health import Check, CheckOutcome, Health
from mmrepro.watch.loop import Watch

__all__ = ["Check", "CheckOutcome", "Checker", "Health", "Watch"]
