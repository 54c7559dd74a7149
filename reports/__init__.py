"""From an incident directory alone: Markdown, HTML, JSON, JUnit and the summary on a terminal.

A report can be made again at any time. Nothing here knows engines, scenarios or the runner.
"""

from mmrepro.reports.html import render_html
from mmrepro.reports.junit import render_junit
from mmrepro.reports.markdown import render_markdown
from mmrepro.reports.reading import load
from mmrepro.reports.terminal import print_summary
from mmrepro.reports.writing import HTML_FILE, MARKDOWN_FILE, render_json, write_reports

__all__ = [
    "HTML_FILE",
    "MARKDOWN_FILE",
    "load",
    "print_summary",
    "render_html",
    "render_json",
    "render_junit",
    "render_markdown",
    "write_reports",
]
