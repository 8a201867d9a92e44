"""The looks of the page: one sheet, light and dark."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f7f7f5; --card: #ffffff; --ink: #1d232b; --soft: #5b6672; --rule: #dfe2e6; --bar: #2f6f9f;
  --severe: #b3261e; --severe-ground: #fdecea; --warning: #8a5a00; --warning-ground: #fff4dc;
  --note: #2b5f8a; --note-ground: #e9f2fa; --good: #1f6f43; --good-ground: #e6f4ec;
  --masked: #d9e8ff; --masked-ink: #123f7a; --kept: #dff3e4; --kept-ink: #17552f; --replaced: #ffe3d3;
  --replaced-ink: #8a3200;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --card: #1d2127; --ink: #e4e7eb; --soft: #9aa5b1; --rule: #343b44; --bar: #6db0e0;
    --severe: #ff9d94; --severe-ground: #3b1d1b; --warning: #f2c46d; --warning-ground: #362a12;
    --note: #93c5f1; --note-ground: #182a3a; --good: #8ed6a9; --good-ground: #16301f;
    --masked: #1f3a5f; --masked-ink: #bcd8ff; --kept: #1d3d28; --kept-ink: #b5e8c6; --replaced: #4a2a18;
    --replaced-ink: #ffc9a8;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 32px 24px 64px; max-width: 1120px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 36px 0 12px; }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
p { margin: 0 0 6px; }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }
.soft { color: var(--soft); }
.none { color: var(--soft); padding: 24px 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0 0; }
.fact, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px 14px; }
.fact b { display: block; font-size: 22px; font-weight: 600; letter-spacing: -0.01em; }
.fact span { color: var(--soft); font-size: 13px; }
.finding { border-left: 4px solid; border-radius: 6px; padding: 10px 14px; margin: 0 0 8px; }
.finding .tag { font-size: 11px; font-weight: 700; letter-spacing: 0.06em; text-transform: uppercase; }
.finding p { margin: 2px 0; overflow-wrap: anywhere; }
.severe { border-color: var(--severe); background: var(--severe-ground); }
.severe .tag { color: var(--severe); }
.warning { border-color: var(--warning); background: var(--warning-ground); }
.warning .tag { color: var(--warning); }
.note { border-color: var(--note); background: var(--note-ground); }
.note .tag { color: var(--note); }
.good { border-color: var(--good); background: var(--good-ground); }
.good .tag { color: var(--good); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 14px; }
svg { display: block; width: 100%; height: auto; }
svg .bar { fill: var(--bar); }
svg .line { fill: none; stroke: var(--bar); stroke-width: 2; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .mark { stroke: var(--severe); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .label { font-size: 12px; }
svg .mark-label { fill: var(--severe); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
td.text, th.text { text-align: left; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; }
tr:last-child td { border-bottom: 0; }
.wide { overflow-x: auto; }
.sample { line-height: 1.9; margin: 0 0 10px; overflow-wrap: anywhere; }
.sample .head { color: var(--soft); font-size: 12px; line-height: 1.4; margin-bottom: 4px; }
.special { color: var(--soft); font-size: 12px; font-weight: 600; }
.masked, .kept, .replaced { border-radius: 4px; padding: 1px 4px; white-space: nowrap; }
.masked { background: var(--masked); color: var(--masked-ink); }
.kept { background: var(--kept); color: var(--kept-ink); }
.replaced { background: var(--replaced); color: var(--replaced-ink); }
.key span { margin-right: 10px; }
s { opacity: 0.75; }
"""
