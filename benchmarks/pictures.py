"""The drawings of a page as files of their own."""

import re

from bertkit.report.page import render_page

COLORS = {"main": "#2563eb", "second": "#c2570c", "third": "#15803d"}


def svg_files(page: str) -> list[str]:
    """A page's drawings, each with the style that it needs; a chart's keys are written into it."""
    opened = '<svg xmlns="http://www.w3.org/2000/svg" '
    # A file of its own is shown on white: the page's dark colors stay out.
    style = f"<style>{re.sub(r'@media[^{]*{([^{}]*{[^{}]*})*[^{}]*}', '', render_page('report.css'))}</style>"
    found = []
    for caption, body in re.findall(r"<figcaption>(.*?)</figcaption>(.*?)</figure>", page, re.DOTALL):
        keys = re.findall(r'(?<=class="key )[^<]+', caption)
        written = "".join(_key_text(key, row) for row, key in enumerate(keys[::-1]))
        for svg in re.findall(r"<svg .*?</svg>", body, re.DOTALL):
            styled = svg.replace("<svg ", opened, 1).replace(">", f">{style}", 1)
            found.append(styled.replace("</svg>", f"{written}</svg>"))
    return found


def _key_text(key: str, row: int) -> str:
    """`main">probe` as a line of text in its color, at the lower left of a chart, where curves seldom are."""
    kind, _, text = key.partition('">')
    return f'<text x="60" y="{174 - 13 * row}" style="fill:{COLORS.get(kind, "#93b0f0")}">{text}</text>'
