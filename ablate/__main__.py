"""`python -m ablate`."""

from ablate_sweeps import main

raise SystemExit(main())
