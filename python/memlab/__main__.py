"""`python -m memlab`: the `memlab` command of this environment, even if its `bin` folder is not in PATH."""

from memlab._command import main

main()
