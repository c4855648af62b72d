"""Parser for the tables of request fields in docs/api."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

STATUSES = ("supported", "refused", "ignored")
VECTORS = "## Embeddings, scores and classes"
OLLAMA = "## `POST /api/chat`, `POST /api/generate`"
# Name of a table → its section in docs/api and the first cell of its header.
TABLES = {
    "chat": ("## `POST /v1/chat/completions`", "field"),
    "message": ("## `POST /v1/chat/completions`", "field of `messages[]`"),
    "completion": ("## `POST /v1/completions`", "field"),
    "infill": ("## `POST /infill`", "field"),
    "response": ("## `POST /v1/responses`, `GET` and `DELETE /v1/responses/{id}`", "field"),
    "input_tokens": ("## `POST /v1/responses`, `GET` and `DELETE /v1/responses/{id}`", "field of `input_tokens`"),
    "messages": ("## `POST /v1/messages`, `POST /v1/messages/count_tokens`", "field"),
    "count_tokens": ("## `POST /v1/messages`, `POST /v1/messages/count_tokens`", "field of `count_tokens`"),
    "generate": ("## `POST /generate`, `POST /generate_stream`, `POST /`", "field"),
    "parameters": ("## `POST /generate`, `POST /generate_stream`, `POST /`", "field of `parameters`"),
    "tokenize": ("## `POST /tokenize`", "field"),
    "detokenize": ("## `POST /detokenize`", "field"),
    "embeddings": (VECTORS, "field of `/v1/embeddings`"),
    "embed": (VECTORS, "field of `/embed`"),
    "rerank": (VECTORS, "field of `/v1/rerank` and `/rerank`"),
    "score": (VECTORS, "field of `/v1/score`"),
    "classify": (VECTORS, "field of `/v1/classify`"),
    "predict": (VECTORS, "field of `/predict`"),
    "vertex": ("## `POST /vertex`", "field"),
    "ollama_chat": (OLLAMA, "field of `/api/chat`"),
    "ollama_message": (OLLAMA, "field of a chat's `messages[]`"),
    "ollama_generate": (OLLAMA, "field of `/api/generate`"),
    "ollama_options": (OLLAMA, "field of Ollama's `options`"),
    "ollama_embed": ("## `POST /api/embed`, `POST /api/embeddings`", "field of `/api/embed`"),
    "ollama_embeddings": ("## `POST /api/embed`, `POST /api/embeddings`", "field of `/api/embeddings`"),
    "ollama_show": ("## `POST /api/show`", "field of `/api/show`"),
    "pin": ("## `POST /v1/kv/tree/{id}/pin`", "field"),
}
FIELD = re.compile(r"`([a-z_][a-z0-9_]*(?:\[\])?(?:\.[a-z][a-z0-9_]*(?:\[\])?)*)`")
RANGE = re.compile(
    r"(?P<open>above )?(?P<low>-?[\d.]*\d)(?:,? or (?:from )?(?P<other>-?\d+))?(?:,? to (?P<high>-?[\d.]*\d))?\b"
)


def pages(root: Path) -> list[Path]:
    """Returns the pages in docs/api, OpenAI's first, to whose rows the others refer."""
    return sorted((root / "docs/api").glob("*.md"), key=lambda page: (page.stem != "openai", page.stem))


def api_pages(root: Path) -> str:
    """Returns the text of all pages."""
    return "\n".join(page.read_text() for page in pages(root))


@dataclass(frozen=True)
class Row:
    """One field's row in a table.

    `neutral` holds the JSON texts, other than null, that are accepted for a refused field.
    """

    table: str
    field: str
    status: str
    allowed: str
    neutral: tuple[str, ...]

    def __str__(self) -> str:
        return self.field

    def range(self) -> re.Match[str] | None:
        return RANGE.match(re.sub(r"^(required, )?(?:(?:integer|number), )?(from )?", "", self.allowed))

    def ends(self) -> tuple[list[float], list[float]]:
        """Returns the allowed ends of a numeric range, and the nearest values outside it."""
        if not (match := self.range()):
            return [], []
        low = match["low"]
        inside, outside = ([], [number(low)]) if match["open"] else ([number(low)], [number(low) - step(low)])
        if match["high"]:
            inside.append(number(match["high"]))
            outside.append(number(match["high"]) + step(match["high"]))
        return inside, outside


