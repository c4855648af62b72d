"""Checks the tree itself: sizes, import directions, purity of the core crates, links, and machine-specific text."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import limits
import python_imports
import rust_imports

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "proto/trunkline/shard/v1/shard.proto"
RUST_TYPES = [
    ROOT / folder / "generated/trunkline.shard.v1.rs" for folder in ("contract/src", "router/engine/src/shard")
]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_LINE_CHARACTERS = 120
MAX_RELEASE_LINES = 60
SOURCE = {".rs", ".py", ".ts", ".tsx"}

# The imports allowed between the server's packages, which go in one direction: service → engine → models → Ops.
PYTHON_LAYERS = {
    "errors": "",
    "models": "models errors",
    "weights": "weights models errors _kernels",
    "adapters": "adapters weights models errors _kernels",
    "sampling": "_proto sampling errors",
    "backends.interface": "_proto adapters _kernels",
    "backends.host_memory": "",
    "backends.sequences": "_proto backends.interface sampling errors",
    "backends.states": "backends.store_files models weights errors",
    "backends.store_files": "_proto backends.interface errors _kernels",
    "backends.reference": "_proto adapters backends.interface backends.late_masks backends.reference "
    "backends.sequences models weights sampling errors",
    "backends.transformers": "backends.interface backends.host_memory backends.reference backends.transformers "
    "models weights errors _kernels",
    "backends.cuda": "_proto adapters backends.interface backends.cuda backends.host_memory backends.late_masks "
    "start_times backends.sequences backends.states backends.store_files models weights sampling errors _kernels",
    "backends.cpu": "_proto adapters backends.interface backends.cpu backends.host_memory backends.states "
    "start_times backends.store_files models weights errors _kernels",
    "engine": "_proto backends.interface errors plan_checks",
}
TORCH_BACKENDS = ("backends.reference", "backends.cuda", "backends.transformers")
PURE_CRATES = ("contract", "router/draft", "router/kv", "router/residency", "router/scheduler")
# The pure crates take time and randomness as arguments and have one owner, so that runs are reproducible to the bit.
IMPURE = re.compile(
    r"std::(time|fs|io|net|env|thread)\b|\b(tokio|rand|Instant|SystemTime|Mutex|RwLock|HashMap|HashSet)\b"
)
# Paths of a machine and names of package hosts. Lock files and documents contain versions, not addresses.
MACHINE = re.compile(
    r"(?<![\w./{}$-])/(root|home|work|Users)/\w|pypi\.org|crates\.io/|registry\.npmjs|files\.pythonhosted"
)
# Comments of functions and fields that are booleans; functions say `Returns true if`, fields `True if`.
OTHER_BOOLEAN = re.compile(
    r"^ *///.*\b(?:Returns whether|Set (?:if|while|once)|Whether) .*\n(?: *(?:///|#\[).*\n)*.*(?:-> bool\b|: bool,)",
    re.M,
)
TODO = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
MARKDOWN_CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
MARKDOWN_NAME = re.compile(r"\[`(\w+)`\]\(([^)\s#]+)\)")
SECURITY_PAGE = ROOT / "docs/security.md"
SECURITY_TESTS = ROOT / "integration-tests/test_advisories.py"


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def is_test(path: Path) -> bool:
    relative = path.relative_to(ROOT)
    return (
        any(part in ("tests", "testdata", "integration-tests", "examples") for part in relative.parts)
        or relative.name == "tests.rs"
    )


def generated(path: Path) -> bool:
    return "_pb2" in path.name or path.parent.name == "generated" or path.is_relative_to(ROOT / "web/dist")


def check_generated() -> list[str]:
    """Checks that the Rust types are the unedited output of `make proto`, by the digests in their first line."""
    found = []
    for path in RUST_TYPES:
        header, _, code = path.read_text().partition("\n")
        wanted = {
            "contract": hashlib.sha256(CONTRACT.read_bytes()).hexdigest(),
            "code": hashlib.sha256(code.encode()).hexdigest(),
        }
        stale = [what for what, value in wanted.items() if f"{what} sha256:{value}" not in header]
        name = path.relative_to(ROOT)
        found += [f"{name}: stale, its {what} has changed; hint: run `make proto`" for what in stale]
    return found


def check_text(path: Path, text: str) -> list[str]:
    found = []
    name = path.relative_to(ROOT)
    if path == Path(__file__).resolve() or name.name == "Cargo.lock" or path.is_relative_to(ROOT / "web/dist"):
        return []
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE.search(line):
            found.append(f"{name}:{number}: path of a machine or name of a package host")
        if path.suffix in SOURCE and not generated(path):
            if TODO.search(line):
                found.append(f"{name}:{number}: a TODO needs an issue: TODO(#123)")
            # rustfmt wraps Rust code except long strings, so only comments are checked.
            if len(line) > MAX_LINE_CHARACTERS and (path.suffix == ".py" or line.lstrip().startswith("//")):
                found.append(f"{name}:{number}: {len(line)} characters, at most {MAX_LINE_CHARACTERS}")
    if path.suffix == ".rs" and (match := OTHER_BOOLEAN.search(text)):
        line = text.count("\n", 0, match.start()) + 1
        found.append(f"{name}:{line}: a comment of a boolean says `Returns true if` or, of a field, `True if`")
    if path.suffix in SOURCE and not is_test(path) and not generated(path):
        lines = len(production_lines(path, text))
        if lines > MAX_FILE_LINES:
            found.append(f"{name}: {lines} lines, at most {MAX_FILE_LINES}: is there a second noun in it?")
    return found


def anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a Markdown page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(path: Path, text: str) -> list[str]:
    """Checks that relative links in a Markdown page name existing files, and their fragments existing headings."""
    found = []
    for link in MARKDOWN_LINK.findall(MARKDOWN_CODE.sub("", text)):
        target, _, fragment = link.partition("#")
        file = path.parent / target if target else path
        if "://" in link or link.startswith("mailto:"):
            continue
        if not file.exists():
            found.append(f"{path.relative_to(ROOT)}: `{link}` leads nowhere")
        elif fragment and file.suffix == ".md" and fragment not in anchors(file.read_text()):
            found.append(f"{path.relative_to(ROOT)}: `{link}` names no heading of {file.name}")
    return found


def check_named_tests(path: Path, text: str) -> list[str]:
    """Checks that each test exists that a Markdown page names, and that the page on security names all of its file."""
    found = []
    named = MARKDOWN_NAME.findall(text)
    for test, target in named:
        file = (path.parent / target).resolve()
        if not file.is_file() or file.suffix not in SOURCE or not is_test(file):
            continue
        if not re.search(rf"\b(?:fn|def) {test}\b", file.read_text()):
            found.append(f"{path.relative_to(ROOT)}: there is no `{test}` in {file.relative_to(ROOT)}")
    if path == SECURITY_PAGE:
        tests = set(re.findall(r"^def (test_\w+)", SECURITY_TESTS.read_text(), re.MULTILINE))
        missing = sorted(tests - {test for test, _ in named})
        found += [f"{path.relative_to(ROOT)}: `{test}` of {SECURITY_TESTS.name} is missing" for test in missing]
    return found


def production_lines(path: Path, text: str) -> list[str]:
    """Returns the lines of a file without its trailing test module."""
    lines = text.splitlines()
    if path.suffix == ".rs":
        for number, line in enumerate(lines):
            if line.startswith("#[cfg(test)]"):
                return lines[:number]
    return lines


def check_python(path: Path, text: str) -> list[str]:
    name = path.relative_to(ROOT)
    tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found.append(f"{name}:{node.lineno}: `{node.name}` has {lines} lines, at most {MAX_FUNCTION_LINES}")
    package = ROOT / "server/trunkline_server"
    if not path.is_relative_to(package):
        return found
    module = ".".join(path.relative_to(package).with_suffix("").parts)
    for node in ast.walk(tree):
        for imported in imports(node, module):
            if imported.split(".")[0] == "torch" and not module.startswith(TORCH_BACKENDS):
                found.append(f"{name}:{node.lineno}: only {', '.join(TORCH_BACKENDS)} may import torch")
            found += [
                f"{name}:{node.lineno}: `{layer}` may not import `{imported}`"
                for layer, allowed in PYTHON_LAYERS.items()
                if under(module, layer)
                and imported.startswith("trunkline_server.")
                and not any(under(imported.removeprefix("trunkline_server."), a) for a in allowed.split())
            ]
    return found


def under(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports(node: ast.AST, module: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level:
            base = ["trunkline_server", *module.split(".")][: -node.level]
            stem = ".".join([*base, *([node.module] if node.module else [])])
        else:
            stem = node.module or ""
        if stem in ("trunkline_server", "trunkline_server.backends"):
            return [f"{stem}.{alias.name}" for alias in node.names]
        return [stem]
    return []


def check_pure(path: Path, text: str) -> list[str]:
    """Checks that the pure crates use no clock, file, thread, lock, environment or random order, nor depend on any."""
    name = path.relative_to(ROOT)
    crate = next((crate for crate in PURE_CRATES if str(name).startswith(f"{crate}/")), None)
    if crate is None:
        return []
    if name.name == "Cargo.toml":
        dependencies = text.partition("[dependencies]\n")[2].partition("\n[")[0].splitlines()
        # Hashing is pure, and so are messages.
        pure = ("trunkline-contract", "trunkline-draft", "trunkline-kv", "blake3", "prost")
        impure = [line for line in dependencies if line and not line.startswith(pure)]
        return [f"{name}: a pure crate may not depend on `{line}`" for line in impure]
    if path.suffix != ".rs" or not str(name).startswith(f"{crate}/src/"):
        return []
    return [
        f"{name}:{number}: the pure core may not use `{match[0]}`"
        for number, line in enumerate(production_lines(path, text), 1)
        if not line.lstrip().startswith("//") and (match := IMPURE.search(line))
    ]


def check_releases() -> list[str]:
    """Checks that the section of each release in the changelog is short enough to be read."""
    sections = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    lengths = {section.partition("\n")[0]: len(section.rstrip().splitlines()) for section in sections}
    return [
        f"CHANGELOG.md: {name} has {lines} lines, at most {MAX_RELEASE_LINES}"
        for name, lines in lengths.items()
        if lines > MAX_RELEASE_LINES
    ]


def main() -> int:
    found = [*check_generated(), *check_releases(), *limits.check(ROOT, tracked())]
    found += rust_imports.check() + python_imports.check()
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += check_text(path, text)
        if path.suffix == ".py" and not generated(path):
            found += check_python(path, text)
        if path.suffix == ".md":
            found += check_links(path, text) + check_named_tests(path, text)
        found += check_pure(path, text)
    for line in [*found, rust_imports.counts()]:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
