"""`python -m paml`: the command line, where its script is not on the path."""

from paml.cli import main

if __name__ == "__main__":
    main()
