"""`python -m dilaserve` is the `dilaserve` command."""

from dilaserve.cli import main

if __name__ == "__main__":
    main()
