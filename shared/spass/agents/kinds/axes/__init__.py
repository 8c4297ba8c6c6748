"""The axes of ``monitor_operative``. A value is a function with the signature of its axis, and an entry in its table."""
