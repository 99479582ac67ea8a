"""docs/reference/database.md and its picture, from the tables themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from sqlalchemy import Column, Table

from storage import schema

INTRO = f"""# Database

Any SQLAlchemy URL; SQLite by default (`--db`, `SWEEP_DB`, else `sweep.db` in the folder you are in). Schema version
{schema.VERSION}; an older database is moved forward when it is opened. Times are Unix seconds (UTC), durations seconds,
gains fractions, metrics in the units of [metrics.md](metrics.md). Deleting a row takes along what belongs to it.

![Tables and what refers to what](database.svg)
"""
QUERIES = """
## Questions in SQL

Answers about gains are in `gains`; the commands read nothing else.

The best three over no speculation, the confirm stage's figure where there is one:

```sql
SELECT trials.number, gains.estimate, gains.low, gains.high, gains.stage, gains.comparison
FROM gains JOIN trials ON trials.id = gains.trial_id JOIN studies ON studies.id = gains.study_id
WHERE studies.name = 'smoke' AND gains.metric = 'output_throughput' AND gains.concurrency = 1
  AND gains.reference = 'baseline' AND gains.category IS NULL
ORDER BY gains.estimate DESC LIMIT 3;
```

Accept length and throughput of every block that may be used:

```sql
SELECT launches.role, trials.number, blocks.concurrency, blocks.round, blocks.accept_length, blocks.output_throughput
FROM blocks JOIN launches ON launches.id = blocks.launch_id LEFT JOIN trials ON trials.id = launches.trial_id
WHERE blocks.invalid IS NULL ORDER BY blocks.id;
```

What failed, and why:

