"""`python -m memlab`: the `memlab` command of this environment, also where its folder of programs is not in PATH."""

from memlab._command import main

main()
