"""One module a subcommand, each with a typer `app`; imported by `plumage_cli.main` when it is called."""
