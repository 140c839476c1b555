"""Which line and module an operation of the loss graph comes from, learned in a few forwards.

Between a forward that is learned and its backward, autograd's anomaly mode (without its search for
NaN) asks for a stack at every node; what answers is a short walk of ours. Nothing is printed, no
number changes, and in every other step nothing is done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
import torch.fx.traceback as _stacks
from torch import nn
from torch.autograd.graph import _engine_run_backward

from tuimon.train.autopsy.nodes import is_leaf
from tuimon.train.autopsy.sites import Place, is_foreign, remembered
from tuimon.train.autopsy.structure import Caller, Spot, caller, spots
from tuimon.train.layers import unwrap

FIRST = 4  # backward calls that are learned one after the other
GROWTH = 1.5  # from then on at growing distances, so that rare branches are seen as well
MAX_LEARNED = 28  # until about the 20,000th
MAX_AGAIN = 6  # because the graph looks different
MAX_STACKS = 50_000  # operations of one window
MAX_WINDOW_S = 20.0  # from its first operation to the last
SHARE = 0.01  # of the time of the run that later windows may take
MAX_KNOWN = 60_000  # places
MAX_SITES = 4  # of one place, in one graph or another

_ENGINE = _engine_run_backward.__code__  # below it autograd runs without any line of Python
_CALL = nn.Module._call_impl.__code__
_TRACE = "traceback_"


class Site(str):
    """What stands in the metadata of a node: a line of a traceback, and its parts."""

    __slots__ = ("in_model", "module", "place", "within")

    place: Place | None
    module: str
    in_model: bool
    within: str


class Found(NamedTuple):
    """Where an operation comes from.

    Attributes:
        place: None when no line of the user's led to it.
        module: path of the innermost watched module that ran; "" outside of all; None not known.
        in_model: a watched module ran.
        note: how it was found, where it was not by its exact place.
        within: name of the node whose derivative it is part of, where a gradient was taken on the
            way to the loss; `place` is that of the operation that was differentiated then.
    """

    place: Place | None
    module: str | None
    in_model: bool
    note: str = ""
    within: str = ""


class Learned(NamedTuple):
    """One graph that has been learned, while its nodes live."""

    caller: Caller
    spots: list[Spot]
    sites: list[Found | None]


class LineMap:
    """Learns and tells the lines of operations. Used by the training thread only.

    What is looked at before anything here is called, so that an idle step costs nothing:

    Attributes:
        due: the next forward is learned.
        window: from a forward that is learned to its backward.
        stuck: the script has put our flag back on, and it is still there.
        backwards: backward calls so far.
        next_due: the one at which it is planned what is learned next.
    """

    def __init__(
        self,
        roots: Callable[[], Iterable[tuple[str, nn.Module]]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._roots = roots
        self._clock = clock
        self._began_s = clock()
        self.due = True
        self.window: _Window | None = None
        self.stuck = False
        self.backwards = 0
        self.next_due = 1
        self._learned = 0
        self._again = 0
        self._spent_s = 0.0
        self._exact: dict[tuple[Caller, int], list[Found]] = {}
        self._near: dict[tuple[Caller, int], list[Found]] = {}

    @property
    def is_learning(self) -> bool:
        """Whether the flag is on because of us."""
        return self.window is not None

    def switch(self, *, on: bool) -> None:
        """Learn nothing at all, or go on learning."""
        if not on:
            self.release()
        self.due, self.next_due = on, self.backwards + 1 if on else sys.maxsize

    def before_forward(self) -> None:
        """A training forward of a watched root begins."""
        if self.stuck:
            self._unstick()
        if not self.due or self.window is not None:
            return
        self.due = False
        began_s = self._clock()
        self.window = _Window(self._paths(), self._clock)
        self.window.open()
        self._spent_s += self._clock() - began_s

    def after_forward(self) -> None:
        """One has ended while a window was open. When it raised, no backward will close that."""
        if sys.exc_info()[0] is not None:
            self.release()

    def before_backward(self, losses: Sequence[torch.Tensor]) -> Learned | None:
        """A backward of the user's is about to begin; returns what was learned of its graph."""
        learned = None
        if self.window is not None:
            learned = self._learn(losses)
        elif self.stuck:
            self._unstick()
        self.backwards += 1
        if self.backwards >= self.next_due:
            self._plan()
        return learned

    def look_again(self) -> None:
        """The graph is not as it was learned."""
        if self._again < MAX_AGAIN and not self.due:
            self._again += 1
            self.due = True

    def release(self) -> None:
        """Put the flag back as it was. Can be called at any time."""
        window, self.window = self.window, None
        if window is not None:
            self.stuck = window.close()

    def read(self, losses: Sequence[torch.Tensor]) -> Reading:
        """The graph of these losses, to look its operations up in; call it before backward."""
        return Reading(self, caller(), spots(losses))

    def lookup(self, at: Caller, path: int, around: int | None = None) -> Found | None:
        """Where the operation at a place in the graph comes from; None rather than a guess."""
        found = _only(self._exact.get((at, path), ()))
        if found is not None or around is None:
            return found
        found = _only(self._near.get((at, around), ()))
        if found is None:
            anywhere = [
                site
                for table, key in ((self._exact, path), (self._near, around))
                for (_, known), sites in table.items()
                if known == key
                for site in sites
            ]
            found = _only(anywhere)
        return None if found is None else found._replace(note=_NEAR)

    # --- learning ---------------------------------------------------------------------------------

    def _plan(self) -> None:
        self.next_due = self.backwards + 1
        if self._learned < FIRST:
            self.due = True
        elif self._learned < MAX_LEARNED:
            self.next_due = int(self.backwards * GROWTH) + 1
            elapsed_s = self._clock() - self._began_s
            self.due = self._spent_s < SHARE * elapsed_s
        else:
            self.next_due = sys.maxsize

    def _learn(self, losses: Sequence[torch.Tensor]) -> Learned:
        window = self.window
        assert window is not None
        self.release()
        began_s = self._clock()
        at = caller()
        found = spots(losses)
        sites = [_site_of(spot.node) for spot in found]
        for spot, site in zip(found, sites, strict=True):
            if site is not None and len(self._exact) < MAX_KNOWN:
                _add(self._exact, (at, spot.path), site)
                _add(self._near, (at, spot.around), site)
        self._learned += 1
        self._spent_s += self._clock() - began_s + window.spent_s
        return Learned(at, found, sites)

    def _paths(self) -> dict[int, str]:
        """The watched modules by id."""
        paths: dict[int, str] = {}
        for prefix, root in self._roots():
            for name, module in unwrap(root).named_modules():
                path = f"{prefix}{name}".replace("_orig_mod.", "").replace("_orig_mod", "")
                paths.setdefault(id(module), path.rstrip("."))
        return paths

    def _unstick(self) -> None:
        """The script's own `detect_anomaly`, entered in our window, has put our flag back."""
        if not torch.is_anomaly_enabled():
            return
        self.stuck = False
        if not torch.is_anomaly_check_nan_enabled():
            torch.set_anomaly_enabled(False, True)


