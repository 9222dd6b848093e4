"""Turns a typed `main` function into a command whose user errors are one line."""

import errno
import os
import sys
from collections.abc import Callable

import typer

from dosematch.errors import UserError

SYSTEM_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EFBIG}


def run(main: Callable[..., None]) -> None:
    """Run `main` with its arguments taken from the command line.

    A `UserError`, or an operating system error that a user can mend (full disk, unreadable file), ends in one line on
    stderr and exit status 1; every other exception is a defect and keeps its traceback.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        if error.errno not in SYSTEM_FAULTS:
            raise
        fail(f"{error.filename or 'output'}: {error.strerror}")


def fail(message: str) -> None:
    """Print one line and leave with status 1, without running exit handlers that could still write."""
    sys.stderr.write(f"error: {message}\n")  # one write: processes that fail together must not mix their lines
    sys.stderr.flush()
    os._exit(1)
