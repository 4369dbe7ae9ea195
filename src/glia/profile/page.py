"""The profile as one HTML page with its data, style and script inside."""

from __future__ import annotations

import json
from importlib.resources import files


def render_page(data: dict[str, object]) -> str:
    """Put `data` into the page; no text in it can end the element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    folder = files("glia.profile")
    page = folder.joinpath("page.html").read_text()
    style = folder.joinpath("page.css").read_text()
    script = folder.joinpath("page.js").read_text()
    return page.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).replace("DATA", text)