class Reading:
    """One graph, as it is looked up. Holds its nodes: drop it after use."""

    def __init__(self, lines: LineMap, at: Caller, found: list[Spot]) -> None:
        self._lines = lines
        self._at = at
        self._spots = {id(spot.node): spot for spot in found}

    def place_of(self, node: Any) -> Found | None:
        """Where an operation comes from; None when that is not known."""
        spot = self._spots.get(id(node))
        if spot is None:
            return None
        own = _site_of(node, keep=True)
        return own or self._lines.lookup(self._at, spot.path, spot.around)


class _Window:
    """From one forward to its backward: the flag is ours.

    Attributes:
        spent_s: what the stacks took, about.
    """

    def __init__(self, paths: dict[int, str], clock: Callable[[], float]) -> None:
        self.spent_s = 0.0
        self._paths = paths
        self._clock = clock
        self._until_s = clock() + MAX_WINDOW_S
        self._count = 0
        self._made: dict[tuple[CodeType | None, int, str | None, str], Site] = {}
        self._derived: dict[tuple[str, str, str], Site] = {}
        self._ours = False
        self._checks_nan = True
        self._original: Any = None
        self._mine: Any = None

    def open(self) -> None:
        if torch.is_anomaly_enabled():
            return  # the script's own; its nodes carry their stacks as it is
        self._checks_nan = torch.is_anomaly_check_nan_enabled()
        self._original = _stacks.format_stack
        self._mine = self._stack
        _stacks.format_stack = self._mine
        torch.set_anomaly_enabled(True, False)
        self._ours = True

    def close(self) -> bool:
        """Put everything back; True when the flag has been taken over by the script meanwhile."""
        if self._mine is not None and _stacks.format_stack == self._mine:
            _stacks.format_stack = self._original
        if not self._ours:
            return False
        self._ours = False
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            return True
        if torch.is_anomaly_enabled():
            torch.set_anomaly_enabled(False, self._checks_nan)
        return False

    def _stack(self) -> list[str]:
        """What autograd asks for at each node that it makes."""
        if _stacks.should_preserve_node_meta or not self._ours:
            answer: list[str] = self._original()
            return answer
        try:
            return self._learned_stack(sys._getframe(1))
        except Exception:  # the script is in the middle of an operation
            return []

    def _learned_stack(self, frame: FrameType) -> list[str]:
        began_s = self._clock()
        self._count += 1
        if self._count > MAX_STACKS or began_s > self._until_s:
            self.close()
        site = self._site(frame)
        self.spent_s += self._clock() - began_s
        return [site]

    def _site(self, frame: FrameType | None) -> Site:
        code: CodeType | None = None
        line = 0
        module: str | None = None
        within = ""
        while frame is not None:
            current = frame.f_code
            if current is _CALL:
                if module is None:
                    module = self._paths.get(id(frame.f_locals.get("self")))
                if module is not None and code is not None:
                    break
            elif code is None and current is _ENGINE:
                within, of = _differentiated()
                if of is not None:
                    return self._derived.setdefault((of, of.module, within), _derived(of, within))
            elif code is None and not is_foreign(current.co_filename):
                code, line = current, frame.f_lineno
                if module is not None:
                    break
            frame = frame.f_back
        key = (code, line, module, within)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = _made(*key)
        return known


