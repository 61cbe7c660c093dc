"""Figures by line: marks, columns, tables."""
