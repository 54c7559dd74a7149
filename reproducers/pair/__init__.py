"""Prefill and decode in two servers of one engine, behind one address."""
