"""The programs of a display: X server, buses, window manager; and those that are started on it.

All are children of the process that this runs in, which adopts orphans: what is below it is the desktop.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envgym_sandboxes.desktop.inside.leavings import contents, entries, grounds, put_back, remove
from envgym_sandboxes.desktop.inside.rest import descendants
from envgym_sandboxes.desktop.inside.watching import Watching

__all__ = ["TWICE_MS", "Programs", "StartFailed", "listens"]

TWICE_MS = 60
"""Two clicks at one place within it are a double click, everywhere.

GTK has a timer of this length after each click. It is so long that it is not due within a frame of the moment when
programs have shown what a click does (two frames or three): that would be waited for, see `rest`.
"""

_PR_SET_CHILD_SUBREAPER = 36
_SETTINGS = f"""[Settings]
gtk-double-click-time={TWICE_MS}
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-recent-files-enabled=false
gtk-recent-files-max-age=0
gtk-primary-button-warps-slider=false
gtk-error-bell=false
"""
_FILE_MANAGER = """<?xml version="1.0" encoding="UTF-8"?>
<channel name="thunar" version="1.0">
  <property name="last-view" type="string" value="ThunarDetailsView"/>
  <property name="last-details-view-visible-columns" type="string" value="THUNAR_COLUMN_NAME"/>
  <property name="last-statusbar-visible" type="bool" value="false"/>
  <property name="last-side-pane" type="string" value="void"/>
  <property name="misc-thumbnail-mode" type="string" value="THUNAR_THUMBNAIL_MODE_NEVER"/>
</channel>
"""
"""Names alone, in a list: times of files and free space are other ones each time."""
_KEYS = """[org/gnome/gnumeric/core/gui/editing]
recalclag=0
"""
"""The sum of what is selected is shown at once, and not by a timer 200 ms after cells have changed."""
_KEY_FILE = "own/config/glib-2.0/settings/keyfile"
_CHANNELS = "config/xfce4/xfconf/xfce-perchannel-xml"
_WINDOW_MANAGER = f"""<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew><followMouse>no</followMouse><raiseOnFocus>yes</raiseOnFocus></focus>
  <placement><policy>Smart</policy><center>no</center></placement>
  <theme><name>Clearlooks</name><titleLayout>LIMC</titleLayout><animateIconify>no</animateIconify></theme>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <resize><popupShow>Never</popupShow></resize>
  <keyboard>
    <keybind key="A-F4"><action name="Close"/></keybind>
    <keybind key="A-Tab"><action name="NextWindow"><dialog>none</dialog><finalactions><action name="Focus"/>
      <action name="Raise"/></finalactions></action></keybind>
  </keyboard>
  <mouse><dragThreshold>1</dragThreshold><doubleClickTime>{TWICE_MS}</doubleClickTime>
    <context name="Titlebar"><mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind></context>
    <context name="Client"><mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/>
      </mousebind></context>
    <context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
    <context name="Maximize"><mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind>
      </context>
    <context name="BRCorner"><mousebind button="Left" action="Drag"><action name="Resize"/></mousebind></context>
  </mouse>
  <applications><application type="normal"><decor>yes</decor></application></applications>
