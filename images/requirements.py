"""Prints what the distribution and some of its extras need, a requirement a line: python requirements.py EXTRA…

An image's layer of dependencies is made from pyproject.toml and constraints.txt alone, so that a change of the code
leaves it as it is. Extras that name other extras of ours are followed.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

OURS = re.compile(r"^plumage-llm\[([^]]+)\]$")


def requirements(needed: Iterable[str], extras: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """`needed`, with our own extras replaced by what they need. KeyError names an extra that there is not."""
    for requirement in needed:
        ours = OURS.match(requirement)
        if ours is None:
            yield requirement
            continue
        for extra in ours[1].split(","):
            yield from requirements(extras[extra.strip()], extras)


def main(names: Sequence[str]) -> None:
    """To stdout."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(f"plumage-llm[{name}]" for name in names)]
    sys.stdout.writelines(f"{line}\n" for line in dict.fromkeys(requirements(needed, project["optional-dependencies"])))


if __name__ == "__main__":
    main(sys.argv[1:])