_NEAR = "the line was found by the neighbours of the operation: this very graph was not seen before"


def _differentiated() -> tuple[str, Site | None]:
    """(Name of the node whose derivative autograd computes now, where that node comes from)."""
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return "", None
    stack = node.metadata.get(_TRACE)
    known = stack and isinstance(stack[0], Site) and stack[0].place is not None
    return node.name(), stack[0] if known else None


def _derived(of: Site, within: str) -> Site:
    site = Site(of)
    site.place, site.module, site.in_model, site.within = of.place, of.module, of.in_model, within
    return site


def _made(code: CodeType | None, line: int, module: str | None, within: str) -> Site:
    place = None if code is None else Place(code.co_filename, line, code.co_name)
    name = "?" if place is None else place.file
    function = "?" if place is None else place.function
    site = Site(f'  File "{name}", line {line}, in {function}\n')
    site.place = place
    site.module = module or ""
    site.in_model = module is not None
    site.within = within
    return site


def _site_of(node: Any, *, keep: bool = False) -> Found | None:
    """What the stack of a node tells; taken out of the node again where it is ours."""
    if is_leaf(node):
        return None
    stack = node.metadata.get(_TRACE)
    if not stack:
        return None
    site = stack[0]
    if isinstance(site, Site):
        if not keep:
            del node.metadata[_TRACE]
        return Found(site.place, site.module, site.in_model, within=site.within)
    place = remembered(node)
    return None if place is None else Found(place, None, False)


def _add(table: dict[Any, list[Found]], key: Any, site: Found) -> None:
    known = table.setdefault(key, [])
    if site not in known and len(known) < MAX_SITES:
        known.append(site)


def _only(sites: Iterable[Found]) -> Found | None:
    """The site, when there is no other."""
    known = list(dict.fromkeys(sites))
    return known[0] if len(known) == 1 else None
