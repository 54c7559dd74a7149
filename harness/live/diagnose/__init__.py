"""What is wrong with a live server: found, looked at, compared with every known
failure.

:func:`mmrepro.live.diagnose.session.diagnose` is the whole; the parts: ``discover``
(from a URL to processes, engine, release and logs), ``collect`` (the probes, side by
side), ``general`` (what is wrong, from evidence alone), ``match`` (which known failure
it is), ``incident`` (for the report).

Nothing here writes to the target, signals it or calls an endpoint made for debugging.
"""
