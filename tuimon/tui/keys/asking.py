"""What the viewer asks a person: dialogs, and what follows from their answers."""

from __future__ import annotations

from textual.app import App
from textual.geometry import Size

from tuimon.model.commands import AnyCommand
from tuimon.tui.bridge import Bridge, Clock
from tuimon.tui.keys.hinting import Hint, hints
from tuimon.tui.keys.playback import STEP_WORDS, go_to_typed
from tuimon.tui.keys.reach import Question, intent
from tuimon.tui.options import ViewerOptions
from tuimon.tui.scene import Scene
from tuimon.tui.screens import has_room
from tuimon.tui.second import SecondRun
from tuimon.tui.taking import sent

_UNSEEN = ("quit", "suspend")


class Asking(App[None]):
    """The half of the app that opens dialogs and sends what they answer."""

    bridge: Bridge
    scene: Scene
    options: ViewerOptions
    clock: Clock
    second: SecondRun

    def draw(self, size: Size | None = None) -> None:
        """Show the scene as it is now."""
        raise NotImplementedError

    def action_do(self, name: str) -> None:
        """Everything a key of the table does."""
        raise NotImplementedError

    def footer_hints(self) -> tuple[Hint, ...]:
        """The keys that do something: those of the dialog that is open, or of the scene."""
        if len(self.screen_stack) > 1:
            from tuimon.tui.keys.dialogs import Dialog

            top = self.screen_stack[-1]
            if isinstance(top, Dialog) and top.hints:
                return top.hints
        return hints(self.scene)

    def takes(self, name: str) -> bool:
        """Whether there is a picture in which what an action does can be seen."""
        return name in _UNSEEN or has_room(self.size.width, self.size.height)

    def asks(self, name: str) -> bool:
        """Open the dialog of an action; False where it has none of its own."""
        from tuimon.tui.helping import HelpDialog
        from tuimon.tui.keys.palette import PaletteDialog
        from tuimon.tui.keys.typed import FilterDialog, filter_dialog, run_dialog, step_dialog
        from tuimon.tui.picking import known_names

        scene, look = self.scene, self.scene.look
        match name:
            case "help":
                dialog = HelpDialog(look, self.clock, **self._reach_of())
                self.push_screen(dialog, lambda _: self.draw())
            case "palette":
                palette = PaletteDialog(look, self.clock, **self._reach_of())
                self.push_screen(palette, self._chosen)
            case "filter":
                self.push_screen(filter_dialog(scene, self.clock, self.draw))
            case "go":
                self.push_screen(step_dialog(scene, self.clock, self.draw, self.bridge.say))
            case "overlay":
                known = known_names(self.options.choices, self.bridge.frame.run_id)
                line = run_dialog(scene, self.clock, self.second.name, known)
                self.push_screen(line, self._lay)
            case "go_to":
                line = FilterDialog(look, self.clock, "", lambda typed: None, words=STEP_WORDS)
                self.push_screen(line, self._go_to)
            case _:
                return False
        self.draw()
        return True

    def _lay(self, name: str | None) -> None:
        self.bridge.say(self.second.lay((name or "").strip()), "key")
        self.draw()

    def _copy(self) -> None:
        from tuimon.tui.stories.copying import copied

        found = copied(self.scene)
        if found is None:
            self.bridge.say("nothing has gone wrong so far: nothing was copied")
            return
        self.copy_to_clipboard(found[0])
        self.bridge.say(f"copied {found[1]} (OSC 52); where that does nothing, w writes", "ok")

    def _write(self, name: str) -> None:
        from tuimon.tui.stories.copying import write_file, write_picture

        scene, folder = self.scene, self.options.folder
        picture = name == "picture"
        words = write_picture(scene, self.size, folder) if picture else write_file(scene, folder)
        self.bridge.say(words, "key")

    def _reach(self, name: str) -> None:
        wanted = intent(
            name,
            self.scene.with_frame(self.bridge.frame),
            dump_folder=self.options.dump_folder(self.bridge.frame),
        )
        if isinstance(wanted, str):
            self.bridge.say(wanted)
        elif isinstance(wanted, Question):
            from tuimon.tui.keys.dialogs import QuestionDialog

            dialog = QuestionDialog(self.scene.look, self.clock, wanted)
            self.push_screen(dialog, self._answered)
            self.draw()
        else:
            self._send(wanted)

    def _reach_of(self) -> dict[str, bool]:
        """Which keys there are."""
        return {"readonly": self.scene.readonly, "replays": self.scene.replays}

    def _go_to(self, typed: str | None) -> None:
        self.bridge.say(go_to_typed(self.bridge.playback, typed))

    def _chosen(self, name: str | None) -> None:
        if name is not None:
            self.action_do(name)
        self.draw()

    def _answered(self, command: AnyCommand | None) -> None:
        if command is None:
            self.bridge.say("nothing was sent", "dim")
        else:
            self._send(command)
        self.draw()

    def _send(self, command: AnyCommand) -> None:
        sent(self.scene, command)
        self.bridge.send(command, self._redraw)

    def _redraw(self) -> None:
        if self.is_running and self.screen_stack:
            self.draw()