def number(text: str) -> float:
    return float(text) if "." in text else int(text)


def step(text: str) -> float:
    """Returns half a unit of the last digit of a fraction, or 1 for an integer, whose field may take no fractions."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) if "." in text else 1


def parse_rows(table: str, line: str, known: dict[tuple[str, str], Row]) -> list[Row]:
    """Returns the rows of a line, one for each field that it names.

    `known` holds the rows to which "as above" and "as for chats" refer. Raises ValueError for an invalid row.
    """
    cells = [cell.strip() for cell in line.strip().split("|")]
    if len(cells) != 6 or cells[0] or cells[-1]:
        raise ValueError(f"a row must have four cells: {line}")
    _, names, status, allowed, _, _ = cells
    fields = FIELD.findall(names)
    if not fields or names != ", ".join(f"`{field}`" for field in fields):
        raise ValueError(f"a row must begin with field names: {line}")
    if status not in STATUSES:
        raise ValueError(f"{status!r} is not one of {STATUSES}: {line}")
    if status == "ignored" and allowed:
        raise ValueError(f"an ignored field accepts any value, so its third cell must be empty: {line}")
    found = []
    for field in fields:
        if allowed.removeprefix("neutral values ") in ("as above", "as for chats"):
            if (field, status) not in known:
                raise ValueError(f"no earlier row lists {field} as {status}: {line}")
            found.append(replace(known[field, status], table=table))
        else:
            neutral = neutral_values(allowed) if status == "refused" else ()
            found.append(Row(table, field, status, allowed, neutral))
    return found


def neutral_values(cell: str) -> tuple[str, ...]:
    """Returns the JSON texts of a cell such as `neutral: 1`, or none if the cell is empty.

    Several texts are in backticks, separated by commas. Raises ValueError for any other form.
    """
    if not cell:
        return ()
    if not cell.startswith("neutral: "):
        raise ValueError(f"a refused field's cell must be empty or list neutral values: {cell}")
    texts = [text.strip().strip("`") for text in cell.removeprefix("neutral: ").split(", ")]
    return tuple(json.dumps(json.loads(text)) for text in texts)


def field_tables(page: str) -> list[tuple[str, str, list[str]]]:
    """Returns every table of fields: section, first cell of the header, lines of the rows."""
    found: list[tuple[str, str, list[str]]] = []
    section, lines = "", iter(page.splitlines())
    for line in lines:
        section = line if line.startswith("## ") else section
        if re.match(r"\| field\b", line):
            rows = []
            assert next(lines) == "|---|---|---|---|", f"a table of fields must have four columns: {line}"
            for row in lines:
                if not row.startswith("|"):
                    break
                rows.append(row)
            found.append((section, line.split("|")[1].strip(), rows))
    return found


def read_rows(page: str) -> list[Row]:
    """Returns every row of every table of fields, which may have a part for fields that are refused and ignored.

    Raises ValueError for an unknown or missing table, and for a row that cannot be parsed.
    """
    names = {place: name for name, place in TABLES.items()}
    rows: list[Row] = []
    known: dict[tuple[str, str], Row] = {}
    for section, header, lines in field_tables(page):
        name = names.get((section, header))
        if name is None:
            raise ValueError(f"unexpected table at {section}, {header}")
        for line in lines:
            found = parse_rows(name, line, known)
            for row in found:
                if any(row.field == other.field and row.table == other.table for other in rows):
                    raise ValueError(f"{row.field} has two rows in {section}, {header}")
                rows.append(row)
            known |= {(row.field, row.status): row for row in found}
    if missing := TABLES.keys() - {row.table for row in rows}:
        raise ValueError(f"missing tables of fields: {sorted(missing)}")
    return rows
