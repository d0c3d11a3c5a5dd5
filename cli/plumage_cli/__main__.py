"""`python -m plumage_cli` is `plumage`."""

from plumage_cli.main import main

main()
