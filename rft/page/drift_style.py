"""The style sheet for drift; the general style sheet names the colors."""

from __future__ import annotations

DRIFT = """
a:focus-visible, summary:focus-visible {
  outline: 2px solid var(--challenger); outline-offset: 2px; border-radius: 4px;
}
svg .chance { fill: var(--muted); opacity: 0.28; }
svg .side.reference {
  fill: var(--card); stroke: var(--champion); stroke-width: 1.4; vector-effect: non-scaling-stroke;
}
svg .side.window { fill: var(--challenger); }
svg .cross { fill: none; stroke-width: 2.6; stroke-linecap: round; }
svg .beyond { fill: none; stroke-width: 2; }
svg .course { fill: none; stroke: var(--champion); stroke-width: 1.6; stroke-linejoin: round; }
svg .above rect { fill: var(--bad); opacity: 0.09; }
svg.pair { height: 18px; }
svg.wide-mark { width: 22px; height: 14px; vertical-align: -2px; }
p.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin-bottom: 4px; }
.drift-part { margin-top: 20px; }
.drift-part h3 { font-size: 15px; border-bottom: 1px solid var(--line); padding-bottom: 4px; }
.drift-part h4 { font-size: 13.5px; font-weight: 600; margin: 12px 0 2px; overflow-wrap: anywhere; }
.drift-part > .note { margin: 4px 0 0; }
.advice { font-size: 16px; margin: 8px 0 4px; max-width: 78ch; overflow-wrap: anywhere; }
.because { margin-top: 4px; max-width: 90ch; overflow-wrap: anywhere; }
details.feature { border-bottom: 1px solid var(--line); padding: 6px 0; }
details.feature:last-child { border-bottom: 0; }
details.feature > summary, .feature-line {
  display: grid; grid-template-columns: 22px minmax(0, 1.25fr) minmax(120px, 1fr) minmax(0, 180px); gap: 2px 14px;
  align-items: center; margin: 0; color: var(--ink); font-size: 14px; list-style: none;
}
details.feature > summary::-webkit-details-marker { display: none; }
details.feature > summary::before { content: "▸"; color: var(--muted); }
details.feature[open] > summary::before { content: "▾"; }
.feature-line::before { content: ""; }
summary .says, .feature-line .says { font-size: 13px; font-variant-numeric: tabular-nums; }
.name code { color: var(--muted); font-size: 12px; margin-left: 6px; overflow-wrap: anywhere; }
.feature-body {
  display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.2fr); gap: 6px 28px; padding: 6px 0 10px 36px;
  font-size: 13.5px; overflow-wrap: anywhere;
}
.feature-body .alone { grid-column: 1 / -1; }
.feature-body p { margin: 0 0 6px; }
.feature-body small { color: var(--muted); font-size: 12.5px; }
table.pairs { font-size: 12.5px; table-layout: fixed; }
table.pairs th, table.pairs td { padding: 2px 8px 2px 0; border: 0; vertical-align: middle; }
table.pairs th:first-child { padding-left: 0; width: 34%; font-weight: 400; overflow-wrap: anywhere; }
table.pairs thead th { font-size: 11.5px; padding-bottom: 4px; }
table.pairs th.num { width: 68px; }
table.pairs td.num:last-child { font-weight: 600; }
ul.carriers { list-style: none; margin: 4px 0 0; padding: 0; }
ul.carriers li { border-left: 3px solid var(--challenger); padding: 1px 0 1px 10px; margin-top: 8px; }
ul.carriers code { display: block; color: var(--muted); font-size: 11.5px; }
ul.carriers div { white-space: pre-wrap; max-height: 15em; overflow-y: auto; }
details.rest > summary { margin: 8px 0 2px; }
.panels {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 14px 20px; margin-top: 12px;
}
.panels figure { margin: 0; min-width: 0; display: flex; flex-direction: column; justify-content: space-between; }
.panels figcaption { font-size: 13px; font-weight: 600; overflow-wrap: anywhere; }
.panels figcaption small { color: var(--muted); font-weight: 400; }
table.comparisons td, table.comparisons th { overflow-wrap: anywhere; }

@media (max-width: 760px) {
  details.feature > summary, .feature-line { grid-template-columns: 16px minmax(0, 1fr); }
  details.feature > summary > *, .feature-line > * { grid-column: 2; }
  details.feature > summary .name, .feature-line .name { grid-row: 1; }
  details.feature > summary::before { grid-row: 1; grid-column: 1; }
  .feature-body { grid-template-columns: minmax(0, 1fr); padding-left: 8px; }
  table.pairs th.num { width: 62px; }
}
@media print {
  details.feature, details.rest { break-inside: avoid; }
}
"""
