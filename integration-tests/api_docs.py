"""Writes the tables of docs/api that the OpenAPI document determines, between `<!-- NAME -->` and `<!-- end -->`.

`test_docs.py` compares the pages with them, and writes the pages with `--record`. NAME is that of a schema, with
members of inner objects after `+`, or `routes`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api_table import pages
from harness import ROOT

PART = re.compile(r"(<!-- (\w+(?: \+ [\w.\[\]]+)*) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# The schema whose fields others share "as for chats".
CHATS = "ChatCompletionRequest"
# The schema whose dialect does not take the model's own defaults.
OWN_DEFAULTS = {"GenerateParameters"}
Document = dict[str, Any]


def forms(document: Document, schema: Document) -> Iterator[Document]:
    """Resolves a schema's reference or alternatives."""
    if "$ref" in schema:
        yield from forms(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    elif "oneOf" in schema:
        yield from itertools.chain.from_iterable(forms(document, each) for each in schema["oneOf"])
    else:
        yield schema


def properties(document: Document, schema: str, path: str = "") -> dict[str, Document]:
    """Returns the properties of the object at a path within a schema, or none if it is not described as an object."""
    found = [document["components"]["schemas"][schema]]
    for name in filter(None, path.split(".")):
        children = [form["properties"].get(name.removesuffix("[]"), {}) for form in found if "properties" in form]
        found = [form for child in children for form in forms(document, child)]
        if name.endswith("[]"):
            found = [form for listing in found for form in forms(document, listing.get("items", {}))]
    return {name: described for form in found for name, described in form.get("properties", {}).items()}


def required(document: Document, schema: str, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    if not parent:
        return name in document["components"]["schemas"][schema].get("required", ())
    return False


def type_of(document: Document, schema: Document) -> str:
    """Returns a type in words, such as `string or list of integers`."""
    found = []
    for form in forms(document, schema):
        for kind in [form["type"]] if isinstance(form.get("type"), str) else form.get("type", []):
            if "enum" in form:
                found.append(", ".join(f"`{value}`" for value in form["enum"]))
            elif kind == "array":
                found.append(f"list of {plural(type_of(document, form.get('items', {})))}")
            elif kind != "null":
                found.append({"boolean": "true or false"}.get(kind, kind))
    return " or ".join(dict.fromkeys(found))


def plural(kind: str) -> str:
    return " or ".join(re.sub(r"^(string|integer|number|object|list)\b", r"\1s", each) for each in kind.split(" or "))


def range_of(schema: Document) -> str:
    """Returns the range of a number in words, such as `above 0, to 1`, or nothing."""
    high = f" to {schema['maximum']:.15g}" if "maximum" in schema else ""
    if "exclusiveMinimum" in schema:
        return f"above {schema['exclusiveMinimum']:.15g}{',' if high else ''}{high}"
    if "minimum" in schema:
        return f"{'' if high else 'from '}{schema['minimum']:.15g}{high}"
    return high.strip()


def allowed(document: Document, schema: str, path: str, field: Document) -> str:
    """Returns the third cell of a field's row: type, range and default."""
    words = ["required"] if required(document, schema, path) else []
    words += [type_of(document, field), range_of(field)]
    value = field.get("default")
    default = f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    default = f"`{default}`" if default.startswith('"') else default
    default += " or the model's" if field.get("x-default-set-by") == "model" and schema not in OWN_DEFAULTS else ""
    return ", ".join(filter(None, words)) + (f"; default {default}" if value is not None else "")


def help_of(field: Document) -> str:
    """Returns a field's description, which is beside its type or its alternatives."""
    described = field.get("description") or next(
        (each["description"] for each in field.get("oneOf", []) if "$ref" in each and "description" in each), ""
    )
    return " ".join(described.split()).replace("|", r"\|")


class Tables:
    """Writes the tables of all pages, in the order in which a row may refer to an earlier one."""

    def __init__(self, document: Document) -> None:
        self._document = document
        # Field → the page and the cells of the last row that it had; the same of the fields of chats.
        self._last: dict[str, tuple[Path, tuple[str, str]]] = {}
        self._chats: dict[str, tuple[str, str]] = {}

    def page(self, path: Path, text: str) -> str:
        """Returns the text of a page with its tables written again."""
        return PART.sub(lambda part: part[1] + self._table(path, part[2], part[3]) + part[4], text)

    def _table(self, page: Path, name: str, before: str) -> str:
        header, line = before.splitlines()[:2]
        rows = self._routes() if name == "routes" else self._fields(page, *name.split(" + "))
        return "\n".join([header, line, *rows, ""])

    def _fields(self, page: Path, schema: str, *inner: str) -> Iterator[str]:
        paths = [*properties(self._document, schema), *inner]
        shared: dict[str, list[str]] = {}
        for path in paths:
            parent, _, name = path.rpartition(".")
            field = properties(self._document, schema, parent)[name]
            cells = allowed(self._document, schema, path, field), help_of(field)
            last_page, last = self._last.get(path, (page, None))
            self._last[path] = page, cells
            if schema == CHATS:
                self._chats[path] = cells
            if last == cells and last_page == page:
                shared.setdefault("as above", []).append(f"`{path}`")
            elif last == cells == self._chats.get(path):
                shared.setdefault("as for chats", []).append(f"`{path}`")
            else:
                yield f"| `{path}` | supported | {cells[0]} | {cells[1]} |".replace("|  |", "| |")
        for words, names in shared.items():
            yield f"| {', '.join(names)} | supported | {words} | |"

    def _routes(self) -> Iterator[str]:
        for path, methods in self._document["paths"].items():
            for method, operation in methods.items():
                words = " ".join(operation["summary"].split()).replace("|", r"\|")
                yield f"| `{method.upper()}` | `{path}` | {operation['tags'][0]} | {words} |"


def written(document: Document) -> dict[Path, tuple[str, str]]:
    """Returns each page of docs/api: its text, and the text with its tables written again."""
    tables = Tables(document)
    texts = {path: path.read_text() for path in pages(ROOT)}
    return {path: (text, tables.page(path, text)) for path, text in texts.items()}
