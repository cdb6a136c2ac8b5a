"""`python -m flytune.tuner`: the command line, where no script of it is on the path."""

from flytune.tuner.cli import main

if __name__ == "__main__":
    main(prog_name="flytune")
