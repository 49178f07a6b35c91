"""Lets `python -m slotwise` be the command, where the script is not on the path."""

import sys

from slotwise.cli.main import main

sys.exit(main())
