"""``python -m sweep``."""

from sweep.cli.main import main

main()
