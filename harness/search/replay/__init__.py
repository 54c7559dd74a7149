"""From recorded traffic to findings: play, notice, confirm, shrink, name."""
