"""`python -m ablate`."""

from ablate.cli import main

raise SystemExit(main())
