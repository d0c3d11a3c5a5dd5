"""One module per subcommand, each with a typer `app`. `plumage_cli.main` imports a module when it is called."""
