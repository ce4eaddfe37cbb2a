"""Where the components of a circuit stand in a picture, and how its edges run between them.

1. Rows from bottom to top in the order the model computes: the input, each layer's heads and then
   its MLP, the logits. Components that an edge touches are boxes; the others of a layer are folded
   into one small box that counts them, and layers that no edge touches into a thin line. Heads
   that share keys and values have a box for their group below them, at which edges into these
   arrive, and thin lines from there to the heads that are drawn.
2. An edge leaves its writer at the top and arrives at its reader from below. It passes the rows
   between them vertically, through gaps between boxes, and changes sides only between rows, where
   no box is: so no edge runs through a box, and none behind one.
3. Gaps are as wide as the edges through them ask for. Edges of one gap are set apart, in the order
   in which they come, so that as few as possible cross.

Everything follows from the graph and the edges; the same circuit gives the same picture. Units are
points, y grows downwards.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from graphcircuits.graph import ComponentGraph

HEIGHT, STUB_HEIGHT, LETTER, PADDING = 34.0, 18.0, 6.6, 13.0
"""Of a box and of a folded one, the width of a letter, and the space beside a name."""
GAP, LANE, WIDEST = 20.0, 7.0, 150.0
"""The least gap between boxes, the distance of edges in it, and the widest that edges make it."""
CHANNEL, TALLEST, STRAIGHT = 18.0, 150.0, 9.0
"""Between rows: the least and the largest height, and how far an edge runs straight at its ends."""
FOLD, MARGIN = 20.0, 12.0

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A box: a component, or a folded one that stands for several."""

    name: str
    x: float
    """Of its left side, as `y` is of its upper one."""
    y: float
    width: float
    height: float
    folded: bool = False

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class Route:
    """The way of an edge."""

    edge: int
    writer: str
    reader: str
    """The component or group; `slot` says which of its readers."""
    slot: str
    points: tuple[Point, ...]
    """From the writer upwards; inside rows and at both ends vertical."""


