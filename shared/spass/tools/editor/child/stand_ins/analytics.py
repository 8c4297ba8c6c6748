"""For ``aider.analytics``: Aider reports its use to its makers."""


class Analytics:
    def event(self, event_name: str, **properties: object) -> None:
        """Report nothing."""
