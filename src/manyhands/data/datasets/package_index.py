"""Reads Debian package indexes: stanzas of `Field: value` lines, from apt, a file or our copy.

Knows the form alone; what a description or a dependency means for learning is `packages.py`'s.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from manyhands.errors import DataError

COMMAND = ("apt-cache", "dumpavail")
FROZEN = "debian-packages.gz"
FROZEN_SHA256 = "e4a202e500f519e49f6db95feaf299a6f0403358e141251e11fe6470eebf670c"
RELATIONS = ("Pre-Depends", "Depends", "Recommends")
LEAST_PACKAGES = 1_000  # an apt that lists fewer has never fetched an index
APT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Package:
    """What a package says of itself: one line of description, and what it wants to have beside it.

    Of alternatives (`exim4 | mail-transport-agent`) the first counts, which is the one installed.
    """

    name: str
    description: str
    dependencies: tuple[str, ...]


def apt_packages() -> list[Package] | None:
    """The packages that this machine's apt knows, or None when it has none or knows no index."""
    program = shutil.which(COMMAND[0])
    if program is None:
        return None
    try:
        outcome = subprocess.run(
            [program, *COMMAND[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=APT_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    packages = read_packages(io.BytesIO(outcome.stdout))
    return packages if outcome.returncode == 0 and len(packages) >= LEAST_PACKAGES else None


def frozen_packages() -> list[Package]:
    """The small copy that ships with Manyhands; see DEBIAN-PACKAGES.md beside it."""
    try:
        content = resources.files(__package__).joinpath("files", FROZEN).read_bytes()
    except OSError as error:
        raise DataError(f"{FROZEN} is missing from the installed package: reinstall it.") from error
    found = hashlib.sha256(content).hexdigest()
    if found != FROZEN_SHA256:
        raise DataError(
            f"{FROZEN} in the installed package has SHA-256 {found[:16]}..., expected "
            f"{FROZEN_SHA256[:16]}...: the file was changed; reinstall the package."
        )
    return read_packages(io.BytesIO(gzip.decompress(content)))


def packages_in(path: str | os.PathLike[str]) -> list[Package]:
    """The packages of an index file, such as a mirror's `Packages.gz`, plain or gzipped."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with gzip.GzipFile(fileobj=file) if zipped else file as stream:
                packages = read_packages(stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{place} is a damaged gzip file ({error}): fetch it again.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{place} can't be read: {reason}. Check the path.") from None
    if not packages:
        raise DataError(
            f"{place} holds no packages: expected a Debian index, stanzas that begin with Package:."
        )
    return packages


def read_packages(lines: Iterable[bytes]) -> list[Package]:
    """Every package of an index, once, sorted by name."""
    packages: dict[str, Package] = {}
    for stanza in _stanzas(lines):
        name = stanza.get("Package", "")
        if name:
            packages.setdefault(name, Package(name, _synopsis(stanza), _dependencies(stanza)))
    return [packages[name] for name in sorted(packages)]


def _stanzas(lines: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Fields by name; continued lines are left out but for those of relations."""
    stanza: dict[str, str] = {}
    field = ""
    for raw in lines:
        line = raw.decode("utf-8", errors="replace").rstrip()
        if not line:
            if stanza:
                yield stanza
            stanza, field = {}, ""
        elif line[0] in " \t":
            if field in RELATIONS:
                stanza[field] += line
        else:
            field, _, value = line.partition(":")
            stanza[field] = value.strip()
    if stanza:
        yield stanza


def _synopsis(stanza: dict[str, str]) -> str:
    return stanza.get("Description") or stanza.get("Description-en", "")


def _dependencies(stanza: dict[str, str]) -> tuple[str, ...]:
    """Names without versions (`(>= 2)`), architectures (`:any`) and other alternatives."""
    wanted = ",".join(stanza.get(field, "") for field in RELATIONS).split(",")
    names = (relation.split("|")[0].split("(")[0].split(":")[0].strip() for relation in wanted)
    own = stanza.get("Package")
    return tuple(dict.fromkeys(name for name in names if name and name != own))
