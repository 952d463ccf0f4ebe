"""Entry point of `python -m onceflow`."""

from onceflow.cli import main

if __name__ == "__main__":
    main()
