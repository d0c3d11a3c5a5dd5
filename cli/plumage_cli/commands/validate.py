"""`plumage validate FILE…`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plumage.errors import ManifestError
from plumage_cli.errors import CliError

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="YAML files; - is standard input.")],
) -> None:
    """Check manifests and list every mistake: the path of the field, the expected and the given value."""
    wrong = sum(not _is_right(path) for path in files)
    if wrong:
        raise typer.Exit(1)


def _is_right(path: Path) -> bool:
    from plumage.api.v1alpha1 import InferencePool, load_manifests
    from plumage.settings import without_effect
    from plumage_cli.files import read_text

    try:
        manifests = load_manifests(read_text(path), str(path))
    except (CliError, ManifestError) as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        return False
    names = ", ".join(f"{manifest.kind} {manifest.metadata.name}" for manifest in manifests)
    typer.echo(f"{path}: right ({names})")
    for manifest in manifests:
        for said in without_effect(manifest) if isinstance(manifest, InferencePool) else ():
            typer.secho(f"{path}: {manifest.metadata.name}: {said}", err=True, fg=typer.colors.YELLOW)
    return True
