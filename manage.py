#!/usr/bin/env python
"""HopBase's command line."""

import os
import sys


def main() -> int:
    """Run a command of Django's or of ours; returns the exit status."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hopbase_site.settings")
    from hopbase_site.command_line import run

    return run(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
