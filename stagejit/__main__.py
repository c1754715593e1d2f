"""`python -m stagejit`: see stagejit.bench.cli."""

from stagejit.bench.cli import main

if __name__ == "__main__":
    main()
