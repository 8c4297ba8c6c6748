"""The axes of ``monitor_operative``. A value is a function behind the signature of its axis, in a file of its own, and an entry
in the table of the axis."""
