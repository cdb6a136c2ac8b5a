"""Logs and tables of other tools -> the GEMMs that a program was seen to ask for."""