@dataclass(frozen=True, slots=True)
class CircuitLayout:
    """A picture without colours."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    breaks: tuple[tuple[str, float], ...]
    """Thin lines across the picture that stand for layers without an edge: words, and height."""
    routes: tuple[Route, ...]
    shared: tuple[tuple[Point, Point], ...] = ()
    """Lines from groups up to their heads; they are no edges."""


def port(box: Box, slot: str) -> float:
    """Where edges into one reader of a component arrive on average."""
    return box.middle + {"q": -1, "k": 0, "v": 1, "": 0}[slot] * box.width / 3


@dataclass(slots=True)
class _Row:
    names: list[str]
    stub: str = ""
    gaps: list[float] = field(default_factory=list)
    """Widths between the boxes, from left to right."""
    lefts: list[float] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        return [*self.names, *([self.stub] if self.stub else [])]

    def spread_boxes(self) -> None:
        """Put the components side by side around zero; the folded ones follow on the right."""
        widths = [_width(name) for name in self.labels]
        shown = len(self.names)
        left = -(sum(widths[:shown]) + sum(self.gaps[: shown - 1])) / 2
        self.lefts = []
        for width, gap in zip(widths, [*self.gaps, 0.0], strict=True):
            self.lefts.append(left)
            left += width + gap

    def free(self, gap: int) -> Point:
        """The two sides of a gap; the first and the last are open to the outside."""
        left = -math.inf if gap == 0 else self.lefts[gap - 1] + _width(self.labels[gap - 1])
        right = math.inf if gap == len(self.lefts) else self.lefts[gap]
        return left, right


@dataclass(slots=True)
class _Way:
    """An edge on its way: which gap it takes in each row between its ends, and where in it."""

    edge: int
    writer: str
    reader: str
    slot: str
    start: int
    end: int
    gaps: list[int] = field(default_factory=list)
    lanes: list[float] = field(default_factory=list)


def layout(graph: ComponentGraph, edges: Sequence[int]) -> CircuitLayout:
    """The picture of some edges, given by their numbers; every edge once."""
    links = _links(graph, edges)
    used = {name for _, writer, reader, _ in links for name in (writer, reader)}
    rows, folds = _rows(graph, used)
    where = {name: number for number, row in enumerate(rows) for name in row.names}
    ways = [_Way(*link, start=where[link[1]], end=where[link[2]]) for link in links]
    for row in rows:
        row.gaps = [GAP] * (len(row.labels) - 1)
        row.spread_boxes()
    # Once to see how many edges each gap will hold, and once with gaps of that width.
    _choose(rows, ways, roomy=True)
    for number, row in enumerate(rows):
        passing = [way.gaps[number - way.start - 1] for way in ways if _passes(way, number)]
        row.gaps = [
            max(GAP, min(WIDEST, LANE * (passing.count(gap) + 1)))
            for gap in range(1, len(row.labels))
        ]
        row.spread_boxes()
    _choose(rows, ways, roomy=False)
    _set_apart(rows, ways)
    drawn = _drawn(rows, folds, ways)
    return replace(drawn, shared=_shared(graph, drawn.boxes))


def _shared(graph: ComponentGraph, boxes: Sequence[Box]) -> tuple[tuple[Point, Point], ...]:
    """From the upper side of every group to the lower side of each of its heads."""
    by_name, size = {box.name: box for box in boxes}, graph.n_heads // graph.n_groups
    heads = [(layer, head) for layer in range(graph.n_layers) for head in range(graph.n_heads)]
    return tuple(
        ((group.middle, group.y), (box.middle, box.y + box.height))
        for layer, head in heads
        if (group := by_name.get(f"a{layer}.g{head // size}"))
        and (box := by_name.get(f"a{layer}.h{head}"))
    )


def _links(graph: ComponentGraph, edges: Sequence[int]) -> list[tuple[int, str, str, str]]:
    """Number, writer, component or group, and slot of every edge."""
    numbers = sorted(set(edges))
    ends = []
    for edge, name in zip(numbers, graph.names_of(torch.tensor(numbers).long()), strict=True):
        writer, _, reader = name.partition("->")
        end, _, slot = reader.partition("<")
        ends.append((edge, writer, end, slot.removesuffix(">")))
    return ends


def _rows(graph: ComponentGraph, used: set[str]) -> tuple[list[_Row], dict[int, str]]:
    """The rows from bottom to top, and names of folded layers by the row that they lie below."""
    rows, folds = [_Row(["input"])], {}
    first: int | None = None
    for layer in range(graph.n_layers + 1):
        groups = [name for g in range(graph.n_groups) if (name := f"a{layer}.g{g}") in used]
        heads = [name for h in range(graph.n_heads) if (name := f"a{layer}.h{h}") in used]
        mlp = [name for name in (f"m{layer}",) if name in used]
        last = layer == graph.n_layers
        added = [_Row(names) for names in (groups, heads, mlp) if names]
        if not last and not added:
            first = layer if first is None else first
            continue
        if first is not None:
            several = f"layers {first} to {layer - 1}: no edge"
            folds[len(rows)] = several if first < layer - 1 else f"layer {first}: no edge"
            first = None
        if not last:
            hidden = graph.n_heads - len(heads)
            stub = [f"+{hidden} head{'s' if hidden > 1 else ''}"] if hidden else []
            added[0].stub = " ".join([*stub, *([] if mlp else [f"+m{layer}"])])
            rows += added
    return [*rows, _Row(["logits"])], folds


def _width(name: str) -> float:
    """Of a box; that of a component has room for three slots."""
    if name.startswith("+"):
        return PADDING + 0.82 * LETTER * len(name)
    return max(54.0, 2 * PADDING + LETTER * len(name))


def _passes(way: _Way, row: int) -> bool:
    return way.start < row < way.end


def _middle(rows: Sequence[_Row], row: int, name: str) -> float:
    position = rows[row].names.index(name)
    return rows[row].lefts[position] + _width(name) / 2


def _goal(rows: Sequence[_Row], way: _Way) -> float:
    width = _width(way.reader)
    return _middle(rows, way.end, way.reader) + {"q": -1, "v": 1}.get(way.slot, 0) * width / 3


def _choose(rows: Sequence[_Row], ways: Sequence[_Way], *, roomy: bool) -> None:
    """Give every edge a gap in each row it passes: near where it is and where it wants to go, not
    where many are; unless `roomy`, only one that still has a place."""
    taken = [[0] * (len(row.lefts) + 1) for row in rows]
    for way in sorted(ways, key=lambda way: (way.end - way.start, way.edge)):
        x, goal = _middle(rows, way.start, way.writer), _goal(rows, way)
        way.gaps = []
        for number in range(way.start + 1, way.end):
            row, best = rows[number], (math.inf, 0, 0.0)
            for gap in range(len(row.lefts) + 1):
                left, right = row.free(gap)
                inner = 0 < gap < len(row.lefts)
                full = inner and (taken[number][gap] + 1) * LANE >= right - left
                if full and not roomy and right - left < WIDEST:
                    continue
                near = min(max(x, left + LANE), right - LANE)
                cost = 1.2 * abs(near - x) + abs(near - goal) + 0.6 * LANE * taken[number][gap]
                best = min(best, (cost, gap, near))
            _, gap, x = best
            taken[number][gap] += 1
            way.gaps.append(gap)


def _set_apart(rows: Sequence[_Row], ways: Sequence[_Way]) -> None:
    """Give every edge its own place in the gaps it takes, near its place in the row before."""
    for way in ways:
        way.lanes = []
    for number, row in enumerate(rows):
        through: dict[int, list[_Way]] = {}
        for way in ways:
            if _passes(way, number):
                through.setdefault(way.gaps[number - way.start - 1], []).append(way)
        for gap, bundle in through.items():
            left, right = row.free(gap)
            before = {
                id(way): way.lanes[-1] if way.lanes else _middle(rows, way.start, way.writer)
                for way in bundle
            }
            bundle.sort(key=lambda way: (before[id(way)], _goal(rows, way), way.edge))
            step = min(LANE, min(right - left, 2 * WIDEST) / (len(bundle) + 1))
            wanted = [before[id(way)] for way in bundle]
            for way, x in zip(bundle, _spread(wanted, step, left, right), strict=True):
                way.lanes.append(x)


def _spread(wanted: Sequence[float], step: float, left: float, right: float) -> list[float]:
    """Growing places at least a step apart and off both sides, as near as can be to those wanted.

    Least squares under an order: wishes that come too close are merged into their mean.
    """
    blocks: list[tuple[float, int]] = []
    for index, x in enumerate(wanted):
        mean, count = x - index * step, 1
        while blocks and blocks[-1][0] >= mean:
            other, n = blocks.pop()
            mean, count = (mean * count + other * n) / (count + n), count + n
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    lowest, highest = left + step, right - step * len(wanted)
    return [min(max(mean, lowest), highest) + index * step for index, mean in enumerate(means)]


def _drawn(rows: Sequence[_Row], folds: Mapping[int, str], ways: Sequence[_Way]) -> CircuitLayout:
    """Everything in its final place."""
    tops, breaks, height = _heights(rows, folds, ways)
    lefts = [row.lefts[0] for row in rows]
    rights = [row.lefts[-1] + _width(row.labels[-1]) for row in rows]
    lanes = [x for way in ways for x in way.lanes]
    low, high = min([*lefts, *lanes]), max([*rights, *lanes])
    # A line says which layers it stands for at its left end, and is as long as what it says.
    high = max(high, low + LETTER * max([len(name) for name in folds.values()], default=0))
    shift = MARGIN - low
    boxes: dict[str, Box] = {}
    folded = []
    for row, top in zip(rows, tops, strict=True):
        for name, left in zip(row.labels, row.lefts, strict=True):
            if name in row.names:
                boxes[name] = Box(name, left + shift, top, _width(name), HEIGHT)
            else:
                middle = top + (HEIGHT - STUB_HEIGHT) / 2
                folded.append(Box(name, left + shift, middle, _width(name), STUB_HEIGHT, True))
    for way in ways:
        way.lanes = [x + shift for x in way.lanes]
    starts, ends = _arrows(boxes, ways)
    routes = []
    for way in ways:
        points = [(starts[way.edge], tops[way.start])]
        for number, x in zip(range(way.start + 1, way.end), way.lanes, strict=True):
            points += [(x, tops[number] + HEIGHT), (x, tops[number])]
        bottom = tops[way.end] + HEIGHT
        points += [(ends[way.edge], bottom + STRAIGHT), (ends[way.edge], bottom)]
        routes.append(Route(way.edge, way.writer, way.reader, way.slot, tuple(points)))
    width = high - low + 2 * MARGIN
    return CircuitLayout(width, height, (*boxes.values(), *folded), breaks, tuple(routes))


def _heights(
    rows: Sequence[_Row], folds: Mapping[int, str], ways: Sequence[_Way]
) -> tuple[list[float], tuple[tuple[str, float], ...], float]:
    """The upper side of every row, the lines of folded layers, and the height of it all."""
    crossing = [sum(way.start < number <= way.end for way in ways) for number in range(len(rows))]
    tops, lines, y = [0.0], [], 0.0
    for number in range(1, len(rows)):
        channel = STRAIGHT + min(TALLEST, CHANNEL + 6 * math.sqrt(crossing[number]))
        if number in folds:
            channel += FOLD
            lines.append((folds[number], y - channel / 2))
        y -= channel + HEIGHT
        tops.append(y)
    down = MARGIN - y
    breaks = tuple((name, height + down) for name, height in lines)
    return [top + down for top in tops], breaks, HEIGHT + down + MARGIN


def _arrows(
    boxes: Mapping[str, Box], ways: Sequence[_Way]
) -> tuple[dict[int, float], dict[int, float]]:
    """Where edges leave their writers, and where they arrive at their slots, by edge."""
    leaving: dict[str, list[tuple[float, int]]] = {}
    arriving: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for way in ways:
        start, end = boxes[way.writer].middle, port(boxes[way.reader], way.slot)
        towards, from_there = (way.lanes[0], way.lanes[-1]) if way.lanes else (end, start)
        leaving.setdefault(way.writer, []).append((towards, way.edge))
        arriving.setdefault((way.reader, way.slot), []).append((from_there, way.edge))
    starts: dict[int, float] = {}
    for name, bundle in leaving.items():
        starts |= _side_by_side(bundle, boxes[name].middle, boxes[name].width - 8)
    ends: dict[int, float] = {}
    for (name, slot), bundle in arriving.items():
        box = boxes[name]
        room = box.width / 3 - 4 if slot else box.width - 8
        ends |= _side_by_side(bundle, port(box, slot), room)
    return starts, ends


def _side_by_side(
    bundle: Sequence[tuple[float, int]], middle: float, room: float
) -> dict[int, float]:
    """Where edges stand around the middle, in the order of what they go to or come from."""
    step = min(LANE, room / len(bundle))
    return {
        edge: middle + (index - (len(bundle) - 1) / 2) * step
        for index, (_, edge) in enumerate(sorted(bundle))
    }
