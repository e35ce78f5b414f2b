"""The command ``pyresil-lock``: runs any program under a lease.

It imports neither dataclasses nor logging on its way to the command, so that starting it costs little more than Python.
"""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name. None, as the console script calls it, takes those of this process, and
            ends the process with the status instead of returning.

    Returns:
        The exit status.
    """
    if arguments is not None:
        return _main(arguments)
    status = 70
    gc.set_threshold(50_000)  # what the imports make is no garbage; looking for it costs 2 ms of the start
    try:
        status = _main(sys.argv[1:], alone=True)
    except KeyboardInterrupt:  # at the very start
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # a fault of ours: shown in full, and never taken for the command's own status
        import traceback

        traceback.print_exc()
    # Not through the interpreter's end: it would take milliseconds, and wait for nothing that matters.
    os._exit(status)


def _let_interrupts_end() -> None:
    """Until there is something to end in order, Ctrl-C just ends, as it ends any program."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _main(words: list[str], *, alone: bool = False) -> int:
    _open_standard_files()
    from pyresil.cli import _report
    from pyresil.cli._options import HelpRequested, UsageError
    from pyresil.errors import ConfigurationError

    try:
        return _dispatch(words, alone=alone)
    except (UsageError, ConfigurationError) as error:
        _report.write(2, f"pyresil-lock: {_report.clean(error)}\n")
        return _report.USAGE
    except HelpRequested as request:
        _print(str(request))
        return 0


def _dispatch(words: list[str], *, alone: bool) -> int:
    from pyresil.cli import _options, _text
    from pyresil.cli._glance import Glance

    if not words:
        raise _options.UsageError("name a command, such as run; see pyresil-lock --help")
    name, *rest = words
    if name in ("--help", "-h", "help"):
        from pyresil.cli._help import main_help

        raise _options.HelpRequested(main_help())
    if name == "--version":
        from pyresil import __version__

        _print(f"pyresil-lock {__version__}")
        return 0
    if name == "run":
        settings = _options.read_settings(_text.RUN, rest)
        glance = Glance(settings)
        busy = glance.busy()
        if busy is not None:
            return busy
        if alone:
            _let_interrupts_end()
        from pyresil.cli._run import run

        # Of many starts at once another one may have taken the key while this one was loading.
        busy = glance.busy()
        return run(settings) if busy is None else busy
    if alone:
        _let_interrupts_end()
    if name == "lead":
        from pyresil.cli._lead import lead

        return lead(_options.read_settings(_text.LEAD, rest))
    if name == "doctor":
        from pyresil.cli._doctor import doctor

        return doctor(rest)
    if name in ("completion", "manual"):
        from pyresil.cli import _manual

        return {"completion": _manual.completion, "manual": _manual.manual}[name](rest)
    if name in ("status", "list", "release"):
        from pyresil.cli import _inspect

        return {"status": _inspect.status, "list": _inspect.listing, "release": _inspect.release}[name](rest)
    names = ", ".join(command.name for command in _text.COMMANDS)
    raise _options.UsageError(f"no command {name!r}: it must be one of {names}; see pyresil-lock --help")


def _print(text: str) -> None:
    from pyresil.cli._report import write

    write(1, text.rstrip("\n") + "\n")


def _open_standard_files() -> None:
    """Where 0, 1 or 2 is closed, open the null device there: else the next file opened, a database, would get its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
