"""The style sheet of the pages, and the additions for the page of an audit.

Colours are named once for light and once for dark; everything else uses the names.

An arm has the same colour, dash and marker everywhere, and a state the same colour, dash and sign,
so that no meaning depends on colour alone.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --bg: #f6f7f8; --card: #ffffff; --ink: #1b2127; --muted: #59636e; --line: #dde1e6; --soft: #eef1f4;
  --champion: #76808c; --prompt: #a8690a; --challenger: #0b6aa2;
  --good: #17713f; --bad: #b3261e; --open: #875a00; --good-bg: #e3f3ea; --bad-bg: #fbe7e5; --open-bg: #fbf0d9;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0f1317; --card: #171c22; --ink: #e5e9ee; --muted: #9ba6b2; --line: #2c343d; --soft: #1f262e;
    --champion: #98a3b0; --prompt: #e0a64a; --challenger: #58b4e8;
    --good: #5cc98f; --bad: #ff8d84; --open: #e3b455; --good-bg: #16301f; --bad-bg: #3a1a18; --open-bg: #332812;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 25px; line-height: 1.2; margin: 2px 0 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 4px; }
h3 { font-size: 14px; margin: 0; }
p { margin: 0 0 8px; }
code, pre { font-family: var(--mono); font-size: 13px; }
a { color: var(--challenger); }
.kicker { color: var(--muted); font-size: 12px; letter-spacing: 0.08em; text-transform: uppercase; }
.muted, .note { color: var(--muted); }
.note { font-size: 13px; margin-bottom: 12px; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-top: 16px; min-width: 0;
}
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; margin-top: 16px; }
.grid > :last-child:nth-child(odd) { grid-column: 1 / -1; }
.grid > :last-child:nth-child(odd) > svg { max-width: 640px; }
.grid > .card { margin-top: 0; }
header.card { margin-top: 0; }
.top { display: flex; gap: 16px; justify-content: space-between; align-items: flex-start; flex-wrap: wrap; }
.badge {
  display: inline-flex; align-items: center; gap: 8px; padding: 7px 14px; border-radius: 999px;
  font-weight: 650; font-size: 16px; white-space: nowrap;
}
.reason { font-size: 16px; margin: 14px 0 0; max-width: 78ch; overflow-wrap: anywhere; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.open { color: var(--open); }
.badge.good { background: var(--good-bg); }
.badge.bad { background: var(--bad-bg); }
.badge.open { background: var(--open-bg); }
.badge.off { background: var(--soft); color: var(--muted); }
dl.facts { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 12px 0 0; font-size: 13px; }
dl.facts div { display: flex; gap: 6px; min-width: 0; }
dl.facts dt { color: var(--muted); }
dl.facts dd { margin: 0; font-family: var(--mono); font-size: 12.5px; overflow-wrap: anywhere; }

ol.ladder {
  list-style: none; display: grid; grid-template-columns: repeat(9, minmax(0, 1fr)); gap: 0; margin: 8px 0 0;
  padding: 0;
}
ol.ladder li {
  position: relative; padding: 26px 8px 0 0; font-size: 12.5px; line-height: 1.35; min-width: 0;
  overflow-wrap: break-word;
}
ol.ladder li::before {
  content: ""; position: absolute; left: 0; right: 0; top: 8px; border-top: 2px solid var(--line);
}
ol.ladder li:last-child::before { right: auto; width: 12px; }
ol.ladder .dot {
  position: absolute; left: 0; top: 0; width: 18px; height: 18px; border-radius: 50%; display: grid;
  place-items: center; font-size: 11px; font-weight: 700; background: var(--good-bg); color: var(--good);
  box-shadow: 0 0 0 3px var(--card);
}
ol.ladder .dot.open { background: var(--open-bg); color: var(--open); }
ol.ladder .dot.bad { background: var(--bad-bg); color: var(--bad); }
ol.ladder .dot.off { background: var(--soft); color: var(--muted); }
ol.ladder li.off { color: var(--muted); }
ol.ladder b { display: block; font-size: 13px; }
ol.ladder li.off b { color: var(--muted); font-weight: 500; }

.narrow { max-width: 520px; margin: 14px auto 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--muted); font-weight: 500; font-size: 12.5px; white-space: nowrap; }
th[scope=row] { font-weight: 600; }
td.num, th.num { text-align: right; }
td.num:last-child, th.num:last-child { padding-right: 0; }
th:first-child, td:first-child { padding-left: 10px; }
td small, th small { display: block; color: var(--muted); font-weight: 400; font-size: 12px; }
tr.picked > * { background: linear-gradient(var(--soft), var(--soft)); }
.mark { display: inline-block; vertical-align: -1px; margin-right: 7px; }
.verdict { font-weight: 650; white-space: nowrap; }

.group { margin-top: 18px; }
.group h3 { border-bottom: 1px solid var(--line); padding-bottom: 4px; }
.group > .note { margin: 4px 0 0; }
ul.checks { list-style: none; margin: 0; padding: 0; }
ul.checks li {
  display: grid; grid-template-columns: 112px minmax(0, 1.7fr) minmax(220px, 1fr); gap: 4px 20px; align-items: start;
  padding: 12px 0; border-bottom: 1px solid var(--line); font-size: 14px; break-inside: avoid;
}
ul.checks li:last-child { border-bottom: 0; }
ul.checks p { margin: 2px 0 4px; overflow-wrap: anywhere; }
ul.checks small { display: block; color: var(--muted); font-size: 12.5px; overflow-wrap: anywhere; }
ul.checks .numbers { display: block; font-size: 13px; font-variant-numeric: tabular-nums; }
.unseen { border: 2px dashed var(--bad); border-radius: 8px; color: var(--bad); padding: 10px 14px; margin: 10px 0; }
.unseen ul { margin: 4px 0 0; padding-left: 20px; font-size: 14px; overflow-wrap: anywhere; }
ul.broken { margin: 0; padding-left: 18px; font-size: 13px; overflow-wrap: anywhere; }

svg + .note { margin: 8px 0 0; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg.mark { width: 12px; height: 12px; display: inline-block; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--muted); }
svg text.strong { fill: var(--ink); font-weight: 600; }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .rule { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 4 3; }
svg .threshold { stroke: var(--ink); stroke-width: 1.5; }
svg .zone { fill: var(--good); opacity: 0.13; }
.champion { --c: var(--champion); }
.champion_new_prompt { --c: var(--prompt); }
.challenger { --c: var(--challenger); }
svg .stroke { stroke: var(--c); fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
svg .champion_new_prompt .stroke { stroke-dasharray: 6 4; }
svg .champion .stroke { stroke-dasharray: 2 4; }
svg .fill { fill: var(--c); }
svg .hollow { fill: var(--card); stroke: var(--c); stroke-width: 1.6; }
svg .band { fill: var(--c); opacity: 0.16; }
svg .faint { stroke: var(--c); fill: none; stroke-width: 1; opacity: 0.4; }
svg text.own { fill: var(--c); font-weight: 600; }
svg .s-good { stroke: var(--good); fill: var(--good); }
svg .s-bad { stroke: var(--bad); fill: var(--bad); }
svg .s-open { stroke: var(--open); fill: var(--open); }
svg .s-off { stroke: var(--muted); fill: var(--muted); }
svg .cut { fill: none; stroke: var(--card); stroke-width: 2; }
svg .track { fill: var(--soft); }

.talk { margin: 0; padding: 0; list-style: none; font-size: 13px; }
.talk li {
  margin-top: 6px; border-left: 3px solid var(--line); padding: 1px 0 1px 10px; overflow-wrap: anywhere;
  white-space: pre-wrap;
}
.talk .who { display: block; color: var(--muted); font-size: 11.5px; white-space: normal; }
.talk .assistant { border-left-color: var(--challenger); }
.talk .tool { font-family: var(--mono); font-size: 12px; }
.talk .call { font-family: var(--mono); font-size: 12px; }
.nearly { border-bottom: 1px solid var(--line); padding: 8px 0 10px; }
.nearly:last-child { border-bottom: 0; }
.nearly .note { margin: 0; }
.nearly .grid { margin-top: 0; }
details summary { cursor: pointer; color: var(--muted); font-size: 13px; margin-top: 8px; }
.rollout-head {
  display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--muted); margin: 4px 0 8px;
}
pre.command {
  background: var(--soft); border-radius: 8px; padding: 12px 14px; margin: 8px 0; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
footer { color: var(--muted); font-size: 12.5px; margin-top: 20px; }
footer td { font-family: var(--mono); font-size: 12px; overflow-wrap: anywhere; }
footer table { font-size: 12.5px; }

@media (max-width: 760px) {
  .wide table { min-width: 700px; }
  main { padding: 14px 12px 32px; }
  .card { padding: 14px; }
  .grid { grid-template-columns: minmax(0, 1fr); }
  h1 { font-size: 21px; }
  ol.ladder { grid-template-columns: minmax(0, 1fr); }
  ol.ladder li { padding: 0 0 12px 30px; }
  ol.ladder li::before {
    left: 8px; right: auto; top: 0; bottom: 0; border-top: 0; border-left: 2px solid var(--line);
  }
  ol.ladder li:last-child::before { display: none; }
  ul.checks li { grid-template-columns: minmax(0, 1fr); }
}
@media print {
  body { background: #fff; }
  .card { break-inside: avoid; }
  details > * { display: block; }
  .group details::details-content, .group + details::details-content { content-visibility: visible; block-size: auto; }
}
"""

