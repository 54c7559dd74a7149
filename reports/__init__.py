"""From a folder alone: Markdown, HTML, JSON, JUnit and the end screen, of every kind of document.

A kind composes blocks once; four renderers do the rest.
"""
