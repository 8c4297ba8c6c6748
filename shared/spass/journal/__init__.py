"""An append-only list of rendered events under a partition, in attempts: one writer, any number of followers on any worker.

The head of a stream (``head``) is the idempotency record of its request and the lease of the attempt that runs it. The chunks
(``frames``, written by ``writer``) are the events. A follower (``follower``) reads both. Nothing here knows what the events mean.
"""
