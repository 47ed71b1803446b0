"""The program ``envgym``, also as ``python -m envgym``: what can be said before the command line is imported."""

import sys


def main() -> None:
    """Import the command line, which takes a moment, and run it; an interrupt in that moment is one line, too."""
    try:
        from envgym.cli import main as program
    except KeyboardInterrupt:
        print("envgym: interrupted", file=sys.stderr)
        sys.exit(130)
    program()


if __name__ == "__main__":
    main()