AUDIT = """
html { scroll-padding-top: 20vh; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--challenger); outline-offset: 2px; border-radius: 4px;
}
.sign { font-weight: 700; display: inline-block; min-width: 1.2em; text-align: center; margin-right: 6px; }
.off, .sign.off { color: var(--muted); }
.aloud { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
ul.answer { margin: 10px 0 0; padding-left: 20px; overflow-wrap: anywhere; }
ul.states {
  list-style: none; display: flex; flex-wrap: wrap; gap: 8px; margin: 14px 0 0; padding: 0; font-size: 13.5px;
}
ul.states li { border: 1px solid var(--line); border-radius: 999px; padding: 2px 12px 2px 8px; white-space: nowrap; }
ul.states li.none { opacity: 0.55; }
.broken-card { border-color: var(--bad); border-left-width: 5px; }
ul.found { list-style: none; margin: 0; padding: 0; }
ul.found li, .links li { display: flex; align-items: baseline; overflow-wrap: anywhere; }
ul.found li { padding: 8px 0; border-bottom: 1px solid var(--line); font-size: 14px; }
ul.found li:last-child { border-bottom: 0; padding-bottom: 0; }
ul.found li > span, .links li > span { min-width: 0; }
ul.found li > span:first-child, .links li > span:first-child { flex: none; }
.there { white-space: nowrap; font-size: 13px; }
:target { background: var(--open-bg); box-shadow: 0 0 0 6px var(--open-bg); border-radius: 4px; }

ul.legend {
  list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 12px; padding: 0; font-size: 13px;
}
ul.legend b { color: var(--s); }
svg.sample { display: inline-block; width: 30px; height: 16px; vertical-align: -3px; margin-right: 6px; }
.is-verified { --s: var(--good); --w: var(--champion); }
.is-not-verifiable { --s: var(--open); --w: var(--open); }
.is-erased { --s: var(--muted); --w: var(--muted); }
.is-altered, .is-missing, .is-doubtful { --s: var(--bad); --w: var(--bad); }
.is-root { --s: var(--muted); }
svg .way { fill: none; stroke: var(--w); stroke-width: 1.5; stroke-linejoin: round; }
svg .is-not-verifiable .way, svg .way.is-not-verifiable { stroke-dasharray: 6 4; }
svg .is-erased .way, svg .way.is-erased { stroke-dasharray: 1.5 4; stroke-linecap: round; stroke-width: 2; }
svg .is-altered .way, svg .way.is-altered { stroke-width: 3; }
svg .is-missing .way, svg .way.is-missing { stroke-width: 3; stroke-dasharray: 10 5; }
svg .is-doubtful .way, svg .way.is-doubtful { stroke-width: 3; stroke-dasharray: 9 4 2 4; }
svg .head { fill: var(--w); }
svg .reach { fill: none; stroke: transparent; stroke-width: 12; }
svg .lane { fill: var(--soft); opacity: 0.6; }
svg text.lane-name { font-size: 10.5px; letter-spacing: 0.09em; }
svg.lineage a { text-decoration: none; color: inherit; outline: none; }
svg .box > rect { fill: var(--card); stroke: var(--s); stroke-width: 1.3; }
svg .box > text { font-size: 12.5px; }
svg .box > text.strong { font-weight: 500; }
svg .box > text.kind { font-size: 11px; }
svg .around { fill: var(--card); stroke: var(--line); }
svg .box.is-not-verifiable > rect { stroke-dasharray: 5 3; }
svg .box.is-erased > rect { stroke-dasharray: 2 3; }
svg .box.is-altered > rect, svg .box.is-missing > rect, svg .box.is-doubtful > rect {
  fill: var(--bad-bg); stroke-width: 2.4;
}
svg .asked > rect { stroke-width: 3; }
svg .chip rect { fill: var(--soft); stroke: transparent; }
svg .chip text { font-size: 11px; fill: var(--ink); }
svg .chip.is-not-verifiable rect { stroke: var(--s); stroke-dasharray: 5 3; }
svg .chip.is-erased rect { stroke: var(--s); stroke-dasharray: 2 3; }
svg .chip.is-altered rect, svg .chip.is-missing rect, svg .chip.is-doubtful rect {
  fill: var(--bad-bg); stroke: var(--s); stroke-width: 2;
}
svg .dot circle { fill: var(--card); stroke: var(--s); stroke-width: 1.4; }
svg .dot text { fill: var(--s); font-size: 12px; font-weight: 700; }
svg .dot.small text { font-size: 10px; }
svg .flag rect { fill: var(--bad); }
svg .flag text { fill: var(--card); font-size: 11px; font-weight: 700; }
svg.lineage a:hover > rect { stroke: var(--challenger); }
svg.lineage a:focus-visible > rect { stroke: var(--challenger); stroke-width: 3.5; }
svg.lineage a:focus-visible circle { stroke: var(--challenger); stroke-width: 3; }
svg .box:target > rect, svg g:target > .box > rect, svg .chip:target rect {
  stroke: var(--challenger); stroke-width: 3.5;
}

.node { padding: 12px 0; border-bottom: 1px solid var(--line); }
.node:last-child { border-bottom: 0; padding-bottom: 0; }
.node h3 { font-weight: 600; overflow-wrap: anywhere; }
.node h3 .muted { font-weight: 400; }
.node h4 { color: var(--muted); font-size: 12px; font-weight: 500; margin: 0; }
.node dl.facts { margin: 4px 0 0 26px; }
.node .links { display: grid; grid-template-columns: 76px minmax(0, 1fr); gap: 0 10px; margin: 6px 0 0 26px; }
.node .links ul { list-style: none; margin: 0; padding: 0; font-size: 13.5px; }
.node .links h4 { padding-top: 2px; }
.node .links details { grid-column: 2; }
.node .links li { padding: 1px 0; }
.node .links small { display: block; color: var(--muted); font-size: 12.5px; }
.pill {
  background: var(--soft); border-radius: 999px; font-size: 11.5px; font-weight: 500; margin-left: 8px;
  padding: 1px 9px;
}
details.chapter, details.files { border-bottom: 1px solid var(--line); padding: 4px 0 8px; }
details.chapter:last-child, details.files:last-child { border-bottom: 0; }
details.files { margin-left: 26px; }
details.chapter > summary b, details.files > summary b { color: var(--ink); }
details.chapter > .node { margin-left: 16px; }

@media (max-width: 760px) {
  .node .links { grid-template-columns: minmax(0, 1fr); margin-left: 0; }
  .node .links details { grid-column: 1; }
  .node dl.facts { margin-left: 0; }
  details.files, details.chapter > .node { margin-left: 8px; }
}
@media print { .scroll { overflow: visible; } svg.lineage { min-width: 0 !important; } }
"""
