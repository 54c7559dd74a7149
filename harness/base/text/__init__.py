"""Foreign text made safe to show and private enough to keep."""
