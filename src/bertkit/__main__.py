"""`python -m bertkit` is the command line."""

from bertkit.cli.main import main

main()