</openbox_config>
"""


def listens(path: Path) -> bool:
    """Whether somebody takes connections at a socket; that its file is there does not say so yet."""
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(str(path)) == 0


class StartFailed(Exception):
    """A program does not come up."""


class Programs:
    """The display's own programs, in `top`, a private directory; `home` is where all others begin.

    alone: nobody else uses this sandbox, so that `clear` removes what is new anywhere in it.
    """

    def __init__(self, top: str, home: str, size: tuple[int, int], *, alone: bool) -> None:
        self.top, self.home, self._alone = Path(top), Path(home), alone
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for name in (
            "run",
            "config/gtk-3.0",
            _CHANNELS,
            "log",
            "own/config",
            "own/data",
            "own/state",
            "own/cache",
            "own/tmp",
        ):
            (self.top / name).mkdir(parents=True, mode=0o700)
        (self.top / "config/gtk-3.0/settings.ini").write_text(_SETTINGS)
        (self.top / "resources").write_text(f"XTerm*multiClickTime: {TWICE_MS}\n")
        (self.top / _CHANNELS / "thunar.xml").write_text(_FILE_MANAGER)
        (self.top / "openbox.xml").write_text(_WINDOW_MANAGER)
        self._set_keys()
        self.env = self._environment()
        self.display = self._x_server(size)
        self.env["DISPLAY"] = self.display
        self._bus()
        self.watching = Watching(lambda argv: self._start(argv, log="vnc"), self.display)
        self._own: set[int] = set()
        self._grounds: dict[Path, set[Path]] = {}
        self._cache: dict[Path, bytes] = {}

    def _environment(self) -> dict[str, str]:
        bus = f"unix:path={self.top}/run/bus"
        return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | {
            "HOME": str(self.home),
            "PWD": str(self.home),
            "XDG_RUNTIME_DIR": str(self.top / "run"),
            "XDG_CONFIG_DIRS": f"{self.top}/config:/etc/xdg",
            "XDG_CONFIG_HOME": f"{self.top}/own/config",  # what programs keep of themselves is not in the home
            "XDG_DATA_HOME": f"{self.top}/own/data",
            "XDG_STATE_HOME": f"{self.top}/own/state",
            "XDG_CACHE_HOME": f"{self.top}/cache",
            "TMPDIR": f"{self.top}/own/tmp",
            "DBUS_SESSION_BUS_ADDRESS": bus,
            "GSETTINGS_BACKEND": "keyfile",  # in `_KEY_FILE`, which `clear` makes anew
            "GIO_USE_VFS": "local",
            "GIO_USE_VOLUME_MONITOR": "unix",
            "NO_AT_BRIDGE": "0",
            "GTK_OVERLAY_SCROLLING": "0",  # scroll bars that fade would never come to rest
            "XENVIRONMENT": f"{self.top}/resources",
            "LIBGL_ALWAYS_SOFTWARE": "1",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def _x_server(self, size: tuple[int, int]) -> str:
        os.makedirs("/tmp/.X11-unix", mode=0o1777, exist_ok=True)
        read, write = os.pipe()
        fixed = ("-nolisten", "tcp", "-s", "0", "-dpms", "-noreset")
        shown = ("-displayfd", str(write), "-screen", "0", f"{size[0]}x{size[1]}x24")
        self._start(["Xvfb", *shown, *fixed], log="xvfb", pass_fds=(write,))
        os.close(write)
        with open(read, "rb") as said:
            number = said.readline().strip()
        if not number:
            raise StartFailed(f"Xvfb does not start: {self.said('xvfb')}")
        return f":{number.decode()}"

    def _bus(self) -> None:
        address = self.env["DBUS_SESSION_BUS_ADDRESS"]
        self._start(["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address={address}"], log="dbus")
        self._start(["openbox", "--config-file", str(self.top / "openbox.xml")], log="openbox")
        path = self.top / "run/bus"
        self.until(lambda: listens(path), 30.0, lambda: f"no bus: {self.said('dbus')}")

    @property
    def thorough(self) -> bool:
        """Whether what programs leave anywhere is removed."""
        return bool(self._grounds)

    def until(self, true: Callable[[], bool], within_s: float, why: Callable[[], str]) -> None:
        """Wait for a condition. Raises StartFailed with `why` when it does not come."""
        end = time.monotonic() + within_s
        while not true():
            if time.monotonic() > end:
                raise StartFailed(why())
            time.sleep(0.002)

    def keep(self) -> None:
        """What runs now is the display's own, and lives as long as it."""
        self._own = descendants(os.getpid())
        self._grounds = grounds(self.top.parent) if self._alone else {}
        self._cache = contents(self.top / "cache")  # of fonts: without it each program would look at all of them

    def launch(self, argv: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start a program in the home. Raises StartFailed when there is none of that name."""
        try:
            return self._start(argv, log="program", env=self.env | dict(env), cwd=str(self.home))
        except OSError as error:
            raise StartFailed(f"{argv[0]} cannot be started: {error}") from error

    def _start(self, argv: Sequence[str], *, log: str, **more: object) -> "subprocess.Popen[bytes]":
        with (self.top / "log" / log).open("ab") as said:
            given: dict[str, object] = {"env": self.env, "cwd": str(self.top), **more}
            return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
                list(argv), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, **given
            )

    def said(self, log: str) -> str:
        """The last that a program wrote."""
        with contextlib.suppress(OSError):
            return (self.top / "log" / log).read_bytes()[-1000:].decode("utf-8", "replace").strip()
        return ""

    def reap(self) -> None:
        """Let go of children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue

    def lost(self) -> bool:
        """Whether one of the display's own programs has ended."""
        self.reap()
        return not self._own <= descendants(os.getpid())

    def clear(self) -> None:
        """End all programs but the display's own, empty the home, and remove what they left elsewhere."""
        self._kill(but=self._own | self.watching.pids)
        (self.top / "log/program").unlink(missing_ok=True)
        for path in [*self.home.iterdir(), *(self.top / "own").glob("*/*"), *self._left()]:
            remove(path)
        put_back(self.top / "cache", self._cache)
        self._set_keys()

    def _kill(self, *, but: set[int]) -> None:
        """End all processes below this one, and wait until they are gone. Raises StartFailed where they stay."""
        end = time.monotonic() + 20
        while others := descendants(os.getpid(), ended=True) - but:
            if time.monotonic() > end:
                raise StartFailed(f"processes {sorted(others)} do not end")
            for pid in others:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
            self.reap()

    def _set_keys(self) -> None:
        path = self.top / _KEY_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_KEYS)

    def _left(self) -> list[Path]:
        """What programs have put elsewhere."""
        return [path for ground, there in self._grounds.items() for path in entries(ground) - there]

    def end(self) -> None:
        """End everything, and remove what a killed X server leaves."""
        self._kill(but=set())
        number = self.display.removeprefix(":")
        for path in (f"/tmp/.X11-unix/X{number}", f"/tmp/.X{number}-lock"):
            Path(path).unlink(missing_ok=True)
