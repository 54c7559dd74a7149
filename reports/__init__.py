"""From a folder alone: Markdown, HTML, JSON, JUnit and the end screen, of every kind of document.

A kind composes blocks once; four renderers do the rest.
"""

from mmrepro.reports.documents import kind_of as kind_of, write_reports as write_reports
from mmrepro.reports.incident import load as load
