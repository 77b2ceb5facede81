"""The frame of a page: one template with its style inside, and the parts that pages share.

It names no file, font or script outside of itself, follows the reader's light or dark scheme, and lets wide tables
scroll in their own box; pictures keep a white ground in both schemes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --paper: #f6f6f3; --card: #fff; --ink: #1c1d1f; --soft: #63666b; --line: #e2e2dc;
  --free: #1d7a37; --cheap: #a36200; --not-yet: #b92c1b; --none: #5f6368;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16171a; --card: #1f2125; --ink: #ecedee; --soft: #a0a4ab; --line: #34373d;
    --free: #5cc47a; --cheap: #e5aa4a; --not-yet: #f08373; --none: #a8adb4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 16px/1.55 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: clamp(20px, 4vw, 56px) clamp(16px, 4vw, 40px); }
h1 { font-size: clamp(1.6rem, 4vw, 2.4rem); line-height: 1.15; letter-spacing: -.02em; margin: .15em 0 .3em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; letter-spacing: -.01em; margin: 2.6rem 0 .9rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
p { margin: 0 0 .8rem; max-width: 75ch; }
.soft, figcaption, .note { color: var(--soft); }
.eyebrow { color: var(--soft); font-size: .78rem; font-weight: 600; letter-spacing: .09em; text-transform: uppercase; }
.verdict { margin: 1.6rem 0 1rem; padding: 1.3rem 1.5rem; border-radius: 14px; border: 1px solid var(--line);
  border-left: 8px solid var(--tone); background: color-mix(in srgb, var(--tone) 9%, var(--card)); }
.verdict strong { display: block; font-size: clamp(1.4rem, 4vw, 1.9rem); line-height: 1.2; letter-spacing: -.02em;
  color: var(--tone); margin-bottom: .35rem; }
.verdict p { margin: 0; }
.free { --tone: var(--free); } .cheap, .unused { --tone: var(--cheap); }
.not-yet { --tone: var(--not-yet); } .none { --tone: var(--none); }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); }
.card, .box, figure { background: var(--card); border: 1px solid var(--line); border-radius: 14px; }
.card { padding: .9rem .85rem; min-width: 0; }
.card .value { font-size: 1.5rem; font-weight: 650; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.card .label, .card .note { font-size: .8rem; line-height: 1.4; }
.card .label { font-weight: 600; }
.figures { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.samples { grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); align-items: start; }
figure { margin: 0; padding: 1.1rem; }
figure img { display: block; width: 100%; height: auto; padding: 8px; border-radius: 8px; background: #fff; }
figcaption { font-size: .9rem; margin-top: .8rem; overflow-wrap: anywhere; }
.box { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .9rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
tr:first-child > * { border-top: 0; }
th { font-weight: 600; } thead th { color: var(--soft); font-size: .8rem; }
.text, .facts th, .facts td { text-align: left; }
.facts th { width: 1%; } .facts td { white-space: normal; overflow-wrap: anywhere; }
.box + .box { margin-top: 18px; }
.lines td { white-space: pre-line; vertical-align: top; } .lines td:last-child { overflow-wrap: anywhere; }
.advice { margin: 0 0 1.2rem; padding-left: 1.2rem; max-width: 80ch; } .advice li { margin-bottom: .35rem; }
.two { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  align-items: start; }
.two > div { min-width: 0; }
details.box + .box { margin-top: 10px; } summary { cursor: pointer; font-weight: 600; padding: .7rem 1rem; }
pre { margin: 0; padding: .2rem 1rem 1rem; overflow-x: auto;
  font: .82rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
@media (max-width: 480px) {
  .cards { grid-template-columns: 1fr 1fr; } .card:last-child:nth-child(odd) { grid-column: span 2; }
  figure { padding: .8rem; } figure img { padding: 4px; }
  .facts th { width: 42%; white-space: normal; overflow-wrap: anywhere; }
}
footer { margin-top: 3rem; font-size: .82rem; color: var(--soft); }
</style>
</head>
<body>
<main>
<header><div class="eyebrow">Castling $verb</div><h1>$headline</h1><p class="soft">$subtitle</p></header>
$body
<footer>Written by castling $verb from $sources.</footer>
</main>
</body>
</html>
""")


def card(label: str, value: str, note: str) -> str:
    """A number with its name above and a note below."""
    return (
        f'<div class="card"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
    )


def prose(text: str) -> str:
    """Escaped text in which no line ends between a number and its percent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int = 1) -> str:
    """A table in a box of its own; the first columns hold words, the others numbers."""

    def row_of(tag: str, cells: Sequence[str]) -> str:
        marks = [' class="text"' if index < num_text else "" for index in range(len(cells))]
        line = [f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True)]
        return f"<tr>{''.join(line)}</tr>"

    body = "".join(row_of("td", row) for row in rows)
    return f'<div class="box"><table><thead>{row_of("th", columns)}</thead><tbody>{body}</tbody></table></div>'


def facts_table(facts: Mapping[str, Any]) -> str:
    """Names and values, one in a line."""
    lines = "".join(f"<tr><th>{escape(key)}</th><td>{escape(str(value))}</td></tr>" for key, value in facts.items())
    return f'<table class="facts">{lines}</table>'
