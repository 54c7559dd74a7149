"""From an incident directory alone: Markdown, HTML, JSON, JUnit and the summary on a terminal.

A report can be made again at any time. Nothing here knows engines, scenarios or the runner.
"""

from mmrepro.reports.html import render_html as render_html
from mmrepro.reports.junit import render_junit as render_junit
from mmrepro.reports.markdown import render_markdown as render_markdown
from mmrepro.reports.reading import load as load
from mmrepro.reports.terminal import print_summary as print_summary
from mmrepro.reports.writing import (
    HTML_FILE as HTML_FILE,
    MARKDOWN_FILE as MARKDOWN_FILE,
    render_json as render_json,
    write_reports as write_reports,
)
