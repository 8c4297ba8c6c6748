"""The commands of an operator, who has AWS credentials: ``python -m operate``."""
