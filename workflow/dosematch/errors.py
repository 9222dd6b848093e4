"""The one exception that ends a run with a single line."""


class UserError(Exception):
    """Something a user can mend: the message is one line that names the file and the key."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
