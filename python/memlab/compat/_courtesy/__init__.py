"""Implementation of `memlab.Courtesy`: finds the storages of a program, moves them, and uses the native offload."""
