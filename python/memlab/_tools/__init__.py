"""Code shared by the tools, independent of each of them."""
