"""`python -m llmobs`."""

import sys

from llmobs.cli import main

sys.exit(main())
