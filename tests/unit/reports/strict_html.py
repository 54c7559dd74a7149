"""Reading a report as strictly as no browser does."""

import re
from html.parser import HTMLParser


class Html(HTMLParser):
    """Every tag is closed in order; no script but an inline one, no style attribute,
    nothing fetched, no handler, no comment."""

    EMPTY = {"meta", "br", "rect", "line", "circle", "path"}

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.nodes: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("img", "iframe", "object", "link", "form")
        assert tag != "script" or not attrs
        given = {name: value or "" for name, value in attrs}
        for name, value in given.items():
            assert not name.startswith("on")
            assert name not in ("style", "src")
            assert name != "href" or not re.match(r"(?!https:)[a-z]+:", value)
        self.nodes.append((tag, given))
        if tag not in self.EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self._open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def shape(self) -> list[tuple[str, list[str]]]:
        """Each tag with its attributes' names; prose may hold code between
        backticks."""
        return [(tag, sorted(given)) for tag, given in self.nodes if tag != "code"]

    def all(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [given[name] for _, given in self.nodes if name in given]
