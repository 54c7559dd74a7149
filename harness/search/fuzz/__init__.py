"""Failures before users meet them: episodes of generated requests, judged and
pursued."""
