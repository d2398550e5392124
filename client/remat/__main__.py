"""`python -m remat` is the `remat` command."""

from remat.cli import main

main()
