"""The terminal's driver: it survives any byte on stdin and ends the viewer when the terminal goes.

Stock Textual ends the app on one invalid byte, spins on end of file, and leaves the terminal raw
after SIGTERM.
"""

from __future__ import annotations

import os
import selectors
import signal
from codecs import getincrementaldecoder
from typing import IO, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from tuimon.tui.signs import Signs

EXIT_HANG_UP = 128 + signal.SIGHUP
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
_POLL_S = 0.1  # how fast the input thread notices that it must end
_READ_BYTES = 4096
_LAST_WORDS_S = 2.0  # for a terminal to take what restores it; one that is stopped never does


class GuardedOutput:
    """A terminal's file that drops what is written after the terminal has gone.

    Written by Textual's output thread only; `on_gone` is called there, once.
    """

    def __init__(self, file: IO[str], on_gone: Any) -> None:
        self._file = file
        self._on_gone = on_gone
        self._gone = False
        self.is_writing = False

    def write(self, text: str) -> None:
        """Write, or note that nobody is there."""
        self._guard(lambda: self._file.write(text))

    def flush(self) -> None:
        """Flush, or note that nobody is there."""
        self._guard(self._file.flush)

    def fileno(self) -> int:
        """The descriptor below."""
        return self._file.fileno()

    def _guard(self, act: Any) -> None:
        if self._gone:
            return
        self.is_writing = True
        try:
            act()
        except BlockingIOError:
            return  # the descriptor was made non-blocking by somebody: a later repaint heals it
        except (OSError, ValueError):
            self._gone = True
            self._on_gone()
        finally:
            self.is_writing = False


class SafeDriver(LinuxDriver):
    """`LinuxDriver` whose input cannot end the app and whose end always restores the terminal."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._output = GuardedOutput(self._file, self._terminal_gone)
        self._signs: Signs = app.signs
        self._file: Any = self._output

    @property
    def is_backed_up(self) -> bool:
        """Whether the terminal is still taking what was written before."""
        return self._output.is_writing

    def start_application_mode(self) -> None:
        """Start, with signals that end the app through its own exit."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.write(self._signs.begin())
        if self._writer_thread is not None:
            # A full queue would block the event loop, and with it the signals. Nothing is drawn
            # while output is backed up, so the queue stays short by itself.
            self._writer_thread._queue.maxsize = 0
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._end, 128 + number)
        # Both write. Stock Textual does so between any two instructions of this thread, one of
        # which may hold the lock of the queue: it would wait for itself.
        self._loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
        self._loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

    def _sigcont_application(self, *_: Any) -> None:
        if self._must_signal_resume:  # else it had not been suspended: all of it still runs
            super()._sigcont_application()

    def stop_application_mode(self) -> None:
        """Leave the terminal as it was, its title and the state of its tab as well."""
        self.write(self._signs.end())
        super().stop_application_mode()

    def suspend_application_mode(self) -> None:
        """Give the terminal back; one that takes nothing gets the rest when both go on."""
        self.stop_application_mode()
        self._write_last_words()

    def close(self) -> None:
        """Wait for the last words to be taken, but not for ever."""
        if not self._write_last_words():
            # The thread holds the lock of the stream: an ordinary exit would wait for it.
            os._exit(self._app.return_code or EXIT_HANG_UP)

    def _write_last_words(self) -> bool:
        """Whether the terminal took all within the time."""
        writer = self._writer_thread
        if writer is None:
            return True
        writer._queue.put(None)
        writer.join(_LAST_WORDS_S)
        return not writer.is_alive()

    def _end(self, code: int) -> None:
        self._app.exit(return_code=code)

    def _terminal_gone(self) -> None:
        """Called from the input or the output thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, EXIT_HANG_UP)

    def run_input_thread(self) -> None:
        """Read keys until the app ends; bad bytes are replaced, bad sequences dropped."""
        decode = getincrementaldecoder("utf-8")("replace").decode
        parser = XTermParser(self._debug)
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                typed = ""
                if selector.select(_POLL_S):
                    try:
                        raw = os.read(self.fileno, _READ_BYTES)
                    except OSError:
                        raw = b""
                    if not raw:
                        self._terminal_gone()
                        return
                    typed = decode(raw)
                if not self._feed(parser, typed):
                    parser = XTermParser(self._debug)

    def _feed(self, parser: XTermParser, typed: str) -> bool:
        """Pass input on; False when the parser is broken and must be replaced."""
        try:
            for message in parser.feed(typed) if typed else ():
                self.process_message(message)
            for message in parser.tick():
                self.process_message(message)
        except Exception:  # whatever a stranger's bytes did to the parser
            return False
        return True
