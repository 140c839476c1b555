"""Listens to the warnings that PyTorch shows once: what they say is evidence.

Filters, registries and what is printed stay as they are: the wrapper stands where a warning that
has passed all filters is about to be shown, and hands it on. A warning that is turned into an
error or ignored never comes here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from tuimon.model.loop import Warned
from tuimon.model.text import plain
from tuimon.train.observer import Observer
from tuimon.train.taps.patches import On, Patches

TAP = "warnings"
MAX_TEXT = 300
# PyTorch's own words -> what they are about.
_SAYINGS: tuple[tuple[str, str], ...] = (
    (r"Using a target size .* different to the input size", "broadcast"),
    (r"None of the inputs have requires_grad=True", "checkpoint"),
    (r"degrees of freedom is <= 0", "degrees-of-freedom"),
    (r"call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`", "scheduler-order"),
    (r"Using a non-full backward hook", "backward-hook"),
    (r"[Ff]ull backward hook is firing when", "backward-hook"),
    (r"GradScaler is enabled, but \w+ is not available", "scaler-off"),
    (r"implicit dimension choice for \w*softmax", "softmax-axis"),
    (r"reduction: 'mean' divides the total loss by both the batch size", "kl-mean"),
    (r"\.grad attribute of a Tensor that is not a leaf", "not-a-leaf"),
)
_PATTERNS = tuple((re.compile(words), about) for words, about in _SAYINGS)
_PLAIN = (UserWarning, DeprecationWarning, FutureWarning, RuntimeWarning)


class WarningTap:
    """Reads the text of warnings of the interpreter's own classes; each kind is told once."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._note = observer.boundary.guard(TAP, self._on_warning)
        self._told: set[str] = set()
        self._told_to: Any = None

    def install(self, patches: Patches) -> None:
        """Wrap the one function that every shown warning passes."""
        patches.install(warnings, "_showwarnmsg", self._wrap)

    def _wrap(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def shown(msg: Any) -> Any:
            if on[0] and not observer.off:
                self._note(msg)
            return original(msg)

        return shown

    def _on_warning(self, msg: Any) -> None:
        warning = msg.message
        if type(warning) not in _PLAIN or not warning.args or type(warning.args[0]) is not str:
            return
        text = warning.args[0][:2000]
        about = next((about for words, about in _PATTERNS if words.search(text)), "")
        session = self._observer.session
        if self._told_to is not session:
            self._told_to = session
            self._told.clear()
        if not about or about in self._told:
            return
        self._told.add(about)
        step = self._observer.roster.next_step()
        session.publish(Warned(step, about, plain(text, MAX_TEXT)))
        session.event("torch-warning", f"PyTorch warned: {plain(text, MAX_TEXT)}")
