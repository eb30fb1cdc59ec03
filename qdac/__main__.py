"""`python -m qdac`: the same as the `qdac` command."""

from qdac.cli import main

main()