```sql
SELECT number, verdict, reason, evidence, advice FROM trials WHERE verdict <> 'complete';
```
"""


def page(cell: Callable[[object], str]) -> str:
    """The page, without its first line."""
    out = [INTRO, "```mermaid", *_mermaid(), "```"]
    for table in schema.metadata.sorted_tables:
        out += [
            "",
            f"## {table.name}",
            "",
            table.info["doc"],
            "",
            "| column | type | null | holds |",
            "|---|---|---|---|",
        ]
        for column in table.columns:
            words = column.doc or ("a metric, in its unit" if _is_figure(column) else "")
            unit = [f"`{column.name}`", str(column.type).lower(), "yes" if column.nullable else "", words]
            out.append("| " + " | ".join(cell(word) for word in unit) + " |")
    return "\n".join(out) + "\n" + QUERIES


def undocumented() -> list[str]:
    """Tables and columns that do not say what they hold."""
    out = [table.name for table in schema.metadata.sorted_tables if not table.info.get("doc")]
    for table in schema.metadata.sorted_tables:
        out += [f"{table.name}.{c.name}" for c in table.columns if not c.doc and not _is_figure(c)]
    return out


def _is_figure(column: Column[Any]) -> bool:
    return column.table is schema.blocks and column.name in schema.BLOCK_FIGURES


def _parents(table: Table) -> list[tuple[str, str, bool]]:
    """(table referred to, our column, may be null)."""
    return [(key.column.table.name, key.parent.name, bool(key.parent.nullable)) for key in table.foreign_keys]


def _mermaid() -> list[str]:
    out = ["erDiagram"]
    for table in schema.metadata.sorted_tables:
        for parent, reference, nullable in sorted(_parents(table)):
            one = "|o" if nullable else "||"
            many = "o|" if table.columns[reference].primary_key else "o{"
            out.append(f"    {parent} {one}--{many} {table.name} : {reference}")
    for table in schema.metadata.sorted_tables:
        out.append(f"    {table.name} {{")
        for column in table.columns:  # the keys; the tables below hold all of them
            if mark := "PK" if column.primary_key else "FK" if column.foreign_keys else "":
                out.append(f"        {str(column.type).lower()} {column.name} {mark}")
        out.append("    }")
    return out


# ---------------------------------------------------------------------------------------------- the picture

_ROW, _WIDTH, _GAP, _MARGIN, _HEAD = 16, 196, 84, 24, 24
_LANE = 9  # between two lines that run beside each other
_CSS = """text{font:12px ui-monospace,monospace;fill:#1f2430}.t{font-weight:bold}.k{fill:#6b7280}
.b{fill:#fff;stroke:#9aa3b2}.h{fill:#e3e9f4;stroke:#9aa3b2}.e{fill:none;stroke:#4a6fa5;stroke-width:1.4}
@media (prefers-color-scheme:dark){text{fill:#e6e9f0}.k{fill:#9aa3b2}.b{fill:#1b1f2a;stroke:#5b6475}
.h{fill:#2b3446;stroke:#5b6475}.e{stroke:#8fb3e8}}"""


@dataclass(slots=True)
class _Box:
    name: str
    rows: list[tuple[str, str]]
    layer: int
    x: float = 0.0
    y: float = 0.0

    @property
    def height(self) -> int:
        return _HEAD + _ROW * len(self.rows) + 6

    def row_y(self, column: str) -> float:
        index = [name for name, _ in self.rows].index(column)
        return self.y + _HEAD + _ROW * index + _ROW / 2 + 2


def picture() -> str:
    """An SVG: a column of boxes for each distance from `studies`; a line leaves the owner's id on its right and ends at
    the reference on the left. Lines that pass other columns run above all boxes, so that none is crossed."""
    boxes = _boxes()
    layers = max(box.layer for box in boxes.values()) + 1
    edges = [
        (parent, table.name, column)
        for table in schema.metadata.sorted_tables
        for parent, column, _ in sorted(_parents(table))
    ]
    far = [edge for edge in edges if boxes[edge[1]].layer - boxes[edge[0]].layer > 1]
    top = _MARGIN + _LANE * (len(far) + 1)
    for layer in range(layers):
        y = float(top)
        for box in (b for b in boxes.values() if b.layer == layer):
            box.x, box.y = _MARGIN + layer * (_WIDTH + _GAP), y
            y += box.height + 26
    body = [line for edge in _lines(boxes, edges, far) for line in edge]
    for box in boxes.values():
        body += _drawn(box)
    width = 2 * _MARGIN + layers * _WIDTH + (layers - 1) * _GAP
    height = max(box.y + box.height for box in boxes.values()) + _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">'
    marker = (
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8" class="e"/></marker></defs>'
    )
    return "\n".join([head, f"<style>{_CSS}</style>", marker, *body, "</svg>"]) + "\n"


def _boxes() -> dict[str, _Box]:
    layer: dict[str, int] = {}
    out: dict[str, _Box] = {}
    for table in schema.metadata.sorted_tables:  # owners come first
        layer[table.name] = 1 + max((layer[parent] for parent, _, _ in _parents(table)), default=-1)
        rows = [
            (c.name, "PK" if c.primary_key else "FK" if c.foreign_keys else str(c.type).lower())
            for c in table.columns
            if not _is_figure(c)
        ]
        if table is schema.blocks:
            rows.append((f"… {len(schema.BLOCK_FIGURES)} metrics", "double"))
        out[table.name] = _Box(table.name, rows, layer[table.name])
    return out


def _lines(
    boxes: dict[str, _Box], edges: list[tuple[str, str, str]], far: list[tuple[str, str, str]]
) -> list[list[str]]:
    out = []
    leaving: dict[int, int] = {}  # lanes taken in the gap right of a column of boxes
    arriving: dict[int, int] = {}
    for edge in edges:
        parent, child, column = boxes[edge[0]], boxes[edge[1]], edge[2]
        x0, y0 = parent.x + _WIDTH, parent.row_y("id")
        x1, y1 = child.x, child.row_y(column)
        if edge in far:
            lane = _MARGIN + _LANE * far.index(edge)
            start = x0 + _LANE * (1 + leaving.setdefault(parent.layer, 0))
            leaving[parent.layer] += 1
            end = x1 - 12 - _LANE * arriving.setdefault(child.layer, 0)
            arriving[child.layer] += 1
            path = f"M{x0:.0f},{y0:.0f} H{start:.0f} V{lane:.0f} H{end:.0f} V{y1:.0f} H{x1:.0f}"
        else:
            end = x1 - 12 - _LANE * arriving.setdefault(child.layer, 0)
            arriving[child.layer] += 1
            path = f"M{x0:.0f},{y0:.0f} H{end:.0f} V{y1:.0f} H{x1:.0f}"
        out.append([f'<path class="e" d="{path}" marker-end="url(#a)"/>'])
    return out


def _drawn(box: _Box) -> list[str]:
    out = [
        f'<rect class="b" x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDTH}" height="{box.height}" rx="4"/>',
        f'<rect class="h" x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDTH}" height="{_HEAD - 2}" rx="4"/>',
        f'<text class="t" x="{box.x + 8:.0f}" y="{box.y + 15:.0f}">{escape(box.name)}</text>',
    ]
    for index, (name, kind) in enumerate(box.rows):
        y = box.y + _HEAD + _ROW * index + _ROW / 2 + 6
        out.append(f'<text x="{box.x + 8:.0f}" y="{y:.0f}">{escape(name)}</text>')
        out.append(f'<text class="k" x="{box.x + _WIDTH - 8:.0f}" y="{y:.0f}" text-anchor="end">{escape(kind)}</text>')
    return out
