"""The process that runs model-written code. The gateway imports nothing of it: Python starts ``__main__.py`` as a script.

It needs Python 3.11 or later and its standard library. Modules here import little, because each start pays for it: no
``typing``, ``dataclasses``, ``re`` or ``json``.
"""
