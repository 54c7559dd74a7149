"""The report as one self-contained HTML file: no script, nothing fetched, all text escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from mmrepro.base import units
from mmrepro.incident import Incident
from mmrepro.reports import gfm, timeline, view, words
from mmrepro.text.sanitize import clip, one_line, plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render_html(incident: Incident) -> str:
    """The whole report; long parts are folded. Any optional part of the incident may be missing."""
    from mmrepro.reports.diagnosis import class_title, effect_sentence
    from mmrepro.reports.exhibits import exhibits
    from mmrepro.reports.picture import picture

    entries = timeline.lines(incident)
    return page(
        "report.html.j2",
        incident=incident,
        head=view.headline(incident),
        title=view.title(incident),
        note=view.partial_note(incident),
        summary=view.summary(incident),
        count=view.condition_count(incident),
        picture=picture(incident),
        exhibits=exhibits(incident),
        timeline=entries[:2000],
        loud=[e for e in entries if e.level != "info"],
        groups=view.request_groups(incident.evidence.requests)[:500],
        environment=view.environment(incident),
        footprint=view.footprint(incident),
        left_behind=view.left_behind(incident),
        longest_stage=max(filter(words.sane, incident.stages.values()), default=0.0),
        fidelity=words.FIDELITY_WORDS[incident.fidelity],
        view=view,
        words=words,
        diagnosis=incident.diagnosis,
        class_title=class_title,
        effect=effect_sentence(incident.diagnosis) if incident.diagnosis else "",
    )


def page(template: str, more_style: str = "", **values: object) -> str:
    """The template with the style sheet in it; its policy lets in that one alone, by its hash."""
    style = "\n".join(filter(None, (style_sheet(), more_style)))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        make_environment().get_template(template).render(style=style, style_hash=digest, **values)
    )


@lru_cache(maxsize=1)
def make_environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def safe(value: object) -> object:
        # Every value that a template prints passes here: control characters never get through.
        if isinstance(value, Markup) or not isinstance(value, str):
            return value
        return plain(value)

    environment = Environment(
        loader=PackageLoader("mmrepro.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=safe,
    )
    environment.filters.update(
        duration=units.duration,
        span=words.span,
        href=gfm.evidence_href,
        web=gfm.is_web_address,
        clip=clip,
        line=one_line,
        prose=_prose,
    )
    return environment


def _prose(value: str) -> Markup:
    """Names between single backticks as code, all else escaped."""
    from markupsafe import Markup, escape

    pieces = plain(value).split("`")
    if len(pieces) % 2 == 0:
        return escape(plain(value))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    )


@lru_cache(maxsize=1)
def style_sheet() -> str:
    """The style sheet, exactly as it stands between the tags: its hash goes into the policy."""
    loader = make_environment().loader
    assert loader is not None
    return loader.get_source(make_environment(), "style.css")[0].strip()
