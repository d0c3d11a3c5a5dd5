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
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="YAML files; - reads standard input.")],
) -> None:
    """Check manifests and list every mistake: the field's path, the expected value and the given value."""
    invalid = sum(not _is_valid(path) for path in files)
    if invalid:
        raise typer.Exit(1)


def _is_valid(path: Path) -> bool:
    from plumage.api.v1alpha1 import InferencePool, load_manifests
    from plumage.settings.effect import without_effect
    from plumage_cli.manifests import read_text

    try:
        manifests = load_manifests(read_text(path), str(path))
    except (CliError, ManifestError) as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        return False
    names = ", ".join(f"{manifest.kind} {manifest.metadata.name}" for manifest in manifests)
    typer.echo(f"{path}: valid ({names})")
    for manifest in manifests:
        for message in without_effect(manifest) if isinstance(manifest, InferencePool) else ():
            typer.secho(f"{path}: {manifest.metadata.name}: {message}", err=True, fg=typer.colors.YELLOW)
    return True
