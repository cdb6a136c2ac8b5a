"""`python -m flytune.tuner`: the command line, where no script of it is on the path."""

from flytune.tuner.cli import main

main(prog_name="flytune")
