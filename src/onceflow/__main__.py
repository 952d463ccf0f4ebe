"""`python -m onceflow` is the command line."""

from onceflow.cli import main

if __name__ == "__main__":
    main()
