"""Prints what an environment of `make image-environment` contains as CycloneDX JSON: Python packages and crates.

Debian's packages are not listed, because scanners read them from the image's own package database.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
# The two wheels are compiled from these packages.
SHIPPED = ("trunkline-launcher", "trunkline-router-full", "trunkline-kernels-python")


def component(kind: str, name: str, version: str, licence: str | None) -> Component:
    """kind: a type of package URL, such as `cargo`."""
    purl = PackageURL(kind, None, name, version)
    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl), licenses=licences)


def crates() -> Iterator[Component]:
    """Yields the crates that are linked into the binaries."""
    packages = [argument for package in SHIPPED for argument in ("--package", package)]
    command = ["cargo", "tree", "--locked", *packages, "--edges", "normal", "--prefix", "none", "--format", "{p}|{l}"]
    lines = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    # A line is `name vVERSION (path or proc-macro)|licence (*)`; blank lines are between packages.
    for line in sorted({line.removesuffix(" (*)") for line in lines if line}):
        crate, _, licence = line.partition("|")
        # Macros are run by the compiler and are not in the binaries.
        if "(proc-macro)" not in crate:
            name, version = crate.split()[:2]
            yield component("cargo", name, version.removeprefix("v"), licence.replace("/", " OR "))


def python_packages(prefix: Path) -> list[Distribution]:
    """Returns what is installed in the environment, sorted by name."""
    folders = [str(folder) for folder in prefix.glob("lib/python*/site-packages")]
    if not folders:
        sys.exit(f"error: `{prefix}` is not a Python environment; hint: make image-environment PREFIX={prefix}")
    return sorted(distributions(path=folders), key=lambda found: found.name.lower())


def main() -> None:
    bom = Bom()
    bom.metadata.component = Component(name="trunkline", type=ComponentType.APPLICATION, bom_ref="trunkline")
    for found in python_packages(Path(sys.argv[1])):
        bom.components.add(component("pypi", found.name, found.version, found.metadata.get("License-Expression")))
    bom.components.update(crates())
    bom.register_dependency(bom.metadata.component, bom.components)
    print(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))


if __name__ == "__main__":
    main()
