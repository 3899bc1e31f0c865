"""`python -m helpers COMMAND`; without a command, the list of them."""

from __future__ import annotations

import sys

from . import _doctor

_COMMANDS = "  doctor    what is missing or wrong on this machine, and the line that mends it"


def main(arguments: list[str]) -> int:
    """Run the command named. Returns the exit status: 2 for one that does not exist."""
    if arguments == ["doctor"]:
        return _doctor.main()
    if arguments:
        print(f"no command {' '.join(arguments)!r}: `python -m helpers` lists them", file=sys.stderr)
        return 2
    print(f"python -m helpers COMMAND\n{_COMMANDS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
