"""Places the boxes of an audit's picture, and routes the lines between them.

The kinds of things have a fixed order: what is served, who signed, the run, its stages, what it was
made with, its data. So each kind has its own lane, from top to bottom, and pictures of two versions
look alike. A general layout (Sugiyama's, as `grandalf` has it) would place the same thing elsewhere
each time. It also does not know stages that contain files.

Inside a lane, the boxes of a row do not rest on each other. The first box of every row is at the
left edge, so that what is served and what it came from form one straight line down.

A line leaves its box at the bottom, follows a track in the gap between two rows, and enters its
target from above. If rows lie between, it passes them in the gutter at the left. Only lines with
the same state and a common end share tracks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from rft.page.folding import BANDS, OLDER, VERSIONS, Box, Folded, Line

AREA = 984.0  # the rows' width: five slots of 184 with 16 between
SLOT, GAP = 184.0, 16.0
HIGH = 44.0
CHIP_HIGH, CHIP_GAP = 26.0, 8.0
CHIPS_A_LINE = 4
_PAIR = 164.0  # the version's part of a closed chapter's box, before its run
_COLUMNS, _BETWEEN = 3, 8.0
_TRACK = 9.0
_PAD = 12.0  # from a band's edge to its boxes
_TITLE = 14.0  # extra padding above, for the band's name


@dataclass(frozen=True)
class Spot:
    """The place of a box. `main` is the width of its own part; its chips are to the right."""

    box: Box
    x: float
    y: float
    main: float
    width: float
    height: float
    chips: tuple[tuple[float, float, float, float], ...]
    """x, y, width, height of each chip."""

    @property
    def port(self) -> float:
        return self.x + self.main / 2


@dataclass(frozen=True)
class Route:
    line: Line
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Band:
    name: str
    y: float
    height: float


@dataclass(frozen=True)
class Lanes:
    width: float
    height: float
    left: float
    """The x where the rows begin; the gutter is left of it."""
    bands: list[Band]
    spots: list[Spot]
    routes: list[Route]


@dataclass(frozen=True)
class _Cell:
    """A box in its row, before heights are known."""

    box: Box
    x: float
    main: float
    width: float

    @property
    def port(self) -> float:
        return self.x + self.main / 2

    @property
    def height(self) -> float:
        lines = math.ceil(len(self.box.chips) / CHIPS_A_LINE) if self.box.kind == "stage" else 1
        return max(HIGH, lines * (CHIP_HIGH + CHIP_GAP) - CHIP_GAP + 16)


def lay(folded: Folded, position: dict[str, int]) -> Lanes:
    rows, names = _rows(folded, position)
    plan = _Plan(rows, folded.lines)
    left = 12 + (8 + _TRACK * plan.num_gutters if plan.num_gutters else 0)
    spots, bands, gaps, height = _stack(rows, names, plan, left)
    routes = [Route(line, plan.path(line, spots, gaps, left)) for line in folded.lines]
    return Lanes(left + AREA + 2, height, left, bands, [*spots.values()], routes)


# -- rows ------------------------------------------------------------------------------------------
def _rows(folded: Folded, position: dict[str, int]) -> tuple[list[list[_Cell]], list[str]]:
    """Return the rows from the top, and the band of each."""
    far = len(position)
    rows: list[list[_Cell]] = []
    names: list[str] = []
    for band in BANDS:
        boxes = sorted((box for box in folded.boxes if box.band == band), key=lambda box: position.get(box.key, far))
        if band in (VERSIONS, OLDER):
            found = _history(boxes)
        else:
            found = [row for rank in _ranks(boxes, folded.lines) for row in _wrapped(rank)]
        rows += found
        names += [band] * len(found)
    return rows, names


def _ranks(boxes: list[Box], lines: list[Line]) -> list[list[Box]]:
    """Rank the boxes of a band, so that each is below all that rest on it."""
    waiting = {box.key: 0 for box in boxes}
    after: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        if line.source in waiting and line.target in waiting:
            after[line.source].append(line.target)
            waiting[line.target] += 1
    rank = dict.fromkeys(waiting, 0)
    while waiting:
        key = next((key for key, above in waiting.items() if not above), next(iter(waiting)))  # or a circle
        del waiting[key]
        for target in after[key]:
            if target in waiting:
                rank[target] = max(rank[target], rank[key] + 1)
                waiting[target] -= 1
    return [[box for box in boxes if rank[box.key] == level] for level in sorted(set(rank.values()))]


def _wrapped(boxes: list[Box]) -> list[list[_Cell]]:
    rows: list[list[_Cell]] = []
    row: list[_Cell] = []
    for box in boxes:
        if box.chips:  # alone in its row, for its files
            rows.append([_Cell(box, 0, SLOT, AREA)])
            continue
        if len(row) == 5:
            rows.append(row)
            row = []
        row.append(_Cell(box, len(row) * (SLOT + GAP), SLOT, SLOT))
    return [*rows, row] if row else rows


def _history(boxes: list[Box]) -> list[list[_Cell]]:
    """Fill columns from the top down, so that a champion is above the one that it came from."""
    if not boxes:
        return []
    high = max(4, math.ceil(len(boxes) / _COLUMNS))
    width = (AREA - (_COLUMNS - 1) * _BETWEEN) / _COLUMNS
    rows: list[list[_Cell]] = [[] for _ in range(min(high, len(boxes)))]
    for number, box in enumerate(boxes):
        column, row = divmod(number, high)
        rows[row].append(_Cell(box, column * (width + _BETWEEN), _PAIR, width if box.chips else _PAIR))
    return rows


# -- tracks ----------------------------------------------------------------------------------------
class _Plan:
    """Decides which line uses which track. Gap `r` is the one above row `r`."""

    def __init__(self, rows: list[list[_Cell]], lines: list[Line]) -> None:
        self.row = {cell.box.key: number for number, row in enumerate(rows) for cell in row}
        self.cell = {cell.box.key: cell for row in rows for cell in row}
        self.tracks: list[dict[str, int]] = [{} for _ in range(len(rows) + 1)]
        self.net = self._nets(lines)
        self.gutter: dict[str, int] = {}
        self._ports: dict[str, list[str]] = defaultdict(list)
        leaves = {line.source for line in lines if line.source in self.cell}
        self._ported = {(self.row[key], self.cell[key].port) for key in leaves}
        spans: dict[str, tuple[int, int]] = {}
        for line in lines:
            if self.straight(line):
                continue
            net, leave, enter = self.net[line.source, line.target], *self._gaps(line)
            for gap in (leave, enter):
                self.tracks[gap].setdefault(net, len(self.tracks[gap]))
            if leave != enter:
                low, high = spans.get(net, (min(leave, enter), max(leave, enter)))
                spans[net] = min(low, leave, enter), max(high, leave, enter)
            if net not in self._ports[line.target]:
                self._ports[line.target].append(net)
        self._fill(spans)

    @property
    def num_gutters(self) -> int:
        return max(self.gutter.values(), default=-1) + 1

    def straight(self, line: Line) -> bool:
        """Whether its target is directly below."""
        below = self.row[line.target] == self.row[line.source] + 1
        return below and self.cell[line.source].port == self.cell[line.target].port

    def _gaps(self, line: Line) -> tuple[int, int]:
        return self.row[line.source] + 1, self.row[line.target]

    def _nets(self, lines: list[Line]) -> dict[tuple[str, str], str]:
        """Map each line to its net, named after the end with more lines in the same state."""
        bent = [line for line in lines if not self.straight(line)]
        sources = Counter((line.state, line.source) for line in bent)
        targets = Counter((line.state, line.target) for line in bent)
        return {
            (line.source, line.target): f"{line.state} from {line.source}"
            if sources[line.state, line.source] >= targets[line.state, line.target]
            else f"{line.state} to {line.target}"
            for line in bent
        }

    def _fill(self, spans: dict[str, tuple[int, int]]) -> None:
        """Give each net a gutter track that is free over its whole span; short spans are nearest to
        the rows."""
        taken: list[list[tuple[int, int]]] = []
        for net, (low, high) in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[1], item[0])):
            free = (
                number
                for number, others in enumerate(taken)
                if all(high < other_low or low > other_high for other_low, other_high in others)
            )
            number = next(free, len(taken))
            if number == len(taken):
                taken.append([])
            taken[number].append((low, high))
            self.gutter[net] = number

    def path(
        self, line: Line, spots: dict[str, Spot], gaps: list[float], left: float
    ) -> tuple[tuple[float, float], ...]:
        """Return the points of a line. `gaps`: the y of each gap's first track."""
        source, target = spots[line.source], spots[line.target]
        start = source.port, source.y + source.height
        if self.straight(line):
            return start, (target.port, target.y)
        net, leave, enter = self.net[line.source, line.target], *self._gaps(line)
        x = target.port + self._offset(line.target, net)
        out, into = (gaps[gap] + _TRACK * self.tracks[gap][net] for gap in (leave, enter))
        if leave == enter:
            return start, (start[0], out), (x, out), (x, target.y)
        side = left - 15 - _TRACK * self.gutter[net]
        return start, (start[0], out), (side, out), (side, into), (x, into), (x, target.y)

    def _offset(self, target: str, net: str) -> float:
        """Return how far beside the target's middle a net enters. The middle is kept for a line
        from directly above."""
        nets = self._ports[target]
        place = nets.index(net)
        if (self.row[target] - 1, self.cell[target].port) not in self._ported:
            place -= 1  # no line begins directly above: the middle is free
        step = min(14.0, (self.cell[target].main / 2 - 8) / (len(nets) // 2 + 1))
        return (step if place % 2 == 0 else -step) * (place // 2 + 1)


# -- heights ---------------------------------------------------------------------------------------
def _stack(
    rows: list[list[_Cell]], names: list[str], plan: _Plan, left: float
) -> tuple[dict[str, Spot], list[Band], list[float], float]:
    spots: dict[str, Spot] = {}
    bands: list[Band] = []
    gaps: list[float] = []
    y = top = 0.0
    for number, row in enumerate(rows):
        tracks = len(plan.tracks[number]) * _TRACK
        begins = number == 0 or names[number] != names[number - 1]
        if begins and number:
            y += _PAD
            bands.append(Band(names[number - 1], top, y - top))
        if begins:
            gaps.append(y + (16 if number else 8))
            top = y + (8 if number else 0) + (tracks if tracks else 0)
            y = top + _PAD + _TITLE
        else:
            gaps.append(y + 9)
            y += max(20.0, tracks + 16)
        high = max(cell.height for cell in row)
        for cell in row:
            spots[cell.box.key] = _spot(cell, left, y)
        y += high
    if rows:
        bands.append(Band(names[-1], top, y + _PAD - top))
    tracks = len(plan.tracks[-1]) * _TRACK
    gaps.append(y + _PAD + 8)
    return spots, bands, gaps, y + _PAD + (tracks + 10 if tracks else 2)


def _spot(cell: _Cell, left: float, y: float) -> Spot:
    x = left + cell.x
    begin = x + cell.main + 8
    room = cell.width - cell.main - 14
    a_line = CHIPS_A_LINE if cell.box.kind == "stage" else 1
    width = (room - (a_line - 1) * CHIP_GAP) / a_line
    num_lines = math.ceil(len(cell.box.chips) / a_line)
    above = (cell.height - num_lines * (CHIP_HIGH + CHIP_GAP) + CHIP_GAP) / 2
    chips = tuple(
        (
            begin + (number % a_line) * (width + CHIP_GAP),
            y + above + (number // a_line) * (CHIP_HIGH + CHIP_GAP),
            width,
            CHIP_HIGH,
        )
        for number in range(len(cell.box.chips))
    )
    return Spot(cell.box, x, y, cell.main, cell.width, cell.height, chips)
