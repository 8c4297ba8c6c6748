"""The commands of an operator: ``python -m operate``."""
